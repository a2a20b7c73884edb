//! Grant, wait and release: the purpose of a lock.

use std::time::Duration;

use nestlock::ErrorKind;

use super::Home;
use crate::support::{SOON_OVER, soon};

#[tokio::test]
async fn a_lock_is_taken_and_released() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock");
    let guard = soon("the lock", stock.lock()).await.unwrap();
    assert!(stock.is_held());
    assert!(stock.is_locked().await.unwrap());
    assert_eq!(home.count("stock", guard.hold_id()).await, Some(1));
    guard.release().await.unwrap();
    assert!(!stock.is_held());
    assert!(!stock.is_locked().await.unwrap());
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn nested_holds_count_up_and_down() {
    let home = Home::start().await;
    let locks = super::counting(&home).await;
    let stock = locks.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let inner = stock.lock().await.unwrap();
    assert_eq!((outer.depth(), inner.depth(), stock.hold_count()), (1, 2, 2));
    assert_eq!(outer.hold_id(), inner.hold_id());
    assert_eq!(home.count("stock", outer.hold_id()).await, Some(2));
    inner.release().await.unwrap();
    assert_eq!(home.count("stock", outer.hold_id()).await, Some(1));
    outer.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn another_task_waits_for_the_release() {
    let home = Home::start().await;
    let locks = home.builder().local_handoff(Duration::ZERO).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let theirs = stock.clone();
    let waiter = tokio::spawn(async move { theirs.lock().await.unwrap().hold_id().to_owned() });
    let other = stock.clone();
    assert!(tokio::spawn(async move { other.try_lock().await.unwrap().is_none() }).await.unwrap());
    let mine = guard.hold_id().to_owned();
    guard.release().await.unwrap();
    assert_ne!(soon("the waiter", waiter).await.unwrap(), mine);
}

#[tokio::test]
async fn another_process_waits_for_the_release() {
    let home = Home::start().await;
    let (ours, theirs) = (home.locks().await, home.locks().await);
    let guard = ours.mutex("stock").lock().await.unwrap();
    assert!(theirs.mutex("stock").try_lock().await.unwrap().is_none());
    let late = theirs.mutex("stock").lock().within(SOON_OVER).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout);
    let stock = theirs.mutex("stock");
    let waiter = tokio::spawn(async move { stock.lock().await.unwrap().release().await });
    home.listened().await;
    guard.release().await.unwrap();
    soon("the waiter", waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_dropped_guard_is_released_before_the_next_request() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock");
    for _ in 0..100 {
        drop(stock.try_lock().await.unwrap().expect("it is free: the guard before was dropped"));
        assert!(!stock.is_held());
    }
    locks.close().await.unwrap();
    assert!(home.keys().await.is_empty());
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_run_gives_back_what_its_work_made() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock");
    let deep = stock.run(|_| stock.run(async |_| (stock.hold_count(), 7))).await.unwrap().unwrap();
    assert_eq!(deep, (2, 7));
    assert!(home.keys().await.is_empty());
    let guard = stock.lock().owner(&nestlock::Owner::new()).await.unwrap();
    assert!(stock.try_lock().run(async |_| {}).await.unwrap().is_none());
    guard.release().await.unwrap();
    assert_eq!(stock.try_lock().run(async |_| 1).await.unwrap(), Some(1));
}
