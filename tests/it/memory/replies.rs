//! Answers that never arrive: each call is settled, no field is left behind, and no two holds overlap.

use nestlock::{ErrorKind, Loss};
use tokio::time::{Instant, sleep, sleep_until};

use super::{LEASE, MILLISECOND, NODE_TIMEOUT, SECOND, assert_now, less_drift, options, rest, stock};
use crate::support::home::memory::Home;

/// The time that a lost answer may cost: the node timeout, and a pause of at most a second before the next attempt.
const SETTLED: std::time::Duration = std::time::Duration::from_millis(2_500);

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_answer_was_lost_is_soon_undone() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    home.drop_replies(1).await;
    let begun = Instant::now();
    assert_eq!(ours.try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_now(begun + NODE_TIMEOUT);
    theirs.lock().await.unwrap().release().await.unwrap();
    assert!(begun.elapsed() <= SETTLED, "{:?}", begun.elapsed());
    assert!(home.keys().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_granted_after_any_number_of_lost_answers() {
    let home = Home::start().await;
    let locks = options(&home).unavailable_after(std::time::Duration::MAX).connect().await.unwrap();
    let stock = locks.mutex("stock");
    for lost in 1..20 {
        home.drop_replies(lost).await;
        let guard = stock.lock().await.unwrap();
        assert_eq!(home.fields("stock").await, [(guard.hold_id().to_owned(), 1)]);
        guard.release().await.unwrap();
        sleep(SETTLED).await;
        home.drop_replies(0).await;
        assert!(home.keys().await.is_empty());
    }
}

/// The field keeps everybody out until its own lease ends, and no renewal may keep it alive.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_answer_was_lost_and_that_could_not_be_undone_ends_with_its_lease() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    home.drop_replies(1).await;
    let attempt = tokio::spawn(ours.try_lock());
    rest().await;
    // The acquire ran, and the command that would undo it doesn't run before the lease is over.
    assert_eq!(home.keys().await, ["stock"]);
    home.stall(LEASE - SECOND).await;
    assert_eq!(attempt.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    sleep(LEASE).await;
    assert!(home.keys().await.is_empty());
    theirs.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_was_lost_is_made_again_in_time() {
    let home = Home::start().await;
    let guard = stock(&home).await.lock().await.unwrap();
    for lost in 1..6 {
        let end = guard.valid_until();
        home.drop_replies(lost).await;
        sleep_until(end - 5 * SECOND).await;
        assert!(!guard.is_lost() && guard.valid_until() > end, "{lost} answers lost");
        home.drop_replies(0).await;
    }
    guard.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

/// The store renews the hold all the time, but the holder counts only what it knows.
#[tokio::test(start_paused = true)]
async fn a_hold_without_a_confirmed_renewal_is_lost_at_its_deadline() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    let guard = ours.lock().await.unwrap();
    let end = guard.valid_until();
    home.drop_replies(usize::MAX).await;
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_now(end);
    assert_eq!(home.keys().await, ["stock"]);
    home.drop_replies(0).await;
    // Dropping the last guard ends the key, so nobody waits for a lease that was renewed in the meantime.
    drop(guard);
    let released = Instant::now();
    theirs.lock().await.unwrap().release().await.unwrap();
    assert!(released.elapsed() <= SETTLED, "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_frees_the_lock_at_that_moment() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    for dropped in [true, false] {
        let guard = ours.lock().await.unwrap();
        let waiting = tokio::spawn(theirs.lock());
        sleep(SECOND).await;
        home.drop_replies(1).await;
        let released = Instant::now();
        let releasing = tokio::spawn(async move {
            if dropped {
                drop(guard);
            } else {
                let _ = guard.release().await;
            }
        });
        let next = waiting.await.unwrap().unwrap();
        assert_now(released);
        releasing.await.unwrap();
        sleep(SETTLED).await;
        assert_eq!(home.fields("stock").await, [(next.hold_id().to_owned(), 1)]);
        next.release().await.unwrap();
    }
    assert!(home.keys().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn counts_are_right_after_any_lost_answer_of_a_nested_hold() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let outer = stock.lock().await.unwrap();
    let count = async || home.count("stock", outer.hold_id()).await;
    for release in [true, false] {
        home.drop_replies(1).await;
        let inner = stock.lock().await.unwrap();
        assert_eq!((inner.depth(), count().await), (2, Some(2)));
        home.drop_replies(1).await;
        if release {
            let _ = inner.release().await;
        } else {
            drop(inner);
        }
        sleep(SETTLED).await;
        assert_eq!((stock.hold_count(), count().await), (1, Some(1)));
    }
    // An attempt gave up, so the hold is settled to its earlier count.
    home.drop_replies(1).await;
    assert_eq!(stock.try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    sleep(SETTLED).await;
    assert_eq!((stock.hold_count(), count().await), (1, Some(1)));
    assert!(!outer.is_lost());
    outer.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

/// The store has the longer lease, but the holder doesn't know that.
#[tokio::test(start_paused = true)]
async fn an_extension_whose_answer_was_lost_is_not_counted_on() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    let begun = Instant::now();
    let guard = ours.lock().fixed_lease(20 * SECOND).await.unwrap();
    home.drop_replies(1).await;
    assert_eq!(guard.extend(600 * SECOND).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(guard.valid_until() <= Instant::now() + 20 * SECOND);
    let waiting = tokio::spawn(theirs.lock());
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_now(begun + less_drift(20 * SECOND));
    // The client ends the hold with its guard, so nobody waits for the lease on the store.
    drop(guard);
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(begun.elapsed() <= 20 * SECOND + SETTLED);
}

#[tokio::test(start_paused = true)]
async fn looks_and_force_without_an_answer_are_unavailable_and_may_have_run() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    let guard = ours.lock().await.unwrap();
    home.drop_replies(2).await;
    assert_eq!(theirs.is_locked().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(theirs.remaining_lease().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(theirs.is_locked().await.unwrap());
    home.drop_replies(1).await;
    assert_eq!(theirs.force_release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(!theirs.is_locked().await.unwrap());
    // Nobody is subscribed, so the next renewal finds the loss.
    assert_eq!(guard.lost().await, Loss::Gone);
    sleep(MILLISECOND).await;
}

#[tokio::test]
async fn a_node_timeout_that_nobody_can_meet_keeps_nobody_from_the_lock() {
    let home = Home::start().await;
    let locks = options(&home).node_timeout(std::time::Duration::from_nanos(1)).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let runs = (0..5).map(|_| tokio::spawn(stock.run(|_| tokio::task::yield_now())));
    for run in runs.collect::<Vec<_>>() {
        crate::support::soon("the lock", run).await.unwrap().unwrap();
    }
}
