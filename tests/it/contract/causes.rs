//! Every way to lose a hold is told.

use nestlock::{ErrorKind, Guard, Locks, Loss};
use tokio::time::Instant;

use super::{Home, LONG, SECOND};
use crate::support::soon;

/// A hold that is looked at by its renewal every half second.
async fn watched(home: &Home) -> (Locks, Guard) {
    let locks = home.builder().lease(SECOND + SECOND / 2).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    (locks, guard)
}

async fn assert_gone(guard: Guard) {
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
    assert!(guard.is_lost());
    let error = guard.release().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.loss(), error.lock()),
        (ErrorKind::Lost, Some(Loss::Gone), Some("stock"))
    );
}

#[tokio::test]
async fn a_key_that_was_deleted_is_a_loss() {
    let home = Home::start().await;
    let (_locks, guard) = watched(&home).await;
    home.lose("stock").await;
    assert_gone(guard).await;
}

#[tokio::test]
async fn a_forced_release_by_another_process_is_a_loss() {
    let home = Home::start().await;
    let (_locks, guard) = watched(&home).await;
    let others = home.locks().await;
    assert!(others.mutex("stock").force_release().await.unwrap());
    assert_gone(guard).await;
    assert!(!others.mutex("stock").force_release().await.unwrap());
}

#[tokio::test]
async fn a_forced_release_by_the_same_process_is_noticed_at_once() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    assert!(locks.mutex("stock").force_release().await.unwrap());
    assert_gone(guard).await;
    locks.mutex("stock").lock().await.unwrap().release().await.unwrap();
}

/// By the reconnection, long before the first renewal after 10 s.
#[tokio::test]
async fn a_server_that_was_restarted_empty_is_noticed_at_once() {
    let home = Home::start().await;
    let guard = home.locks().await.mutex("stock").lock().await.unwrap();
    home.restart_empty().await;
    let back = Instant::now();
    assert_gone(guard).await;
    assert!(back.elapsed() < 5 * SECOND);
}

/// A waiter makes its process listen, so that a message tells, long before the first renewal after 10 s.
#[tokio::test]
async fn a_forced_release_is_noticed_at_once_where_somebody_waits() {
    let home = Home::start().await;
    let ours = home.locks().await;
    let guard = ours.mutex("stock").lock().await.unwrap();
    let waiting = tokio::spawn(ours.mutex("stock").lock());
    home.listened().await;
    // Its subscription is confirmed before the next answer to this process.
    assert!(ours.mutex("stock").is_locked().await.unwrap());
    let others = home.locks().await;
    let forced = Instant::now();
    others.mutex("stock").force_release().await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(forced.elapsed() < 5 * SECOND);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    next.release().await.unwrap();
}
