//! A hold is repaired on masters that lack it as long as a majority has it.

use nestlock::Loss;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_hold_lives_on_for_as_long_as_a_majority_does() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    for round in 0..30 {
        // Each master is away once in a while, for longer than a lease.
        stores[round % 3].faults().stall(40 * SECOND);
        tokio::time::sleep(45 * SECOND).await;
        assert!(!guard.is_lost(), "round {round}");
    }
    until("all have it", || counts(&stores, &guard) == [Some(1); 3]).await;
    guard.release().await.unwrap();
    assert!(are_free(&stores));
}

#[tokio::test(start_paused = true)]
async fn a_master_that_came_back_empty_is_given_the_hold_with_its_count() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    for at in [0, 2, 1] {
        stores[at].faults().restart_empty();
        assert!(is_free(&stores[at]));
        let begun = tokio::time::Instant::now();
        until("it is back", || counts(&stores, &outer) == [Some(2); 3]).await;
        assert!(begun.elapsed() < SECOND, "it took until the next renewal: {:?}", begun.elapsed());
    }
    assert!(!outer.is_lost());
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    assert!(are_free(&stores));
}

#[tokio::test(start_paused = true)]
async fn one_old_master_that_lost_it_is_outvoted() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    assert!(stores[1].faults().lose("stock"));
    until("it is back", || counts(&stores, &guard) == [Some(1); 3]).await;
    assert!(!guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_has_is_left_alone() {
    let stores = stores(3);
    let other =
        locks(&stores[1..2]).await.mutex("stock").lock().owner(&nestlock::Owner::new()).await.unwrap();
    let guard = locks(&stores).await.mutex("stock").lock().await.unwrap();
    tokio::time::sleep(60 * SECOND).await;
    assert!(!guard.is_lost() && !other.is_lost());
    assert_eq!(counts(&stores, &guard), [Some(1), None, Some(1)]);
    other.release().await.unwrap();
    until("it is there once it can be", || counts(&stores, &guard) == [Some(1); 3]).await;
}

/// A young master that lacks the hold can be given it: then the young master and another one are a majority again.
#[tokio::test(start_paused = true)]
async fn a_young_master_that_lacks_it_counts_once_it_has_it() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    stores[2].faults().stall(3600 * SECOND);
    stores[1].faults().restart_empty();
    tokio::time::sleep(100 * SECOND).await;
    assert!(!guard.is_lost());
    assert_eq!(counts(&stores[..2], &guard), [Some(1); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_gone_from_old_masters_is_never_put_back() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    stores[2].faults().stall(SECOND);
    stores[0].faults().lose("stock");
    stores[1].faults().lose("stock");
    assert_eq!(guard.lost().await, Loss::Gone);
    tokio::time::sleep(5 * SECOND).await;
    assert!(are_free(&stores));
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_repaired_for_what_is_left_of_it() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().fixed_lease(20 * SECOND).await.unwrap();
    tokio::time::sleep(10 * SECOND).await;
    stores[1].faults().restart_empty();
    until("it is back", || counts(&stores, &guard) == [Some(1); 3]).await;
    tokio::time::sleep(11 * SECOND).await;
    assert_eq!(guard.loss(), Some(Loss::Expired));
    assert!(are_free(&stores), "{stores:?}");
}
