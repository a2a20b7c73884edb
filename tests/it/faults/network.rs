//! Lost replies, and connections that are reset or half-open, at each step of a lock's life.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nestlock::{ErrorKind, Locks};

use super::{LONG, QUICK, tidy};
use crate::streams::{Over, over_each_stream};
use crate::support::proxy::{Fault, On, Which};
use crate::support::server::Server;
use crate::support::{eventually, options, soon};

/// Makes the network fail at one command.
type Deed = fn(On<'_>) -> Fault;

const DEEDS: [(&str, Deed); 4] = [
    ("reply lost", |on| on.drop_reply()),
    ("reply lost, reset", |on| on.drop_reply_and_reset()),
    ("reply lost, closed", |on| on.drop_reply_and_close()),
    ("never arrived, reset", |on| on.lose_and_reset()),
];

/// Connects with leases that outlive the test, so only a settle or another request frees a lock.
async fn connect(server: impl Into<nestlock::Server>) -> Locks {
    options(server).lease(LONG).node_timeout(QUICK).poll_interval(QUICK).connect().await.unwrap()
}

/// Starts a task whose request waits for the lock.
fn waiting(locks: &Locks) -> tokio::task::JoinHandle<()> {
    let stock = locks.mutex("stock");
    tokio::spawn(async move { stock.lock().await.unwrap().release().await.unwrap() })
}

over_each_stream!(
    promise_6_a_free_lock_is_taken_though_an_acquire_fails,
    promise_6_a_re_entry_is_granted_though_an_acquire_fails,
    promise_6_a_waiter_gets_the_lock_though_its_second_acquire_fails,
    promise_6_a_waiter_gets_the_lock_though_the_release_fails,
    promise_6_a_waiter_gets_the_lock_though_its_subscription_fails,
    promise_6_a_waiter_gets_the_lock_though_its_listener_is_half_open,
    a_half_open_command_connection_is_replaced,
    connections_reset_at_any_time_neither_lose_a_hold_nor_leave_one,
    a_hold_stands_though_the_server_is_frozen_for_longer_than_its_timeout,
);

async fn promise_6_a_free_lock_is_taken_though_an_acquire_fails(over: Over) {
    for (what, deed) in DEEDS {
        let server = Server::start().await;
        let (proxy, given) = over.proxy(&server);
        let locks = connect(given).await;
        let fault = deed(proxy.on(|c| c.is("acquire")).times(1));
        let guard = soon(what, locks.mutex("stock").lock()).await.unwrap();
        fault.done().await;
        assert_eq!(server.ask::<i64>(&["HLEN", "stock"]).await, 1, "{what}");
        guard.release().await.unwrap();
        tidy(&server).await;
    }
}

async fn promise_6_a_re_entry_is_granted_though_an_acquire_fails(over: Over) {
    for (what, deed) in DEEDS {
        let server = Server::start().await;
        let (proxy, given) = over.proxy(&server);
        let locks = connect(given).await;
        let stock = locks.mutex("stock");
        let outer = stock.lock().await.unwrap();
        let fault = deed(proxy.on(|c| c.is("acquire")).times(1));
        let inner = soon(what, stock.lock()).await.unwrap();
        fault.done().await;
        assert_eq!(inner.depth(), 2, "{what}");
        assert_eq!(server.ask::<String>(&["HGET", "stock", outer.hold_id()]).await, "2", "{what}");
        inner.release().await.unwrap();
        assert_eq!(server.ask::<String>(&["HGET", "stock", outer.hold_id()]).await, "1", "{what}");
        outer.release().await.unwrap();
        tidy(&server).await;
    }
}

async fn promise_6_a_waiter_gets_the_lock_though_its_second_acquire_fails(over: Over) {
    for (what, deed) in DEEDS {
        let server = Server::start().await;
        let (proxy, given) = over.proxy(&server);
        let (holder, locks) = (connect(server.url()).await, connect(given).await);
        let guard = holder.mutex("stock").lock().await.unwrap();
        let fault = deed(proxy.on(|c| c.is("acquire")).skip(1).times(1));
        let waits = waiting(&locks);
        fault.done().await;
        guard.release().await.unwrap();
        soon(what, waits).await.unwrap();
        tidy(&server).await;
    }
}

async fn promise_6_a_waiter_gets_the_lock_though_the_release_fails(over: Over) {
    for dropped in [false, true] {
        for (what, deed) in DEEDS {
            let server = Server::start().await;
            let (proxy, given) = over.proxy(&server);
            let (holder, locks) = (connect(given).await, connect(server.url()).await);
            let guard = holder.mutex("stock").lock().await.unwrap();
            let waits = waiting(&locks);
            eventually("the waiter", async || !server.channels().await.is_empty()).await;
            let fault = deed(proxy.on(|c| c.is("release")).times(1));
            if dropped {
                drop(guard);
            } else if let Err(error) = soon(what, guard.release()).await {
                // It is unknown whether the release ran, so the error is not `Lost`.
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
            }
            fault.done().await;
            soon(what, waits).await.unwrap();
            tidy(&server).await;
        }
    }
}

async fn promise_6_a_waiter_gets_the_lock_though_its_subscription_fails(over: Over) {
    for (what, deed) in DEEDS {
        let server = Server::start().await;
        let (proxy, given) = over.proxy(&server);
        let (holder, locks) = (connect(server.url()).await, connect(given).await);
        let guard = holder.mutex("stock").lock().await.unwrap();
        let fault = deed(proxy.on(|c| c.is("subscribe")).times(1));
        let waits = waiting(&locks);
        fault.done().await;
        guard.release().await.unwrap();
        soon(what, waits).await.unwrap();
        drop((locks, proxy));
        tidy(&server).await;
    }
}

async fn promise_6_a_waiter_gets_the_lock_though_its_listener_is_half_open(over: Over) {
    let server = Server::start().await;
    let (proxy, given) = over.proxy(&server);
    let (holder, locks) = (connect(server.url()).await, connect(given).await);
    let guard = holder.mutex("stock").lock().await.unwrap();
    let waits = waiting(&locks);
    eventually("the waiter", async || !server.channels().await.is_empty()).await;
    let _dead = proxy.half_open(Which::Subscribers);
    guard.release().await.unwrap();
    soon("the waiter", waits).await.unwrap();
}

async fn a_half_open_command_connection_is_replaced(over: Over) {
    let server = Server::start().await;
    let (proxy, given) = over.proxy(&server);
    let locks = connect(given).await;
    let guard = locks.mutex("held").lock().await.unwrap();
    drop(proxy.half_open(Which::Commands));
    let stock = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    assert!(!guard.is_lost());
    soon("a release", guard.release()).await.unwrap();
    soon("a release", stock.release()).await.unwrap();
    tidy(&server).await;
}

async fn connections_reset_at_any_time_neither_lose_a_hold_nor_leave_one(over: Over) {
    let server = Server::start().await;
    let (proxy, given) = over.proxy(&server);
    let patient = options(given).lease(LONG).node_timeout(QUICK).unavailable_after(Duration::MAX);
    let locks = patient.connect().await.unwrap();
    // All users go on until enough connections have been reset, however busy the machine is.
    let enough = Arc::new(AtomicBool::new(false));
    let users: Vec<_> = (0..6)
        .map(|at| {
            let (mutex, enough) = (locks.mutex(format!("stock:{}", at % 2)), enough.clone());
            tokio::spawn(async move {
                let mut rounds = 0;
                while rounds < 20 || !enough.load(Ordering::SeqCst) {
                    rounds += 1;
                    let guard = soon("the lock", mutex.lock()).await.unwrap();
                    let inner = soon("a re-entry", mutex.lock()).await.unwrap();
                    for guard in [inner, guard] {
                        if let Err(error) = soon("a release", guard.release()).await {
                            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                        }
                    }
                }
            })
        })
        .collect();
    let mut resets = 0;
    // Over TLS a new connection takes longer before it can be used.
    let mut longest = if matches!(over, Over::Tcp | Over::Unix) { 80 } else { 160 };
    while !users.iter().all(|user| user.is_finished()) {
        resets += proxy.reset(Which::All).await;
        enough.store(resets > 3, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(rand::random_range(5..longest))).await;
        // On a busy machine all connections could end before any command is answered.
        longest += 10;
    }
    for user in users {
        user.await.unwrap();
    }
    assert!(resets > 3, "{resets}");
    tidy(&server).await;
}

async fn a_hold_stands_though_the_server_is_frozen_for_longer_than_its_timeout(over: Over) {
    let server = Server::start().await;
    let (_proxy, given) = over.proxy(&server);
    let locks = connect(given).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    server.freeze();
    let error = soon("an attempt", locks.mutex("other").try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.thaw();
    soon("the lock", locks.mutex("other").lock()).await.unwrap().release().await.unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    tidy(&server).await;
}
