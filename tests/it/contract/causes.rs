//! Every way to lose a hold is reported.

use nestlock::{ErrorKind, Loss};

use super::{Home, LONG};
use crate::support::{assert_gone, soon, watched};

#[tokio::test]
async fn a_key_that_was_deleted_is_a_loss() {
    let home = Home::start().await;
    let (_locks, guard) = watched(home.builder()).await;
    home.lose("stock").await;
    assert_gone(guard).await;
}

#[tokio::test]
async fn a_forced_release_by_another_process_is_a_loss() {
    let home = Home::start().await;
    let (_locks, guard) = watched(home.builder()).await;
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

/// The process is subscribed because it has a waiter, so a message reports the loss. The first renewal would come only after the test.
#[tokio::test]
async fn a_forced_release_is_noticed_at_once_where_somebody_waits() {
    let home = Home::start().await;
    let ours = home.builder().lease(LONG).connect().await.unwrap();
    let guard = ours.mutex("stock").lock().await.unwrap();
    let waiting = tokio::spawn(ours.mutex("stock").lock());
    home.listened().await;
    // The subscription is confirmed before this process gets its next answer.
    assert!(ours.mutex("stock").is_locked().await.unwrap());
    let others = home.locks().await;
    others.mutex("stock").force_release().await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    next.release().await.unwrap();
}
