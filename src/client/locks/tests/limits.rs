//! Holds that end by `max_hold`, beside those that end by themselves.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{Locks, Loss, Memory, Owner};

const SECOND: Duration = Duration::from_secs(1);

/// In this order: 1. A fixed lease of 5 s, with a limit of 1 s. 2. A nested hold makes the key live for 30 s, and ends. 3. The limit is over. 4. The
/// lease is.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_when_it_was_said_to_also_after_its_max_hold() {
    let stock = Locks::in_memory().mutex("stock");
    let _guard = stock.lock().fixed_lease(5 * SECOND).max_hold(SECOND).await.unwrap();
    stock.lock().await.unwrap().release().await.unwrap();
    sleep(6 * SECOND).await;
    assert!(stock.try_lock().owner(&Owner::new()).await.unwrap().is_some(), "its field outlives the lease");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_over_is_not_good_again_when_a_max_hold_is_noticed() {
    let stock = Locks::in_memory().mutex("stock");
    let outer = stock.lock().fixed_lease(5 * SECOND).max_hold(SECOND).await.unwrap();
    stock.lock().await.unwrap().release().await.unwrap();
    let inner = stock.lock().fixed_lease(2 * SECOND).await.unwrap();
    let _ = futures::poll!(Box::pin(tokio::time::advance(6 * SECOND)));
    assert!(inner.valid_until() < Instant::now());
    let _ = outer.is_lost();
    assert!(
        inner.valid_until() <= Instant::now(),
        "good again for {:?}",
        inner.valid_until() - Instant::now()
    );
    assert!(inner.is_lost());
}

/// 1. Two requests wait in line for longer than `unavailable_after`. 2. The first one is granted, and its fixed lease ends. 3. That
/// wakes the second one, before the end of that hold is sent.
#[tokio::test(start_paused = true)]
async fn who_has_waited_for_long_still_waits_for_the_end_of_the_hold_before_it() {
    let store = Memory::new();
    let theirs = Locks::builder().memory(&store).connect().await.unwrap().mutex("stock");
    let ours = Locks::builder().memory(&store).connect().await.unwrap().mutex("stock");
    let guard = theirs.lock().await.unwrap();
    let first = async {
        let first = ours.lock().fixed_lease(SECOND).await.unwrap();
        assert_eq!(first.lost().await, Loss::Expired);
    };
    let others = async {
        let ours = ours.clone();
        let second = tokio::spawn(async move { ours.lock().await?.release().await });
        sleep(20 * SECOND).await;
        guard.release().await.unwrap();
        second.await.unwrap().unwrap();
    };
    tokio::join!(first, others);
}
