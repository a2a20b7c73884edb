//! `at_least` over several masters.

use super::*;

/// Returns for each master whether it keeps the lock.
fn kept(stores: &[Memory]) -> Vec<bool> {
    stores.iter().map(|store| format!("{store:?}").contains(":0\"")).collect()
}

/// 1. A majority keeps the lock. 2. A master of that majority restarts without its data. 3. If the third master were only freed, it would
/// now grant the lock to somebody else.
#[tokio::test(start_paused = true)]
async fn a_master_that_was_away_keeps_the_lock_too_once_it_is_back() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().at_least(20 * SECOND).await.unwrap();
    stores[2].faults().stall(2 * SECOND);
    guard.release().await.unwrap();
    assert_eq!(kept(&stores[..2]), [true; 2]);
    until("it is kept by all", || kept(&stores) == [true; 3]).await;
    assert!(locks(&stores[1..]).await.mutex("stock").try_lock().await.unwrap().is_none());
    until("its end", || are_free(&stores)).await;
}

/// If the master comes back later than the time of `at_least`, the hold on it is ended.
#[tokio::test(start_paused = true)]
async fn a_master_that_comes_back_after_the_time_is_freed() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().at_least(5 * SECOND).await.unwrap();
    stores[2].faults().stall(10 * SECOND);
    guard.release().await.unwrap();
    // A command that ran there late counts from the moment when it ran.
    tokio::time::sleep(16 * SECOND).await;
    assert!(are_free(&stores), "{stores:?}");
    stock.try_lock().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_split_vote_keeps_nothing() {
    let stores = stores(3);
    let other = locks(&stores[..2]).await.mutex("stock").lock().owner(&nestlock::Owner::new()).await.unwrap();
    let stock = locks(&stores).await.mutex("stock");
    assert!(stock.try_lock().at_least(20 * SECOND).await.unwrap().is_none());
    until("the end of what was granted", || is_free(&stores[2])).await;
    other.release().await.unwrap();
}
