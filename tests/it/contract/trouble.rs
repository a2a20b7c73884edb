//! Homes that do not answer, lose replies, or restart empty.

use std::time::Duration;

use nestlock::{Error, ErrorKind, Locks, Loss};
use tokio::time::{Instant, sleep_until};

use super::{Home, LONG, SECOND, foreign_guard, long_lived};
use crate::support::{PATIENCE, enlisted, eventually, log, soon};

/// A short node timeout, for tests that wait until it is over.
const QUICK: Duration = SECOND;

/// Returns a `Locks` that soon notices that no answer arrives, and whose leases outlive the test.
async fn quick(home: &Home) -> Locks {
    home.builder().lease(LONG).node_timeout(QUICK).confirm_reentry(true).connect().await.unwrap()
}

fn is_unavailable(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_hold_is_lost_at_its_deadline_where_no_answer_comes() {
    let home = Home::start().await;
    let stock = home.builder().lease(2 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    home.stall(PATIENCE).await;
    let end = guard.valid_until();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert!(Instant::now() >= end);
}

#[tokio::test]
async fn a_hold_that_cannot_be_renewed_is_reported_before_another_can_get_it() {
    let home = Home::start().await;
    let stock = home.builder().lease(2 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    home.stall(4 * SECOND).await;
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert!(Instant::now() >= guard.valid_until());
    assert_eq!(soon("the release", guard.release()).await.unwrap_err().loss(), Some(Loss::Expired));
    home.tidy().await;
}

#[tokio::test]
async fn a_hold_outlives_a_silence_that_is_shorter_than_its_lease() {
    let home = Home::start().await;
    let name = home.unique("outlives-a-silence");
    let stock = home.builder().lease(30 * SECOND).connect().await.unwrap().mutex(&name);
    let guard = stock.lock().await.unwrap();
    let end = guard.valid_until();
    home.stall(PATIENCE).await;
    log::recorded(|e| e.mentions(&name) && e.mentions("retrying")).await;
    home.stall(Duration::ZERO).await;
    eventually("a renewal", async || guard.valid_until() > end).await;
    sleep_until(end).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_extension_that_is_answered_after_the_end_is_no_success() {
    let home = Home::start().await;
    let locks = home.builder().node_timeout(PATIENCE).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().fixed_lease(2 * SECOND).await.unwrap();
    home.stall(4 * SECOND).await;
    let extending = guard.extend(20 * SECOND);
    let (extended, loss) = soon("the answer", async { tokio::join!(biased; extending, guard.lost()) }).await;
    assert_eq!(loss, Loss::Expired);
    assert_eq!(extended.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    home.tidy().await;
}

#[tokio::test]
async fn a_waiter_gets_the_lock_once_the_answer_arrives() {
    let home = Home::start().await;
    let name = home.unique("once-it-comes");
    let locks = home.builder().node_timeout(QUICK).unavailable_after(Duration::MAX).connect().await.unwrap();
    let stock = locks.mutex(&name);
    home.stall(PATIENCE).await;
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(enlisted(&stock))).collect();
    log::recorded(|e| e.mentions(&name) && e.mentions("retrying")).await;
    home.stall(Duration::ZERO).await;
    for one in waiting {
        soon("the lock", one).await.unwrap().unwrap().release().await.unwrap();
    }
    locks.close().await.unwrap();
    home.tidy().await;
}

#[tokio::test]
async fn where_no_answer_comes_each_call_is_unavailable() {
    let home = Home::start().await;
    let options = home.builder().node_timeout(QUICK).unavailable_after(2 * QUICK);
    let locks = options.connect().await.unwrap();
    let (held, other) = (locks.mutex("held"), locks.mutex("other"));
    let guard = held.lock().await.unwrap();
    home.stall(PATIENCE).await;
    is_unavailable(&soon("one attempt", other.try_lock()).await.unwrap_err());
    is_unavailable(&soon("one attempt", other.lock().within(Duration::ZERO)).await.unwrap_err());
    is_unavailable(&soon("a look", other.is_locked()).await.unwrap_err());
    is_unavailable(&soon("a look", other.remaining_lease()).await.unwrap_err());
    is_unavailable(&soon("force", other.force_release()).await.unwrap_err());
    let begun = Instant::now();
    is_unavailable(&soon("its end", other.lock()).await.unwrap_err());
    assert!(begun.elapsed() >= 2 * QUICK);
    is_unavailable(&soon("an extension", guard.extend(LONG)).await.unwrap_err());
    is_unavailable(&soon("a release", guard.release()).await.unwrap_err());
}

#[tokio::test]
async fn a_lock_whose_answer_was_lost_is_requested_again() {
    let home = Home::with_faults().await;
    let stock = quick(&home).await.mutex("stock");
    home.drop_replies(1).await;
    let guard = soon("the lock", stock.lock()).await.unwrap();
    assert_eq!(home.fields("stock").await, [(guard.hold_id().to_owned(), 1)]);
    guard.release().await.unwrap();
    home.tidy().await;
}

#[tokio::test]
async fn an_attempt_whose_answer_was_lost_leaves_nothing_with_nobody() {
    let home = Home::with_faults().await;
    let stock = quick(&home).await.mutex("stock");
    home.drop_replies(1).await;
    is_unavailable(&stock.try_lock().await.unwrap_err());
    home.tidy().await;
    assert!(stock.try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_reentry_whose_answer_was_lost_counts_once() {
    let home = Home::with_faults().await;
    let stock = quick(&home).await.mutex("stock");
    let outer = stock.lock().await.unwrap();
    home.drop_replies(1).await;
    let inner = soon("the re-entry", stock.lock()).await.unwrap();
    assert_eq!((inner.depth(), stock.hold_count()), (2, 2));
    assert_eq!(home.count("stock", outer.hold_id()).await, Some(2));
    inner.release().await.unwrap();
    assert_eq!(home.count("stock", outer.hold_id()).await, Some(1));
    outer.release().await.unwrap();
    home.tidy().await;
}

/// The repeated release must not count down by one: that would free the lock under the outer guard.
#[tokio::test]
async fn a_nested_release_whose_answer_was_lost_counts_down_once() {
    let home = Home::with_faults().await;
    let stock = quick(&home).await.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    home.drop_replies(1).await;
    if let Err(error) = soon("the release", inner.release()).await {
        is_unavailable(&error);
    }
    let again = soon("the next level", stock.lock()).await.unwrap();
    assert_eq!(home.count("stock", outer.hold_id()).await, Some(2));
    again.release().await.unwrap();
    assert_eq!(home.count("stock", outer.hold_id()).await, Some(1));
    assert!(!outer.is_lost());
    outer.release().await.unwrap();
    home.tidy().await;
}

#[tokio::test]
async fn a_last_release_whose_answer_was_lost_frees_the_lock() {
    let home = Home::with_faults().await;
    for dropped in [false, true] {
        let (ours, theirs) = (quick(&home).await, long_lived(&home).await);
        let guard = ours.mutex("stock").lock().await.unwrap();
        let waiting = tokio::spawn(theirs.mutex("stock").lock());
        home.listened().await;
        home.drop_replies(1).await;
        if dropped {
            drop(guard);
        } else if let Err(error) = soon("the release", guard.release()).await {
            is_unavailable(&error);
        }
        let next = soon("the next", waiting).await.unwrap().unwrap();
        // The release of the old hold is repeated until it is confirmed. It leaves the new hold alone.
        eventually("what is left to do", async || ours.close().await.is_ok()).await;
        assert_eq!(home.fields("stock").await, [(next.hold_id().to_owned(), 1)]);
        next.release().await.unwrap();
        home.tidy().await;
    }
}

#[tokio::test]
async fn an_extension_whose_answer_was_lost_leaves_the_hold_as_it_was() {
    let home = Home::with_faults().await;
    let stock = quick(&home).await.mutex("stock");
    let guard = stock.lock().fixed_lease(LONG).await.unwrap();
    let end = guard.valid_until();
    home.drop_replies(1).await;
    is_unavailable(&soon("an extension", guard.extend(2 * LONG)).await.unwrap_err());
    assert!(!guard.is_lost() && guard.valid_until() == end);
    // Another extension is possible only after the first one is settled.
    eventually("another", async || guard.extend(2 * LONG).await.is_ok()).await;
    assert!(guard.valid_until() > end + SECOND);
    guard.release().await.unwrap();
    home.tidy().await;
}

/// The reconnect reports the loss, long before the first renewal.
#[tokio::test]
async fn a_hold_is_lost_at_once_where_its_home_came_back_empty() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    home.restart_empty().await;
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Gone));
    soon("a new hold", stock.lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_gets_the_lock_after_its_master_restarted_empty() {
    let home = Home::start().await;
    let locks = home.builder().unavailable_after(Duration::MAX).poll_interval(Duration::MAX);
    let stock = locks.connect().await.unwrap().mutex("stock");
    let foreign = foreign_guard(&home, "stock").await;
    let waiting = tokio::spawn(enlisted(&stock));
    home.asleep(1).await;
    home.restart_empty().await;
    soon("the lock", waiting).await.unwrap().unwrap().release().await.unwrap();
    drop(foreign);
}
