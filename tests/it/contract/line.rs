//! The queue of strangers in one process.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use futures::future::join_all;
use nestlock::{ErrorKind, Owner};
use tokio::time::Instant;

use super::{Home, SECOND, crash, foreign_guard, without_timers};
use crate::support::{PATIENCE, SOON_OVER, enlisted, soon};

#[tokio::test]
async fn strangers_of_one_process_are_served_in_the_order_of_their_arrival() {
    let home = Home::start().await;
    let locks = without_timers(&home).connect().await.unwrap();
    let foreign = foreign_guard(&home, "stock").await;
    let stock = locks.mutex("stock");
    let requests: Vec<_> = (0..20).map(|_| enlisted(&stock)).collect();
    let order = Arc::new(StdMutex::new(Vec::new()));
    let tasks: Vec<_> = requests
        .into_iter()
        .enumerate()
        .map(|(number, request)| {
            let order = order.clone();
            tokio::spawn(async move {
                let guard = request.await.unwrap();
                order.lock().unwrap().push(number);
                guard.release().await.unwrap();
            })
        })
        .collect();
    home.asleep(1).await;
    foreign.release().await.unwrap();
    soon("all twenty", join_all(tasks)).await;
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reentry_does_not_wait_behind_strangers() {
    let home = Home::start().await;
    let locks = without_timers(&home).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let strangers: Vec<_> = (0..5).map(|_| tokio::spawn(enlisted(&stock))).collect();
    assert_eq!(soon("a re-entry", stock.lock()).await.unwrap().depth(), 2);
    assert_eq!(stock.try_lock().await.unwrap().expect("a re-entry").depth(), 2);
    outer.release().await.unwrap();
    for stranger in strangers {
        drop(soon("a stranger", stranger).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_request_that_times_out_leaves_its_line() {
    let home = Home::start().await;
    let locks = without_timers(&home).connect().await.unwrap();
    let foreign = foreign_guard(&home, "stock").await;
    let stock = locks.mutex("stock");
    let (begun, limit) = (Instant::now(), SOON_OVER);
    let short = |stock: &nestlock::Mutex| stock.lock().owner(&Owner::new()).within(limit);
    for error in soon("three timeouts", join_all((0..3).map(|_| short(&stock)))).await {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Timeout);
    }
    assert!(begun.elapsed() >= limit);
    let waiting = tokio::spawn(enlisted(&stock));
    foreign.release().await.unwrap();
    drop(soon("the lock", waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_limit_that_ends_behind_a_holder_is_a_timeout() {
    let home = Home::start().await;
    let (ours, theirs) = (home.locks().await, home.locks().await);
    let _foreign = theirs.mutex("stock").lock().await.unwrap();
    let (begun, limit) = (Instant::now(), SOON_OVER);
    let error = ours.mutex("stock").lock().within(limit).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Timeout, Some("stock")));
    assert!(begun.elapsed() >= limit);
    // A wait for a hold of this process times out too, although it sends no command to the server.
    let own = ours.mutex("own").lock().await.unwrap();
    let late = ours.mutex("own").lock().owner(&Owner::new()).within(limit).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout);
    own.release().await.unwrap();
}

#[tokio::test]
async fn a_try_behind_a_queued_release_and_a_waiter_is_answered() {
    let home = Home::start().await;
    let locks = home.builder().node_timeout(PATIENCE * 4).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let held = stock.lock().await.unwrap();
    let other = Owner::new();
    let mut waiter = stock.lock().owner(&other);
    assert!(futures::poll!(&mut waiter).is_pending());
    drop(held);
    // This request has its own task, which the waiter does not wake.
    let tried = tokio::spawn(async move { stock.try_lock().await.unwrap().is_none() });
    let guard = soon("the waiter", waiter).await.unwrap();
    assert!(soon("the try", tried).await.unwrap());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_end_of_a_crashed_holders_lease_needs_no_message() {
    let home = Home::start().await;
    let locks = without_timers(&home).connect().await.unwrap();
    let before = Instant::now();
    crash(&home, "stock", 2 * SECOND).await;
    let looked = Instant::now();
    // On a busy machine the lease may be over by now.
    let left = home.left("stock").await.unwrap_or_default();
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    // A server reads its clock once for each command, so it may lag by a millisecond or two.
    let slack = Duration::from_millis(5);
    assert!(before.elapsed() + slack >= 2 * SECOND && looked.elapsed() + slack >= left);
    guard.release().await.unwrap();
}
