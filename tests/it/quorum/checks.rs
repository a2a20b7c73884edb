//! `check` over several masters: a majority decides.

use nestlock::{ErrorKind, Loss};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_hold_that_a_minority_lacks_is_confirmed_and_given_to_it() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    for fixed in [false, true] {
        let guard = match fixed {
            true => stock.lock().fixed_lease(20 * SECOND).await.unwrap(),
            false => stock.lock().await.unwrap(),
        };
        stores[0].faults().restart_empty();
        guard.check().await.unwrap();
        until("it is back", || counts(&stores, &guard) == [Some(1); 3]).await;
        stores[1].faults().stall(60 * SECOND);
        guard.check().await.unwrap();
        stores[1].faults().stall(Duration::ZERO);
        guard.release().await.unwrap();
        until("the end", || are_free(&stores)).await;
    }
}

/// No message arrives, so only the check finds the loss.
#[tokio::test(start_paused = true)]
async fn a_hold_that_a_majority_lacks_is_lost_by_its_check() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().fixed_lease(20 * SECOND).await.unwrap();
    let other = locks(&stores[1..]).await.mutex("stock");
    other.force_release().await.unwrap();
    let other = other.lock().owner(&nestlock::Owner::new()).await.unwrap();
    assert_eq!(guard.check().await.unwrap_err().loss(), Some(Loss::Gone));
    assert_eq!(guard.loss(), Some(Loss::Gone));
    other.check().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_check_that_a_majority_does_not_answer_is_unavailable() {
    let stores = stores(3);
    let guard = locks(&stores).await.mutex("stock").lock().fixed_lease(20 * SECOND).await.unwrap();
    stores[1..].iter().for_each(|store| store.faults().stall(60 * SECOND));
    assert_eq!(guard.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(!guard.is_lost());
    stores[1..].iter().for_each(|store| store.faults().stall(Duration::ZERO));
    tokio::time::sleep(SECOND).await;
    guard.check().await.unwrap();
}
