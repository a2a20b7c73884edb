//! How long holds last, to the millisecond.

use nestlock::{ErrorKind, Loss};
use tokio::time::{Instant, sleep, sleep_until};

use super::{LEASE, MILLISECOND, SECOND, assert_now, less_drift, locks, options, stock};
use crate::support::home::memory::Home;

#[tokio::test(start_paused = true)]
async fn a_hold_lives_through_a_thousand_renewals() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let guard = stock.lock().await.unwrap();
    for _ in 0..1_000 {
        let end = guard.valid_until();
        assert!(end > Instant::now() && !guard.is_lost());
        sleep(LEASE / 3).await;
        super::rest().await;
        assert!(guard.valid_until() > end, "not renewed");
        // The store has the new lease too.
        assert!(home.left("stock").await > Some(LEASE / 3 * 2 - SECOND));
    }
    assert_eq!(home.fields("stock").await, [(guard.hold_id().to_owned(), 1)]);
    guard.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_at_its_deadline_for_its_holder_and_for_all_others() {
    let home = Home::start().await;
    let begun = Instant::now();
    let guard = stock(&home).await.lock().fixed_lease(3600 * SECOND).await.unwrap();
    let end = guard.valid_until();
    assert!(end >= begun + less_drift(3600 * SECOND) && end <= Instant::now() + less_drift(3600 * SECOND));
    sleep_until(end - 2 * MILLISECOND).await;
    assert!(!guard.is_lost() && guard.loss().is_none());
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_now(end);
    // The client itself frees the lock at this moment, so nobody has to wait for the drift in addition, or until the guard is dropped.
    let other = stock(&home).await.lock().await.unwrap();
    assert_now(end);
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Expired));
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_crashed_holder_stays_until_the_end_of_its_lease_and_no_longer() {
    let home = Home::start().await;
    let crashed = locks(&home).await;
    let begun = Instant::now();
    let guard = crashed.mutex("stock").lock().await.unwrap();
    let granted = Instant::now();
    crashed.close().await.unwrap();
    std::mem::forget(guard);
    sleep_until(begun + LEASE - MILLISECOND).await;
    assert_eq!(home.keys().await, ["stock"]);
    sleep_until(granted + LEASE + 2 * MILLISECOND).await;
    assert!(home.keys().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_at_its_max_hold_however_often_it_was_renewed() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let begun = Instant::now();
    let guard = stock.lock().max_hold(7_200 * SECOND).await.unwrap();
    sleep_until(begun + 7_199 * SECOND).await;
    assert!(!guard.is_lost());
    assert_eq!(guard.lost().await, Loss::MaxHold);
    assert_now(begun + 7_200 * SECOND);
    // The key is left to its lease, and is not renewed any more.
    assert_eq!(home.keys().await, ["stock"]);
    sleep(LEASE + MILLISECOND).await;
    assert!(home.keys().await.is_empty());
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Lost);
    drop(guard);
    stock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_drops_its_work_at_its_max_hold_and_frees_the_lock_then() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    let begun = Instant::now();
    let waiting = tokio::spawn({
        let run = ours.lock().max_hold(600 * SECOND).run(|_| std::future::pending::<()>());
        async move { run.await.unwrap_err().loss() }
    });
    super::rest().await;
    theirs.lock().await.unwrap().release().await.unwrap();
    assert_now(begun + 600 * SECOND);
    assert_eq!(waiting.await.unwrap(), Some(Loss::MaxHold));
}

#[tokio::test(start_paused = true)]
async fn an_extension_moves_the_end_and_never_back() {
    let home = Home::start().await;
    let guard = stock(&home).await.lock().fixed_lease(60 * SECOND).await.unwrap();
    sleep(30 * SECOND).await;
    let extended = Instant::now();
    guard.extend(600 * SECOND).await.unwrap();
    let end = guard.valid_until();
    assert!(end >= extended + less_drift(600 * SECOND) && end <= Instant::now() + less_drift(600 * SECOND));
    guard.extend(60 * SECOND).await.unwrap();
    assert_eq!(guard.valid_until(), end);
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_now(end);
}

#[tokio::test(start_paused = true)]
async fn a_watched_hold_that_was_extended_is_renewed_again_when_that_is_used_up() {
    let home = Home::start().await;
    let guard = stock(&home).await.lock().await.unwrap();
    guard.extend(3600 * SECOND).await.unwrap();
    let end = guard.valid_until();
    sleep(3000 * SECOND).await;
    assert_eq!(guard.valid_until(), end);
    sleep(6000 * SECOND).await;
    assert!(!guard.is_lost());
    assert!(guard.valid_until() > Instant::now() + LEASE / 2 && guard.valid_until() < Instant::now() + LEASE);
}

#[tokio::test(start_paused = true)]
async fn leases_pass_as_exactly_with_other_drifts() {
    let home = Home::start().await;
    let exact = options(&home).drift(0.0, std::time::Duration::ZERO).connect().await.unwrap();
    let wide = options(&home).drift(0.25, SECOND).connect().await.unwrap();
    for (locks, lease) in [(exact, 40 * SECOND), (wide, 29 * SECOND)] {
        let begun = Instant::now();
        let guard = locks.mutex("stock").lock().fixed_lease(40 * SECOND).await.unwrap();
        assert_eq!(guard.lost().await, Loss::Expired);
        assert_now(begun + lease);
    }
}
