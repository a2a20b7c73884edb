//! What calls return if their signatures leave it open.

use std::time::Duration;

use nestlock::{ErrorKind, Owner};

use super::Home;
use crate::support::{SOON_OVER, soon};

#[tokio::test]
async fn a_dropped_guard_counts_no_more_before_the_server_knows() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    drop(inner);
    assert_eq!((stock.is_held(), stock.hold_count()), (true, 1));
    drop(outer);
    assert_eq!((stock.is_held(), stock.hold_count()), (false, 0));
    // There was no await in between, so the command is sent later.
    crate::support::eventually("the release", async || home.keys().await.is_empty()).await;
}

#[tokio::test]
async fn one_attempt_returns_at_once() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let free = stock.lock().within(Duration::ZERO).await.unwrap();
    let stranger = Owner::new();
    assert!(stock.try_lock().owner(&stranger).await.unwrap().is_none());
    let error = stock.lock().within(Duration::ZERO).owner(&stranger).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Timeout, Some("stock")));
    assert_eq!(stock.try_lock().await.unwrap().expect("a re-entry").depth(), 2);
    free.release().await.unwrap();
    assert!(soon("an answer", stock.try_lock().owner(&stranger)).await.unwrap().is_some());
}

#[tokio::test]
async fn one_attempt_does_not_overtake_a_head_that_is_asking() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let (head, other) = (Owner::new(), Owner::new());
    let mut asking = stock.lock().owner(&head);
    assert!(futures::poll!(&mut asking).is_pending());
    let mut once = stock.try_lock().owner(&other);
    match futures::poll!(&mut once) {
        std::task::Poll::Ready(refused) => assert!(refused.unwrap().is_none()),
        std::task::Poll::Pending => panic!("it must not wait for the head"),
    }
    assert_eq!(soon("the head", asking).await.unwrap().owner(), head);
}

#[tokio::test]
async fn a_try_lock_waits_as_long_as_its_option_says() {
    let home = Home::start().await;
    let (ours, theirs) = (home.locks().await, home.locks().await);
    let guard = theirs.mutex("stock").lock().await.unwrap();
    let stock = ours.mutex("stock");
    let (begun, limit) = (tokio::time::Instant::now(), SOON_OVER);
    assert!(stock.try_lock().within(limit).await.unwrap().is_none());
    assert!(begun.elapsed() >= limit);
    let waiting = tokio::spawn(stock.try_lock().within(Duration::MAX));
    guard.release().await.unwrap();
    assert!(soon("the lock", waiting).await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn the_longest_duration_means_for_ever() {
    let home = Home::start().await;
    let forever = Duration::MAX;
    let long = home.builder().node_timeout(forever).unavailable_after(forever).poll_interval(forever);
    let (ours, theirs) = (long.connect().await.unwrap(), home.locks().await);
    let stock = ours.mutex("stock");
    let foreign = theirs.mutex("stock").lock().max_hold(forever).await.unwrap();
    let waiting = tokio::spawn(stock.lock().within(forever).max_hold(forever));
    tokio::task::yield_now().await;
    foreign.release().await.unwrap();
    let guard = soon("the lock", waiting).await.unwrap().unwrap();
    assert!(!guard.is_lost());
    for error in
        [stock.lock().fixed_lease(forever).await.unwrap_err(), guard.extend(forever).await.unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Config, "a lease can't be endless");
    }
    guard.release().await.unwrap();
    ours.close().await.unwrap();
}

#[tokio::test]
async fn a_request_that_is_given_work_after_a_poll_makes_a_new_request_for_a_child() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let owner = Owner::new();
    let mut request = stock.lock().owner(&owner);
    assert!(futures::poll!(&mut request).is_pending());
    let worker = soon("the work", request.run(async |_| Owner::current())).await.unwrap();
    assert_ne!(worker, owner, "the work is an owner of its own");
    assert_eq!(soon("the next", stock.lock().owner(&owner)).await.unwrap().depth(), 1);
}
