//! Processes that stand in the line but don't take the lock.

use std::time::Duration;

use nestlock::{ErrorKind, Guard, Locks, Result};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{LINE, granted, holder, line, process, session, stand, tidy, waits};
use crate::support::proxy::{Proxy, Which};
use crate::support::server::Server;
use crate::support::{SECOND, SOON_OVER, builder, eventually, soon, without_timers};

/// The state in which `stock` is held and two processes wait for it.
struct Waiting {
    guard: Guard,
    first: JoinHandle<Result<Guard>>,
    second: JoinHandle<Result<Guard>>,
    /// The line: both members, in order.
    both: Vec<String>,
    _processes: [Locks; 3],
}

/// Starts two waiters. The first one is connected through the proxy.
async fn two_wait(server: &Server, proxy: &Proxy) -> Waiting {
    let (holds, two) = (process(&server.url()).await, process(&server.url()).await);
    let one = process(&proxy.url()).await;
    let guard = holds.mutex("stock").lock().await.unwrap();
    let first = waits(&one);
    stand(server, 1).await;
    let second = waits(&two);
    stand(server, 2).await;
    let both = line(server).await;
    Waiting { guard, first, second, both, _processes: [holds, one, two] }
}

#[tokio::test]
async fn who_is_dropped_or_waits_no_longer_leaves_the_line() {
    let server = Server::start().await;
    let holds = process(&server.url()).await;
    let guard = holds.mutex("stock").lock().await.unwrap();
    let (one, two) = (process(&server.url()).await, process(&server.url()).await);
    let first = waits(&one);
    stand(&server, 1).await;
    let second = waits(&two);
    stand(&server, 2).await;
    let both = line(&server).await;
    first.abort();
    stand(&server, 1).await;
    assert_eq!(line(&server).await, both[1..]);
    let error = soon("its end", one.mutex("stock").lock().within(SOON_OVER)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    stand(&server, 1).await;
    assert_eq!(line(&server).await, both[1..]);
    second.abort();
    stand(&server, 0).await;
    guard.release().await.unwrap();
    tidy(&server).await;
}

/// 1. The lock is handed to a process whose messages are late. 2. The request of that process is dropped.
#[tokio::test]
async fn what_was_handed_to_one_that_is_dropped_is_the_next_ones_at_once() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let Waiting { guard, first, second, both, .. } = two_wait(&server, &proxy).await;
    let _late = proxy.half_open(Which::Subscribers);
    guard.release().await.unwrap();
    assert_eq!(holder(&server).await, Some((both[0].clone(), 0)));
    first.abort();
    let second = granted(second).await;
    assert_eq!((session(&second), holder(&server).await), (&*both[1], Some((both[1].clone(), 1))));
    second.release().await.unwrap();
    tidy(&server).await;
}

/// 1. The lock is handed to a process, and that process asks. 2. Its request is dropped before the answer arrives.
#[tokio::test]
async fn what_was_granted_to_one_that_is_dropped_is_the_next_ones_at_once() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let Waiting { guard, mut first, second, .. } = two_wait(&server, &proxy).await;
    let asks = proxy.on(|c| c.is("acquire")).times(1).hold();
    guard.release().await.unwrap();
    tokio::select! {
        _ = asks.seen() => {
            first.abort();
            asks.let_through().await;
        }
        // An attempt that was already under way has got the lock.
        guard = &mut first => drop(guard),
    }
    granted(second).await.release().await.unwrap();
    tidy(&server).await;
}

/// The process has no subscription left, so the server itself passes it over.
#[tokio::test]
async fn a_process_whose_connections_have_ended_is_passed_over() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let Waiting { guard, first, second, both, .. } = two_wait(&server, &proxy).await;
    let away = proxy.refuse().await;
    proxy.reset(Which::All).await;
    eventually("the end of its subscriptions", async || {
        let heard: Vec<String> = server.all_channels().await;
        heard
            .iter()
            .filter(|channel| channel.starts_with("nestlock_wake:") && !channel.ends_with('}'))
            .count()
            == 1
    })
    .await;
    guard.release().await.unwrap();
    let second = granted(second).await;
    assert_eq!(session(&second), both[1]);
    // The process connects again, and enters the line again.
    drop(away);
    stand(&server, 1).await;
    second.release().await.unwrap();
    granted(first).await.release().await.unwrap();
    tidy(&server).await;
}

