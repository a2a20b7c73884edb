use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use super::*;
use crate::backend::testing::fakes::{FakeServer, array, usual};
use crate::base::telemetry::testing::Recorder;

fn named(epoch: u64, being_replaced: bool) -> Report {
    Report::Master(ReportedMaster { host: "host".into(), port: 1, epoch, being_replaced })
}

#[tokio::test(start_paused = true)]
async fn a_report_that_decides_does_not_wait_for_a_sentinel_that_hangs() {
    let mut queries = Tasks::new();
    queries.spawn(async { (0, named(2, false)) });
    queries.spawn(pending());
    queries.spawn(async {
        sleep(GRACE / 10).await;
        (2, named(2, true))
    });
    let since = Instant::now();
    let reports = gather(queries, |named| named.being_replaced).await;
    assert_eq!(reports.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0, 2]);
    assert!(since.elapsed() < GRACE);
}

#[tokio::test(start_paused = true)]
async fn a_sentinel_that_hangs_is_waited_for_as_long_as_the_grace() {
    let mut queries = Tasks::new();
    queries.spawn(async { (0, named(2, false)) });
    queries.spawn(pending());
    let since = Instant::now();
    assert_eq!(gather(queries, |named| named.being_replaced).await.len(), 1);
    assert!((GRACE..GRACE * 2).contains(&since.elapsed()));
}

const SECOND: Duration = Duration::from_secs(1);

/// Returns the answer of a sentinel that names the server at this port, or `None` if the request is for something else.
fn names(port: u16, words: &[&str]) -> Option<String> {
    let port = port.to_string();
    match words {
        ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "stock"] => Some(array(&["master", &port])),
        ["SENTINEL", "MASTER", "stock"] => Some(array(&["ip", "master", "port", &port, "config-epoch", "7"])),
        _ => None,
    }
}

