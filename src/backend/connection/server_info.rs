//! How long ago a server was started: what it granted before that it may have forgotten.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::lock;

/// What is known of a server's age. Read before any of its answers count: at the beginning of each connection.
#[derive(Debug, Default)]
pub(crate) struct ServerInfo(Mutex<Option<Instance>>, Mutex<Option<ServerClock>>);

/// What a server's clock said, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerClock {
    told: Duration,
    /// In the middle between question and answer.
    at: Instant,
    /// The answer may be off by that much.
    slack: Duration,
}

impl ServerClock {
    /// How far apart two clocks are at the least.
    pub(crate) fn apart(&self, other: &ServerClock) -> Duration {
        let (early, late) = if self.at < other.at { (self, other) } else { (other, self) };
        let expected = early.told.saturating_add(late.at.saturating_duration_since(early.at));
        expected.abs_diff(late.told).saturating_sub(self.slack.saturating_add(other.slack))
    }
}

#[derive(Debug)]
struct Instance {
    /// Of the server, and of its data.
    run: String,
    /// When it was started, at the latest.
    started: Instant,
    /// When it was first seen here.
    first: Instant,
}

impl ServerInfo {
    /// Reads the answer to `INFO`, which is empty where the user has not the right. False: nothing is known of the server's
    /// age, and it counts as old.
    ///
    /// The uptime follows the wall clock. By it a server that was just started may be an hour old, or `-3599` seconds. So the
    /// uptime counts for the first run that is seen here alone, and an `INFO` that can't be read makes no server old:
    ///
    /// 1. A master of a hold restarts without its data.
    /// 2. Its clock is set, or its `INFO` can't be read.
    /// 3. Taken for old, it would grant a second client what the holder still has.
    ///
    /// A run is one of a server over one set of data. A replica that is promoted names its data anew, so what was a master, a
    /// replica and a master again is another run, though it was never restarted: it has what the one had that it followed.
    pub(crate) fn learn(&self, info: &str, now: Instant) -> bool {
        let run = field(info, "run_id").map(|run| {
            let data = field(info, "master_replid").unwrap_or_default();
            format!("{run} {data}")
        });
        let uptime = field(info, "uptime_in_seconds").and_then(|told| told.parse::<i64>().ok());
        // It counts begun seconds.
        let uptime = uptime.map(|told| Duration::from_secs(told.max(1).unsigned_abs() - 1));
        let started = uptime.map(|uptime| now.checked_sub(uptime).unwrap_or(now));
        let mut seen = lock(&self.0);
        *seen = match (seen.take(), run) {
            (Some(known), Some(run)) if known.run == run => {
                let told = started.unwrap_or(known.started);
                Some(Instance { started: told.max(known.started).min(known.first), ..known })
            }
            (Some(_), Some(run)) => Some(Instance { run, started: now, first: now }),
            // It may be another run.
            (Some(known), None) => Some(Instance { started: now, first: now, ..known }),
            (None, Some(run)) => Some(Instance { run, started: started.unwrap_or(now), first: now }),
            (None, None) => None,
        };
        seen.is_some()
    }

    /// The same for its clock.
    pub(crate) fn learn_clock(&self, info: &str, asked: Instant, now: Instant) {
        let told = field(info, "server_time_usec").and_then(|told| told.parse().ok());
        let slack = now.saturating_duration_since(asked) / 2;
        let clock = |told| ServerClock { told: Duration::from_micros(told), at: asked + slack, slack };
        *lock(&self.1) = told.map(clock);
    }

    pub(crate) fn clock(&self) -> Option<ServerClock> {
        *lock(&self.1)
    }

    pub(crate) fn is_younger_than(&self, age: Duration, now: Instant) -> bool {
        let seen = lock(&self.0);
        seen.as_ref().is_some_and(|seen| now.saturating_duration_since(seen.started) < age)
    }
}

pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(run: &str, uptime: i64) -> String {
        format!("# Server\r\nrun_id:{run}\r\nuptime_in_seconds:{uptime}\r\n")
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_server_is_as_old_as_it_says_less_the_second_that_it_has_begun() {
        let (vitals, now) = (ServerInfo::default(), Instant::now());
        assert!(!vitals.is_younger_than(seconds(30), now));
        assert!(vitals.learn(&info("a", 31), now));
        assert!(vitals.is_younger_than(seconds(31), now));
        assert!(!vitals.is_younger_than(seconds(30), now));
        assert!(!vitals.is_younger_than(seconds(60), now + seconds(30)));
    }

    #[test]
    fn a_run_that_followed_another_is_no_older_than_it_was_seen() {
        let (vitals, now) = (ServerInfo::default(), Instant::now());
        vitals.learn(&info("a", 3600), now);
        // Its wall clock was set forward after the restart.
        vitals.learn(&info("b", 3600), now + seconds(5));
        assert!(vitals.is_younger_than(seconds(10), now + seconds(14)));
        vitals.learn(&info("b", 3605), now + seconds(14));
        assert!(vitals.is_younger_than(seconds(10), now + seconds(14)));
        assert!(!vitals.is_younger_than(seconds(10), now + seconds(15)));
    }

    #[test]
    fn clocks_are_apart_by_what_the_time_between_two_looks_does_not_explain() {
        let (now, second) = (Instant::now(), seconds(1));
        let clock = |told: u64, asked: Instant| {
            let vitals = ServerInfo::default();
            vitals.learn_clock(&format!("server_time_usec:{told}\r\n"), asked, asked + second);
            vitals.clock().unwrap()
        };
        let one = clock(100_000_000, now);
        assert_eq!(one.apart(&one), Duration::ZERO);
        let (same, ahead, behind) = (
            clock(130_000_000, now + seconds(30)),
            clock(140_000_000, now + seconds(30)),
            clock(20_000_000, now),
        );
        assert_eq!(one.apart(&same), Duration::ZERO);
        // Less what the two answers may be off.
        assert_eq!((one.apart(&ahead), ahead.apart(&one)), (seconds(9), seconds(9)));
        assert_eq!(one.apart(&behind), seconds(79));
        let vitals = ServerInfo::default();
        vitals.learn_clock("server_time_usec:x", now, now);
        assert_eq!(vitals.clock(), None);
    }

    #[test]
    fn a_negative_uptime_is_that_of_a_server_that_was_just_started() {
        let (vitals, now) = (ServerInfo::default(), Instant::now());
        assert!(vitals.learn(&info("a", -3599), now));
        assert!(vitals.is_younger_than(seconds(10), now + seconds(9)));
        assert!(!vitals.is_younger_than(seconds(10), now + seconds(10)));
        assert!(vitals.learn(&info("b", i64::MIN), now + seconds(20)));
        assert!(vitals.is_younger_than(seconds(10), now + seconds(29)));
    }

    #[test]
    fn a_run_is_as_old_as_it_was_seen_however_its_clock_is_set_meanwhile() {
        let (vitals, now) = (ServerInfo::default(), Instant::now());
        vitals.learn(&info("a", 1), now);
        for uptime in [3600, 3, -3599] {
            vitals.learn(&info("a", uptime), now + seconds(5));
            assert!(vitals.is_younger_than(seconds(6), now + seconds(5)), "{uptime}");
            assert!(!vitals.is_younger_than(seconds(5), now + seconds(5)), "{uptime}");
        }
    }

    #[test]
    fn a_server_that_took_over_others_data_is_young_though_it_was_not_restarted() {
        let (vitals, now) = (ServerInfo::default(), Instant::now());
        let told = |data: &str| format!("{}master_replid:{data}\r\nmaster_replid2:x\r\n", info("a", 3600));
        vitals.learn(&told("one"), now);
        vitals.learn(&told("one"), now + seconds(5));
        assert!(!vitals.is_younger_than(seconds(10), now + seconds(5)));
        vitals.learn(&told("two"), now + seconds(5));
        assert!(vitals.is_younger_than(seconds(10), now + seconds(14)));
        assert!(!vitals.is_younger_than(seconds(10), now + seconds(15)));
    }

    #[test]
    fn another_run_whose_uptime_cannot_be_read_is_young() {
        for info in ["run_id:b", "run_id:b\r\nuptime_in_seconds:x", ""] {
            let (vitals, now) = (ServerInfo::default(), Instant::now());
            vitals.learn("run_id:a\r\nuptime_in_seconds:3600", now);
            assert!(!vitals.is_younger_than(seconds(10), now + seconds(5)));
            assert!(vitals.learn(info, now + seconds(5)), "{info}");
            assert!(vitals.is_younger_than(seconds(10), now + seconds(14)), "{info}");
            assert!(!vitals.is_younger_than(seconds(10), now + seconds(15)), "{info}");
        }
    }

    #[test]
    fn the_same_run_whose_uptime_cannot_be_read_is_as_old_as_before() {
        let (vitals, now) = (ServerInfo::default(), Instant::now());
        vitals.learn(&info("a", 3600), now);
        assert!(vitals.learn("run_id:a\r\nuptime_in_seconds:x", now + seconds(5)));
        assert!(!vitals.is_younger_than(seconds(3600), now + seconds(5)));
    }

    #[test]
    fn a_server_that_never_reports_its_run_is_trusted_and_one_without_an_uptime_is_young() {
        let (vitals, now) = (ServerInfo::default(), Instant::now());
        for info in ["", "uptime_in_seconds:1"] {
            assert!(!vitals.learn(info, now), "{info}");
            assert!(!vitals.is_younger_than(seconds(10), now), "{info}");
        }
        assert!(vitals.learn("run_id:a", now));
        assert!(vitals.is_younger_than(seconds(10), now));
    }
}
