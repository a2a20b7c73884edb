//! Servers that go and come back.

use std::time::Duration;

use nestlock::Loss;

use super::{LONG, tidy};
use crate::support::server::Server;
use crate::support::{builder, eventually, soon};

#[tokio::test]
async fn a_hold_lives_through_a_restart_with_its_data() {
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let locks = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    server.restart().await;
    soon("a re-entry", stock.run(async {})).await.unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn a_hold_is_lost_soon_after_a_restart_without_data() {
    let server = Server::start().await;
    let locks = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    server.restart_empty().await;
    // By the reconnection: a third of the lease is beyond the test.
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
}

#[tokio::test]
async fn who_waits_gets_the_lock_after_a_restart() {
    let server = Server::start().await;
    let connect =
        async || builder(&server.url()).lease(LONG).poll_interval(Duration::MAX).connect().await.unwrap();
    let (one, two) = (connect().await, connect().await);
    let _guard = one.mutex("stock").lock().await.unwrap();
    let stranger = two.mutex("stock");
    let waits = tokio::spawn(async move { stranger.lock().await });
    eventually("the waiter hears", async || !server.channels().await.is_empty()).await;
    server.restart_empty().await;
    let guard = soon("the lock", waits).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_ends_idle_connections_is_no_trouble() {
    let server = Server::with(&["--timeout", "1"]).await;
    let locks = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    for _ in 0..2 {
        let before = server.client_ids().await;
        assert!(!before.is_empty());
        eventually("another connection", async || {
            let now = server.client_ids().await;
            !now.is_empty() && now.is_disjoint(&before)
        })
        .await;
        soon("a re-entry", stock.run(async {})).await.unwrap();
        assert!(!guard.is_lost());
    }
    soon("the release", guard.release()).await.unwrap();
    tidy(&server).await;
}
