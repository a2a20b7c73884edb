//! Holds that end by `max_hold`, beside those that end by themselves.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Locks;

const SECOND: Duration = Duration::from_secs(1);

/// In this order: 1. A fixed lease of 5 s, with a limit of 1 s. 2. A nested hold makes the key live for 30 s, and ends. 3. The limit is over. 4. The
/// lease is.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_when_it_was_said_to_also_after_its_max_hold() {
    let stock = Locks::in_memory().mutex("stock");
    let _guard = stock.lock().fixed_lease(5 * SECOND).max_hold(SECOND).await.unwrap();
    stock.lock().await.unwrap().release().await.unwrap();
    sleep(6 * SECOND).await;
    assert!(
        stock.try_lock().owner(&crate::Owner::new()).await.unwrap().is_some(),
        "its field outlives the lease"
    );
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