/// A monitor is subscribed to all channels: it receives each hint, but waits for no lock.
#[tokio::test]
async fn those_who_are_gone_are_passed_over_beside_a_monitor_of_all_channels() {
    let server = Server::start().await;
    let mut monitor = server.admin().await;
    redis::cmd("PSUBSCRIBE").arg("*").exec_async(&mut monitor).await.unwrap();
    let (holds, one) = (process(&server.url()).await, process(&server.url()).await);
    let two = process(&server.url()).await;
    let mut guard = holds.mutex("stock").lock().await.unwrap();
    let first = waits(&one);
    stand(&server, 1).await;
    let gone = async |score: &str, number: usize| {
        let member = format!("nestlock_wake:4be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a:{number}");
        server.ask::<()>(&["ZADD", LINE, score, &member]).await;
    };
    // Two processes that are gone stand before the first waiter, and two after it.
    for (number, score) in ["-2", "-1", "9e15", "9e15"].into_iter().enumerate() {
        gone(score, number).await;
    }
    stand(&server, 5).await;
    let second = waits(&two);
    stand(&server, 6).await;
    for waiter in [first, second] {
        guard.release().await.unwrap();
        guard = granted(waiter).await;
    }
    guard.release().await.unwrap();
    tidy(&server).await;
}

/// The server still counts the process as subscribed, but no messages reach it.
#[tokio::test]
async fn a_process_that_is_out_of_reach_keeps_the_next_one_waiting_for_a_term() {
    const TERM: Duration = Duration::from_secs(4);
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let connect = async |url: String| {
        let fair = without_timers(builder(&url)).fair(true).node_timeout(TERM / 2).lease(60 * SECOND);
        fair.connect().await.unwrap()
    };
    let (holds, two, three) =
        (connect(server.url()).await, connect(server.url()).await, connect(server.url()).await);
    let one = connect(proxy.url()).await;
    let guard = holds.mutex("stock").lock().await.unwrap();
    let first = waits(&one);
    stand(&server, 1).await;
    let second = waits(&two);
    stand(&server, 2).await;
    let third = waits(&three);
    stand(&server, 3).await;
    let all = line(&server).await;
    let _silence = proxy.half_open(Which::All);
    let released = Instant::now();
    guard.release().await.unwrap();
    let second = granted(second).await;
    let waited = released.elapsed();
    assert_eq!(session(&second), all[1]);
    assert!(waited < 5 * TERM, "{waited:?}");
    second.release().await.unwrap();
    let third = granted(third).await;
    assert_eq!(session(&third), all[2]);
    third.release().await.unwrap();
    first.abort();
}

/// Each process connects again, and keeps its turn or enters the line again.
#[tokio::test]
async fn whose_connections_are_killed_gets_it_all_the_same() {
    let server = Server::start().await;
    let holds = process(&server.url()).await;
    let guard = holds.mutex("stock").lock().await.unwrap();
    let before = server.client_ids().await;
    let mut processes = Vec::new();
    let mut waiters = Vec::new();
    for count in 1..=3 {
        // These processes have timers: an attempt that is cut off pauses before the next one.
        let locks = builder(&server.url()).fair(true).connect().await.unwrap();
        waiters.push(waits(&locks));
        processes.push(locks);
        stand(&server, count).await;
    }
    for id in server.client_ids().await.difference(&before) {
        let _ = server.try_ask::<()>(&["CLIENT", "KILL", "ID", &id.to_string()]).await;
    }
    guard.release().await.unwrap();
    // The order in which they get the lock depends on which one connects first.
    let each = waiters.into_iter().map(async |waiter| granted(waiter).await.release().await.unwrap());
    futures::future::join_all(each).await;
    tidy(&server).await;
}