fn sentinels(urls: &[&str]) -> Sentinels {
    let sentinels = urls.iter().map(|url| Server::from(*url)).collect();
    Sentinels::new(&SentinelMaster { sentinels, name: "stock".into() }, None, AddressMap::NONE, SECOND)
        .unwrap()
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[tokio::test(start_paused = true)]
async fn the_master_is_reached_as_the_sentinels_are() {
    use crate::config::Tls;
    let tls = Tls::new().authorities_file("ca.pem");
    let mut sentinels = sentinels(&["redis://one:1"]);
    let _one = FakeServer::start("one", |words| names(7, words).or_else(|| usual(words)));
    assert_eq!(sentinels.endpoint(true, || ()).await.unwrap().to.tls(), None);
    let over_tls = Server::from("rediss://:secret@one:1/3#insecure").tls(tls.clone());
    *sentinels.template = over_tls.destination().unwrap();
    let to = sentinels.endpoint(true, || ()).await.unwrap().to;
    assert_eq!(to.tls(), Some(tls.insecure()));
    assert_eq!(to.addr().to_string(), "master:7");
    assert_eq!((to.redis_settings().password(), to.redis_settings().db()), (Some("secret"), 3));
}

/// Otherwise nobody would learn of it: the next look finds the same master.
#[tokio::test(start_paused = true)]
async fn a_query_for_the_master_reports_that_another_one_is_named() {
    let one = FakeServer::start("one", |words| names(7, words).or_else(|| usual(words)));
    let (sentinels, moved) = (sentinels(&["redis://one:1"]), std::cell::Cell::new(0));
    let ask = async || {
        drop(sentinels.endpoint(false, || moved.set(moved.get() + 1)).await.unwrap());
        moved.get()
    };
    assert_eq!((ask().await, ask().await), (0, 0));
    one.answers(|words| names(8, words).or_else(|| usual(words)));
    assert_eq!((ask().await, ask().await), (1, 1));
}

/// The sentinel answers clients that have logged in differently from those that have not.
#[tokio::test(start_paused = true)]
async fn a_sentinel_that_rejects_the_credentials_is_asked_without_and_another_one_is_not() {
    let urls = ["redis://:secret@one:1"];
    let asked = |server: &FakeServer| server.count("SENTINEL GET-MASTER-ADDR-BY-NAME");
    let logins = |server: &FakeServer| server.count("HELLO 3 AUTH");
    let one = FakeServer::start("one", |words| names(7, words).or_else(|| usual(words)));
    assert_eq!(&*sentinels(&urls).endpoint(true, || ()).await.unwrap().address, "master:7, master `stock`");
    assert_eq!((asked(&one), logins(&one), one.count("HELLO")), (1, 1, 1));

    for refusal in ["WRONGPASS invalid username-password pair", "ERR this sentinel has no passwords"] {
        let without_user = move |words: &[&str]| match words {
            ["HELLO", "3", "AUTH", ..] => Some(format!("-{refusal}\r\n")),
            _ => names(7, words).or_else(|| usual(words)),
        };
        one.answers(without_user);
        let before = (asked(&one), logins(&one), one.count("HELLO"));
        assert_eq!(
            &*sentinels(&urls).endpoint(true, || ()).await.unwrap().address,
            "master:7, master `stock`"
        );
        let since = (asked(&one) - before.0, logins(&one) - before.1, one.count("HELLO") - before.2);
        assert_eq!(since, (1, 1, 2), "{refusal}");
    }

    one.answers(|words| match words {
        ["HELLO", "3", "AUTH", ..] => Some("-WRONGPASS invalid username-password pair\r\n".to_owned()),
        ["HELLO", ..] => {
            Some("-NOAUTH HELLO must be called with the client already authenticated\r\n".to_owned())
        }
        _ => usual(words),
    });
    let error = sentinels(&urls).endpoint(true, || ()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("password is wrong"), "{error}");
}

/// Starts a sentinel that names the server at the stored port.
fn watched() -> (FakeServer, Arc<AtomicU16>) {
    let port = Arc::new(AtomicU16::new(7));
    let named = port.clone();
    let answer = move |words: &[&str]| names(named.load(Ordering::SeqCst), words).or_else(|| usual(words));
    (FakeServer::start("one", answer), port)
}

#[tokio::test(start_paused = true)]
async fn a_message_about_the_master_is_followed_at_once_and_one_about_another_is_not() {
    let log = Recorder::start();
    let (one, port) = watched();
    let sentinels = Arc::new(sentinels(&["redis://one:1"]));
    sentinels.endpoint(true, || ()).await.unwrap();
    let (moves, mut moved) = tokio::sync::mpsc::unbounded_channel();
    let watches = sentinels.clone();
    let watch = tokio::spawn(async move {
        let report = || moves.send(Instant::now()).unwrap();
        watches.watch(report).await;
    });
    // By now there is a subscription, which is itself a hint.
    sleep(SECOND).await;
    let asked = || one.count("SENTINEL GET-MASTER-ADDR-BY-NAME");
    assert_eq!((one.count("SUBSCRIBE"), asked()), (FAILOVER_CHANNELS.len(), 2));
    port.store(8, Ordering::SeqCst);
    one.publish("+switch-master", "stocks master 7 master 8");
    sleep(SECOND).await;
    assert_eq!((asked(), moved.try_recv().is_ok()), (2, false));
    let logged = || (log.count("another server is the master now"), log.count("a failover has begun"));
    assert_eq!(logged(), (0, 0));
    let reported = Instant::now();
    one.publish("+switch-master", "stock master 7 master 8");
    let moved = timeout(POLL, moved.recv()).await.unwrap().unwrap();
    assert!(moved - reported < SECOND);
    assert_eq!((logged(), log.count("server=\"master:8\"")), ((1, 0), 1));
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn a_failover_that_has_begun_is_followed_and_logged() {
    let (log, failing) = (Recorder::start(), Arc::new(AtomicBool::new(false)));
    let begun = failing.clone();
    let one = FakeServer::start("one", move |words| match words {
        ["SENTINEL", "MASTER", "stock"] if begun.load(Ordering::SeqCst) => Some(array(&[
            "ip",
            "master",
            "port",
            "7",
            "config-epoch",
            "7",
            "flags",
            "master,failover_in_progress",
        ])),
        _ => names(7, words).or_else(|| usual(words)),
    });
    let sentinels = Arc::new(sentinels(&["redis://one:1"]));
    sentinels.endpoint(true, || ()).await.unwrap();
    let (moves, mut moved) = tokio::sync::mpsc::unbounded_channel();
    let watches = sentinels.clone();
    let watch = tokio::spawn(async move { watches.watch(|| moves.send(()).unwrap()).await });
    sleep(SECOND).await;
    failing.store(true, Ordering::SeqCst);
    one.publish("+switch-master", "stock master 7 master 8");
    timeout(POLL, moved.recv()).await.unwrap().unwrap();
    let logged = (log.count("another server is the master now"), log.count("a failover has begun"));
    assert_eq!(logged, (0, 1));
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn a_sentinel_that_answers_a_ping_is_listened_to_and_one_that_does_not_is_connected_to_again() {
    let (one, _port) = watched();
    let (sentinels, hint) = (sentinels(&["redis://one:1"]), Arc::new(Notify::new()));
    let listener = tokio::spawn(sentinels.sentinels[0].clone().listen("stock".into(), hint.clone(), SECOND));
    hint.notified().await;
    sleep(10 * QUIET + SECOND).await;
    assert_eq!((one.count("SUBSCRIBE"), one.count("PING")), (FAILOVER_CHANNELS.len(), 10));
    // The sentinel hangs: nothing ends the connection.
    one.answers(|words| if words == ["PING"] { None } else { usual(words) });
    timeout(2 * QUIET, hint.notified()).await.expect("the sentinel is not connected to again");
    assert_eq!(one.count("SUBSCRIBE"), 2 * FAILOVER_CHANNELS.len());
    one.hang_up();
    timeout(SECOND, hint.notified()).await.expect("the sentinel is not connected to again");
    listener.abort();
}
