use super::*;

mod fuzz;

impl ServerClock {
    /// Returns a reading without an error margin.
    pub(crate) fn new(time: Duration, at: Instant) -> ServerClock {
        ServerClock { time, at, slack: Duration::ZERO }
    }
}

fn info(run: &str, uptime: i64) -> String {
    format!("# Server\r\nrun_id:{run}\r\nuptime_in_seconds:{uptime}\r\n")
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_server_is_as_old_as_its_uptime_less_a_second() {
    let (server_info, now) = (ServerInfo::default(), Instant::now());
    assert!(!server_info.is_younger_than(seconds(30), now));
    assert!(server_info.update(&info("a", 31), now));
    assert!(server_info.is_younger_than(seconds(31), now));
    assert!(!server_info.is_younger_than(seconds(30), now));
    assert!(!server_info.is_younger_than(seconds(60), now + seconds(30)));
}

#[test]
fn a_run_that_follows_another_is_no_older_than_when_it_was_first_seen() {
    let (server_info, now) = (ServerInfo::default(), Instant::now());
    server_info.update(&info("a", 3600), now);
    // The server's wall clock was set forward after the restart.
    server_info.update(&info("b", 3600), now + seconds(5));
    assert!(server_info.is_younger_than(seconds(10), now + seconds(14)));
    server_info.update(&info("b", 3605), now + seconds(14));
    assert!(server_info.is_younger_than(seconds(10), now + seconds(14)));
    assert!(!server_info.is_younger_than(seconds(10), now + seconds(15)));
}

#[test]
fn clocks_differ_by_more_than_the_time_between_their_readings() {
    let (now, second) = (Instant::now(), seconds(1));
    let clock = |micros: u64, sent: Instant| {
        let server_info = ServerInfo::default();
        server_info.set_clock(&format!("server_time_usec:{micros}\r\n"), sent, sent + second);
        server_info.clock().unwrap()
    };
    let one = clock(100_000_000, now);
    assert_eq!(one.apart(&one), Duration::ZERO);
    let (same, ahead, behind) = (
        clock(130_000_000, now + seconds(30)),
        clock(140_000_000, now + seconds(30)),
        clock(20_000_000, now),
    );
    assert_eq!(one.apart(&same), Duration::ZERO);
    let quick = ServerInfo::default();
    quick.set_clock("server_time_usec:131000000", now + seconds(30), now + seconds(30));
    assert_eq!(one.apart(&quick.clock().unwrap()), second, "the middle between request and answer");
    // The possible errors of both readings are subtracted.
    assert_eq!((one.apart(&ahead), ahead.apart(&one)), (seconds(9), seconds(9)));
    assert_eq!(one.apart(&behind), seconds(79));
    // A reading counts for the midpoint between request and response.
    let server_info = ServerInfo::default();
    server_info.set_clock("server_time_usec:102000000\r\n", now, now + seconds(5));
    assert_eq!(one.apart(&server_info.clock().unwrap()), Duration::ZERO);
    let server_info = ServerInfo::default();
    server_info.set_clock("server_time_usec:x", now, now);
    assert_eq!(server_info.clock(), None);
}

#[test]
fn a_server_with_a_negative_uptime_counts_as_just_started() {
    let (server_info, now) = (ServerInfo::default(), Instant::now());
    assert!(server_info.update(&info("a", -3599), now));
    assert!(server_info.is_younger_than(seconds(10), now + seconds(9)));
    assert!(!server_info.is_younger_than(seconds(10), now + seconds(10)));
    assert!(server_info.update(&info("b", i64::MIN), now + seconds(20)));
    assert!(server_info.is_younger_than(seconds(10), now + seconds(29)));
}

#[test]
fn a_run_is_as_old_as_it_was_observed_even_if_its_clock_is_set() {
    let (server_info, now) = (ServerInfo::default(), Instant::now());
    server_info.update(&info("a", 1), now);
    for uptime in [3600, 3, -3599] {
        server_info.update(&info("a", uptime), now + seconds(5));
        assert!(server_info.is_younger_than(seconds(6), now + seconds(5)), "{uptime}");
        assert!(!server_info.is_younger_than(seconds(5), now + seconds(5)), "{uptime}");
    }
    // The server's clock was ahead at the first reading of its age, and the server may have been started just
    // then.
    let server_info = ServerInfo::default();
    server_info.update(&info("a", 3600), now);
    server_info.update(&info("a", 3), now + seconds(5));
    assert!(server_info.is_younger_than(seconds(6), now + seconds(5)));
}

#[test]
fn a_server_that_took_over_others_data_is_young_though_it_was_not_restarted() {
    let (known, now) = (ServerInfo::default(), Instant::now());
    let with_data = |data: &str| format!("{}master_replid:{data}\r\nmaster_replid2:x\r\n", info("a", 3600));
    known.update(&with_data("one"), now);
    known.update(&with_data("one"), now + seconds(5));
    assert!(!known.is_younger_than(seconds(10), now + seconds(5)));
    known.update(&with_data("two"), now + seconds(5));
    assert!(known.is_younger_than(seconds(10), now + seconds(14)));
    assert!(!known.is_younger_than(seconds(10), now + seconds(15)));
}

#[test]
fn a_server_that_was_a_replica_is_as_old_as_it_was_observed() {
    let (known, now) = (ServerInfo::default(), Instant::now());
    known.distrust_uptime();
    for later in [0, 5] {
        known.update(&info("a", 3600 + later as i64), now + seconds(later));
        known.distrust_uptime();
        assert!(known.is_younger_than(seconds(10), now + seconds(9)));
        assert!(!known.is_younger_than(seconds(10), now + seconds(10)));
    }
    known.update(&info("a", 3609), now + seconds(9));
    assert!(known.is_younger_than(seconds(10), now + seconds(9)));
}

#[test]
fn a_second_id_that_is_not_all_zeros_is_that_of_a_master_it_followed() {
    let with = |id: &str| was_replica(&format!("master_replid:4d0\r\nmaster_replid2:{id}\r\n"));
    assert!(with("4d072dc1c62d5672") && with("x"));
    assert!(!with(&"0".repeat(40)) && !with("") && !was_replica("master_replid:4d0\r\n"));
}

#[test]
fn another_run_whose_uptime_cannot_be_read_is_young() {
    for info in ["run_id:b", "run_id:b\r\nuptime_in_seconds:x", ""] {
        let (server_info, now) = (ServerInfo::default(), Instant::now());
        server_info.update("run_id:a\r\nuptime_in_seconds:3600", now);
        assert!(!server_info.is_younger_than(seconds(10), now + seconds(5)));
        assert!(server_info.update(info, now + seconds(5)), "{info}");
        assert!(server_info.is_younger_than(seconds(10), now + seconds(14)), "{info}");
        assert!(!server_info.is_younger_than(seconds(10), now + seconds(15)), "{info}");
    }
}

#[test]
fn the_same_run_whose_uptime_cannot_be_read_is_as_old_as_before() {
    let (server_info, now) = (ServerInfo::default(), Instant::now());
    server_info.update(&info("a", 3600), now);
    assert!(server_info.update("run_id:a\r\nuptime_in_seconds:x", now + seconds(5)));
    assert!(!server_info.is_younger_than(seconds(3600), now + seconds(5)));
}

#[test]
fn a_server_that_never_reports_its_run_is_trusted_and_one_without_an_uptime_is_young() {
    let (server_info, now) = (ServerInfo::default(), Instant::now());
    for info in ["", "uptime_in_seconds:1"] {
        assert!(!server_info.update(info, now), "{info}");
        assert!(!server_info.is_younger_than(seconds(10), now), "{info}");
    }
    assert!(server_info.update("run_id:a", now));
    assert!(server_info.is_younger_than(seconds(10), now));
}
