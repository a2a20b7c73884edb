//! Each kind of error, in the situation that causes it.

use std::error::Error as _;
use std::time::Duration;

use futures::future::join_all;
use nestlock::{ErrorKind, Locks};

use super::is;
use crate::support::proxy::Proxy;
use crate::support::server::{Server, free_port};
use crate::support::{SECOND, builder, locks, soon};

#[tokio::test]
async fn one_attempt_is_made_even_for_zero() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let (holder, locks) = (locks(&server.url()).await, locks(&proxy.url()).await);
    let held = holder.mutex("stock").lock().await.unwrap();
    let asked = proxy.on(|c| c.is("acquire")).watch();
    let error = locks.mutex("stock").lock().within(Duration::ZERO).await.unwrap_err();
    is(&error, ErrorKind::Timeout, Some("stock"), &["somebody else held it"]);
    assert!(asked.seen_now().is_some() && asked.seen_now().is_none());
    held.release().await.unwrap();
    locks.mutex("stock").lock().within(Duration::ZERO).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_at_connect() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let error = Locks::connect(&url).await.unwrap_err();
    is(&error, ErrorKind::Unavailable, None, &["127.0.0.1:", "can't be reached", "check that it runs"]);
    assert!(error.source().is_some());
}

/// Three calls report the paused clock: a request whose time ends before that of its command, a request whose command fails, and `connect`.
#[tokio::test]
async fn a_clock_that_is_paused_beside_a_server_is_reported_in_place_of_the_network() {
    const CLOCK: &[&str] = &["tokio's clock was paused", "`Locks::in_memory`"];
    let server = Server::start().await;
    let locks = builder(&server.url()).node_timeout(2 * SECOND).connect().await.unwrap();
    server.freeze();
    tokio::time::pause();
    for (name, within) in [("soon", 100), ("later", 5000)] {
        let error = locks.mutex(name).lock().within(Duration::from_millis(within)).await.unwrap_err();
        is(&error, ErrorKind::Unavailable, Some(name), CLOCK);
    }
    is(&Locks::connect(server.url()).await.unwrap_err(), ErrorKind::Unavailable, None, CLOCK);
    tokio::time::resume();
    server.thaw();
}

#[tokio::test]
async fn a_server_that_went_away_is_unavailable() {
    let server = Server::start().await;
    let address = format!("127.0.0.1:{}", server.port());
    let locks =
        builder(&server.url()).node_timeout(SECOND).unavailable_after(SECOND).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    server.kill();
    let other = locks.mutex("other");
    for error in [
        soon("try_lock", other.try_lock()).await.unwrap_err(),
        soon("lock", other.lock()).await.unwrap_err(),
        soon("run", other.run(async |_| {})).await.unwrap_err(),
        soon("is_locked", other.is_locked()).await.unwrap_err(),
        soon("remaining_lease", other.remaining_lease()).await.unwrap_err(),
        soon("force_release", other.force_release()).await.unwrap_err(),
    ] {
        is(&error, ErrorKind::Unavailable, Some("other"), &[&address]);
    }
    let error = soon("lock", other.lock()).await.unwrap_err();
    assert!(error.source().is_some(), "the last cause: {error:?}");
    let error = soon("extend", guard.extend(Duration::from_secs(60))).await.unwrap_err();
    is(&error, ErrorKind::Unavailable, Some("stock"), &[]);
    let error = soon("release", guard.release()).await.unwrap_err();
    is(&error, ErrorKind::Unavailable, Some("stock"), &[]);
}

#[tokio::test]
async fn waiters_behind_others_get_the_error_too() {
    let server = Server::start().await;
    let locks =
        builder(&server.url()).node_timeout(SECOND).unavailable_after(SECOND).connect().await.unwrap();
    let stock = locks.mutex("stock");
    for full in [true, false] {
        if full {
            server.set("maxmemory", 1).await;
        } else {
            server.set("maxmemory", 0).await;
            server.freeze();
        }
        // If the server does not answer, a thousand requests one after the other would take a thousand node timeouts.
        let crowd = if full { 10 } else { 1_000 };
        let waiters: Vec<_> = (0..crowd).map(|_| tokio::spawn(stock.run(async |_| {}))).collect();
        for waiter in soon("their ends", join_all(waiters)).await {
            let error = waiter.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
}

#[tokio::test]
async fn a_frozen_server_is_unavailable_to_each_call() {
    let server = Server::start().await;
    let locks =
        builder(&server.url()).node_timeout(SECOND).unavailable_after(SECOND).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    server.freeze();
    let other = locks.mutex("other");
    let error = soon("try_lock", other.try_lock()).await.unwrap_err();
    is(&error, ErrorKind::Unavailable, Some("other"), &["no answer", "1s", "127.0.0.1:"]);
    let error = soon("release", guard.release()).await.unwrap_err();
    is(&error, ErrorKind::Unavailable, Some("stock"), &[]);
    server.thaw();
    crate::support::eventually("the release", async || server.keys().await.is_empty()).await;
}

#[tokio::test]
async fn a_wrong_password_is_denied_at_connect() {
    let server = Server::with(&["--requirepass", "right"]).await;
    let port = server.port();
    for url in [format!("redis://127.0.0.1:{port}"), format!("redis://:wrong@127.0.0.1:{port}")] {
        let error = Locks::connect(&url).await.unwrap_err();
        is(&error, ErrorKind::Denied, None, &["password", "redis://user:password@host:port", "127.0.0.1:"]);
    }
    let error = Locks::connect(format!("redis://nobody:right@127.0.0.1:{port}")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    Locks::connect(format!("redis://:right@127.0.0.1:{port}")).await.unwrap();
}

#[test]
fn a_connect_outside_of_a_runtime_is_an_error_and_no_panic() {
    let error = futures::executor::block_on(Locks::connect("redis://127.0.0.1:1")).unwrap_err();
    is(&error, ErrorKind::Misuse, None, &["tokio runtime"]);
}
