//! Claims over several masters: the hold has to move on a majority.

use nestlock::{Claim, ErrorKind, Loss};

use super::*;

async fn claimed(stores: &[Memory]) -> Claim {
    locks(stores).await.mutex("stock").lock().await.unwrap().into_claim().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_resumed_by_a_majority_and_given_to_the_others() {
    let stores = stores(3);
    let claim = claimed(&stores).await;
    stores[1].faults().restart_empty();
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.resume(&claim).await.unwrap();
    until("all have it", || counts(&stores, &guard) == [Some(1); 3]).await;
    guard.release().await.unwrap();
    until("the end", || are_free(&stores)).await;
}

#[tokio::test(start_paused = true)]
async fn a_master_that_was_away_leaves_nothing_of_a_claim() {
    let stores = stores(3);
    let claim = claimed(&stores).await;
    stores[2].faults().stall(3 * SECOND);
    let guard = locks(&stores[..2]).await.mutex("stock").resume(&claim).await.unwrap();
    drop(guard);
    stores[2].faults().stall(Duration::ZERO);
    tokio::time::sleep(SECOND).await;
    let guard = locks(&stores).await.mutex("stock");
    let guard = guard.lock().await.unwrap();
    stores[2].faults().stall(2 * SECOND);
    guard.release().await.unwrap();
    tokio::time::sleep(60 * SECOND).await;
    assert!(are_free(&stores), "{stores:?}");
}

/// Two masters have lost the hold, so what has moved on the third one is ended.
#[tokio::test(start_paused = true)]
async fn a_resume_that_a_majority_refuses_ends_what_it_has_moved() {
    let stores = stores(3);
    let claim = claimed(&stores).await;
    stores[0].faults().lose("stock");
    stores[1].faults().lose("stock");
    let error = locks(&stores).await.mutex("stock").resume(&claim).await.unwrap_err();
    assert_eq!(error.loss(), Some(Loss::Gone));
    let begun = tokio::time::Instant::now();
    until("the end", || are_free(&stores)).await;
    assert!(begun.elapsed() < 5 * SECOND, "only its lease ended it: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_no_majority_answers_is_undone_when_they_are_back() {
    let stores = stores(3);
    let claim = claimed(&stores).await;
    let stock = locks(&stores).await.mutex("stock");
    stores[1..].iter().for_each(|store| store.faults().stall(5 * SECOND));
    assert_eq!(stock.resume(&claim).await.unwrap_err().kind(), ErrorKind::Unavailable);
    tokio::time::sleep(8 * SECOND).await;
    assert!(are_free(&stores), "{stores:?}");
    assert_eq!(stock.resume(&claim).await.unwrap_err().loss(), Some(Loss::Gone));
}

/// Each process moves the claim on some masters, and only a majority counts.
#[tokio::test(start_paused = true)]
async fn no_two_resume_one_claim_whichever_masters_they_reach_first() {
    for first in 0..3 {
        let stores = stores(3);
        let claim = claimed(&stores).await;
        let (one, two) = (locks(&stores).await.mutex("stock"), locks(&stores).await.mutex("stock"));
        stores[first].faults().stall(SECOND / 5);
        let (one, two) = tokio::join!(one.resume(&claim), two.resume(&claim));
        assert!(one.is_err() || two.is_err());
        let guard = one.or(two).unwrap();
        until("all have it", || counts(&stores, &guard) == [Some(1); 3]).await;
        guard.release().await.unwrap();
        until("the end", || are_free(&stores)).await;
    }
}

/// 1. Two of three masters grant. 2. The hold is handed over. 3. The third one answers the acquire. Nothing undoes that grant, since the
/// claim has the hold now.
#[tokio::test(start_paused = true)]
async fn what_a_master_grants_late_to_a_hold_that_was_handed_over_stays() {
    let stores = stores(3);
    let ours = locks(&stores).await.mutex("stock");
    stores[2].faults().stall(SECOND / 5);
    let claim = ours.lock().await.unwrap().into_claim().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    let seen = format!("{:?}", stores[2]);
    assert!(seen.contains(claim.hold_id()), "{seen}");
    let guard = locks(&stores).await.mutex("stock").resume(&claim).await.unwrap();
    assert_eq!(counts(&stores, &guard), [Some(1); 3]);
    guard.release().await.unwrap();
    until("the end", || are_free(&stores)).await;
}
