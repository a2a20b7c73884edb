//! What the background does, and what it leaves alone.

use std::time::Duration;

use futures::future::join_all;
use nestlock::{Guard, Loss};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until};

use super::{LEASE, NODE_TIMEOUT, SECOND, assert_now, less_drift, locks, options, rest, stock};
use crate::support::home::memory::Home;

/// How often this test looks for renewals.
const STEP: Duration = Duration::from_millis(10);

/// Returns the moments up to `until` at which the hold's deadline moved.
async fn renewals(guard: &Guard, until: Instant) -> Vec<Instant> {
    let (mut seen, mut end) = (Vec::new(), guard.valid_until());
    while Instant::now() < until {
        sleep(STEP).await;
        if guard.valid_until() != end {
            end = guard.valid_until();
            seen.push(Instant::now());
        }
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_every_third_of_its_lease_and_no_more_often() {
    for lease in [3 * SECOND, LEASE, 90 * SECOND] {
        let home = Home::start().await;
        let locks = options(&home).lease(lease).connect().await.unwrap();
        let begun = Instant::now();
        let guard = locks.mutex("stock").lock().await.unwrap();
        let seen = renewals(&guard, begun + 2 * lease + SECOND / 2).await;
        assert_eq!(seen.len(), 6);
        for (number, at) in (1..).zip(seen) {
            let due = begun + number * (lease / 3);
            assert!(at >= due && at <= due + 2 * STEP, "the {number}th at {:?}", at - begun);
        }
        // The deadline counts from before the renewal was sent, as it does for the grant.
        assert!(guard.valid_until() <= begun + 2 * lease + less_drift(lease) + 2 * STEP);
    }
}

#[tokio::test(start_paused = true)]
async fn hundreds_of_holds_are_all_renewed() {
    let home = Home::start().await;
    let locks = locks(&home).await;
    let mutexes: Vec<_> = (0..300).map(|at| locks.mutex(format!("stock:{at}"))).collect();
    let guards = join_all(mutexes.iter().map(|mutex| async { mutex.lock().await.unwrap() })).await;
    sleep(40 * LEASE).await;
    assert!(guards.iter().all(|guard| !guard.is_lost() && guard.valid_until() > Instant::now() + LEASE / 2));
    assert_eq!(home.keys().await.len(), 300);
    drop(guards);
    locks.close().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_has_a_fixed_lease_is_not_renewed() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let begun = Instant::now();
    let guard = stock.lock().fixed_lease(90 * SECOND).await.unwrap();
    assert!(renewals(&guard, begun + 60 * SECOND).await.is_empty());
    let left = home.left("stock").await.unwrap();
    assert!(left <= 30 * SECOND && left > 29 * SECOND, "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn renewal_ends_with_the_last_watched_level_and_begins_with_the_first() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let outer = stock.lock().fixed_lease(600 * SECOND).await.unwrap();
    let inner = stock.lock().await.unwrap();
    // The hold would be valid without a renewal, but it is renewed, since an inner level may outlive the outer one.
    sleep(700 * SECOND).await;
    assert!(!outer.is_lost() && !inner.is_lost());
    let end = inner.valid_until();
    inner.release().await.unwrap();
    // The outer level's own lease is over, so the hold ends with the inner level.
    assert_eq!(outer.lost().await, Loss::Expired);
    assert!(Instant::now() <= end);
    rest().await;
    assert!(home.keys().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_released_or_dropped_is_renewed_no_more() {
    let home = Home::start().await;
    let (locks, other) = (locks(&home).await, stock(&home).await);
    let held = locks.mutex("held").lock().await.unwrap();
    let (one, two) = (locks.mutex("one").lock().await.unwrap(), locks.mutex("two").lock().await.unwrap());
    // Neither release runs, so the keys stay. They must not be renewed.
    home.stall(LEASE * 2 / 3 - 2 * NODE_TIMEOUT).await;
    drop(one);
    let _ = two.release().await;
    let released = Instant::now();
    sleep(LEASE * 2 / 3 + SECOND).await;
    assert_eq!(home.keys().await, ["held"]);
    assert!(!held.is_lost() && released.elapsed() < LEASE);
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_failed_is_tried_again_soon_and_not_after_another_third() {
    let home = Home::start().await;
    let guard = stock(&home).await.lock().await.unwrap();
    let begun = Instant::now();
    // The stall covers the first renewal, which is due after 10 s.
    home.stall(15 * SECOND).await;
    let seen = renewals(&guard, begun + 18 * SECOND).await;
    let first = seen.first().expect("a renewal");
    assert!(*first >= begun + 15 * SECOND && *first <= begun + 15 * SECOND + 2 * NODE_TIMEOUT + 2 * STEP);
    // After that the hold is renewed every third of the lease again.
    let next = renewals(&guard, *first + 21 * SECOND).await;
    assert_eq!(next.len(), 2, "{next:?}");
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_hold_does_not_end_the_renewal_of_others() {
    let home = Home::start().await;
    let locks = locks(&home).await;
    let (kept, lost) = (locks.mutex("kept").lock().await.unwrap(), locks.mutex("lost").lock().await.unwrap());
    home.lose("lost").await;
    assert_eq!(lost.lost().await, Loss::Gone);
    sleep(100 * LEASE).await;
    assert!(!kept.is_lost());
    // The next hold of this name is renewed like any other.
    drop(lost);
    let again = locks.mutex("lost").lock().await.unwrap();
    sleep(100 * LEASE).await;
    assert!(!kept.is_lost() && !again.is_lost());
}

#[tokio::test(start_paused = true)]
async fn losses_are_reported_in_time_although_a_store_does_not_answer() {
    let home = Home::start().await;
    let locks = options(&home).node_timeout(Duration::MAX).connect().await.unwrap();
    let mut guards = Vec::new();
    for at in 1..=10 {
        guards.push(locks.mutex(format!("stock:{at}")).lock().fixed_lease(at * SECOND).await.unwrap());
    }
    guards.push(locks.mutex("watched").lock().await.unwrap());
    home.stall(Duration::MAX).await;
    for guard in &guards {
        let end = guard.valid_until();
        assert_eq!(guard.lost().await, Loss::Expired);
        assert_now(end);
    }
}

#[tokio::test(start_paused = true)]
async fn close_ends_renewal_and_the_background() {
    let home = Home::start().await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let locks = locks(&home).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    sleep(10 * LEASE).await;
    locks.close().await.unwrap();
    let end = guard.valid_until();
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_now(end);
    sleep_until(end + SECOND).await;
    assert!(home.keys().await.is_empty());
    drop(guard);
    rest().await;
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn the_background_ends_with_the_last_handle_once_its_work_is_done() {
    let home = Home::start().await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let stock = stock(&home).await;
    let guard = stock.lock().await.unwrap();
    drop(stock);
    // A guard keeps the background alive.
    sleep(10 * LEASE).await;
    assert!(!guard.is_lost());
    home.stall(SECOND).await;
    drop(guard);
    sleep(SECOND / 2).await;
    assert!(tasks() > before, "the release has not run");
    sleep(3 * SECOND).await;
    assert_eq!((home.keys().await.len(), tasks()), (0, before));
}

/// Paused time passes in steps, and each step ends at a timer: if no timer is set, an hour is one step.
#[tokio::test(start_paused = true)]
async fn where_nothing_is_held_nothing_is_done() {
    let home = Home::start().await;
    let locks = locks(&home).await;
    for at in 0..100 {
        locks.mutex(format!("stock:{at}")).run(async |_| {}).await.unwrap();
    }
    rest().await;
    let wakes = || Handle::current().metrics().worker_park_count(0);
    let before = wakes();
    sleep(1_000 * LEASE).await;
    let woken = wakes() - before;
    assert!(woken < 20, "woken {woken} times");
}