#[tokio::test]
async fn a_process_that_is_closed_leaves_nothing_behind() {
    let server = Server::start().await;
    let (holds, one) = (process(&server.url()).await, process(&server.url()).await);
    let guard = holds.mutex("stock").lock().await.unwrap();
    let two = process(&server.url()).await;
    let first = waits(&one);
    stand(&server, 1).await;
    let second = waits(&two);
    stand(&server, 2).await;
    let both = line(&server).await;
    soon("its end", one.close()).await.unwrap();
    soon("its error", first).await.unwrap().unwrap_err();
    assert_eq!(line(&server).await, both[1..]);
    guard.release().await.unwrap();
    let second = granted(second).await;
    assert_eq!(server.all_keys().await, ["stock"]);
    second.release().await.unwrap();
    for locks in [holds, two] {
        locks.close().await.unwrap();
    }
    assert!(server.all_keys().await.is_empty());
    eventually("the last subscription's end", async || server.all_channels().await.is_empty()).await;
}

#[tokio::test]
async fn a_line_that_is_lost_with_its_server_costs_nobody_the_lock() {
    let server = Server::start().await;
    let holds = process(&server.url()).await;
    let guard = holds.mutex("stock").lock().await.unwrap();
    let mut processes = Vec::new();
    let mut waiters = Vec::new();
    for count in 1..=3 {
        let locks = process(&server.url()).await;
        waiters.push(waits(&locks));
        processes.push(locks);
        stand(&server, count).await;
    }
    server.restart_empty().await;
    let inside = std::sync::atomic::AtomicUsize::new(0);
    let each = waiters.into_iter().map(async |waiter| {
        let guard = granted(waiter).await;
        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
        tokio::task::yield_now().await;
        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
        guard.release().await.unwrap();
    });
    futures::future::join_all(each).await;
    guard.release().await.unwrap_err();
    tidy(&server).await;
}

/// A server that has restarted with data of a moment ago has fields in its line that have left it. Their processes live, and get the hints.
#[tokio::test]
async fn fields_that_their_processes_do_not_know_keep_nobody_waiting() {
    let server = Server::start().await;
    let holds = process(&server.url()).await;
    let [idle, one, two] =
        [process(&server.url()).await, process(&server.url()).await, process(&server.url()).await];
    // This one is subscribed, since it has waited for a lock.
    let other = holds.mutex("other").lock().await.unwrap();
    let waited = line::waits(&idle, "other");
    line::stand(&server, "other", 1).await;
    let known = line::members(&server, "other").await;
    other.release().await.unwrap();
    granted(waited).await.release().await.unwrap();

    let guard = holds.mutex("stock").lock().await.unwrap();
    let first = waits(&one);
    stand(&server, 1).await;
    let second = waits(&two);
    stand(&server, 2).await;
    let both = line(&server).await;
    for (score, session) in (1..).zip([&known[0], &both[0], &both[1], &both[0]]) {
        let member = format!("nestlock_wake:{session}:{}", 900_000 + score);
        server.ask::<u64>(&["ZADD", LINE, &score.to_string(), &member]).await;
    }
    guard.release().await.unwrap();
    for (waiter, session_then) in [first, second].into_iter().zip(&both) {
        let guard = granted(waiter).await;
        assert_eq!(session(&guard), *session_then);
        guard.release().await.unwrap();
    }
    tidy(&server).await;
}

/// A late hint for a field that has become a claim.
#[tokio::test]
async fn a_hint_for_an_unknown_field_ends_no_claim() {
    let server = Server::start().await;
    let one = process(&server.url()).await;
    let claim = one.mutex("stock").lock().await.unwrap().into_claim().await.unwrap();
    let waits_too = line::waits(&one, "stock");
    stand(&server, 1).await;
    let (session, number) = claim.hold_id().rsplit_once(':').unwrap();
    let (channel, hint) = (format!("nestlock_wake:{session}"), format!("{number} - stock"));
    let before = server.scripts_run().await;
    assert_eq!(server.ask::<u64>(&["PUBLISH", &channel, &hint]).await, 1);
    // The waiter asks once more, and the field is declined.
    eventually("two scripts", async || server.scripts_run().await >= before + 2).await;
    let resumed = one.mutex("stock").resume(&claim).await.unwrap();
    resumed.release().await.unwrap();
    granted(waits_too).await.release().await.unwrap();
    tidy(&server).await;
}
