//! A hold that is released, dropped or lost is removed from all masters.

use nestlock::Loss;
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_release_is_sent_to_a_master_that_was_away_once_it_is_back() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    stores[2].faults().stall(2 * SECOND);
    guard.release().await.unwrap();
    assert!(are_free(&stores[..2]) && !is_free(&stores[2]));
    let begun = Instant::now();
    until("it is released there too", || is_free(&stores[2])).await;
    assert!(begun.elapsed() <= 3 * SECOND, "only the end of its lease freed it: {:?}", begun.elapsed());
}

/// The process may end after `close`, so `close` has to wait.
#[tokio::test(start_paused = true)]
async fn close_waits_for_a_minority_that_has_a_hold_yet() {
    let stores = stores(3);
    for end in ["a release", "a dropped guard", "a forced release", "a refused request"] {
        let (ours, theirs) = (locks(&stores).await, locks(&stores).await);
        let guard =
            if end == "a forced release" { &theirs } else { &ours }.mutex("stock").lock().await.unwrap();
        stores[2].faults().stall(SECOND * 4 / 10);
        match end {
            "a release" => guard.release().await.unwrap(),
            "a dropped guard" => drop(guard),
            "a forced release" => {
                assert!(ours.mutex("stock").force_release().await.unwrap());
                std::mem::forget(guard);
            }
            _ => {
                guard.release().await.unwrap();
                let guard = theirs.mutex("stock").lock().await.unwrap();
                assert!(ours.mutex("stock").try_lock().await.unwrap().is_none());
                guard.release().await.unwrap();
                theirs.close().await.unwrap();
            }
        }
        ours.close().await.unwrap();
        assert!(are_free(&stores), "{end}: {stores:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn close_does_not_wait_for_long_for_a_minority_that_stays_away() {
    let stores = stores(3);
    let locks = locks(&stores).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    stores[2].faults().stall(3600 * SECOND);
    guard.release().await.unwrap();
    let begun = Instant::now();
    locks.close().await.unwrap();
    assert_eq!(begun.elapsed(), SECOND, "two node timeouts");
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_stays_away_does_not_keep_the_next_one_waiting() {
    let stores = stores(3);
    let (ours, theirs) = (locks(&stores).await.mutex("stock"), locks(&stores).await.mutex("stock"));
    stores[2].faults().stall(3600 * SECOND);
    let guard = ours.lock().await.unwrap();
    let waiting = tokio::spawn(theirs.lock());
    tokio::time::sleep(5 * SECOND).await;
    let begun = Instant::now();
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    drop(guard);
    ours.lock().await.unwrap().release().await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_a_majority_lost_is_lost_at_once_and_goes_from_the_rest() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let begun = Instant::now();
    assert!(stores[0].faults().lose("stock") && stores[1].faults().lose("stock"));
    assert_eq!(guard.lost().await, Loss::Gone);
    until("the rest is ended", || are_free(&stores)).await;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    drop(guard);
    stock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_is_not_undone_by_its_holder() {
    let stores = stores(3);
    let (ours, theirs) = (locks(&stores).await.mutex("stock"), locks(&stores).await.mutex("stock"));
    let guard = ours.lock().await.unwrap();
    assert!(theirs.force_release().await.unwrap());
    assert!(!theirs.force_release().await.unwrap());
    assert!(!theirs.is_locked().await.unwrap());
    let next = theirs.lock().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Gone);
    drop(guard);
    tokio::time::sleep(40 * SECOND).await;
    assert!(!next.is_lost());
    assert_eq!(counts(&stores, &next), [Some(1); 3]);
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_until_the_deadline_a_hold_is_lost_there() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let end = guard.valid_until();
    stores[1..].iter().for_each(|store| store.faults().stall(60 * SECOND));
    assert_eq!(guard.lost().await, Loss::Expired);
    assert!(Instant::now() >= end && Instant::now() < end + Duration::from_millis(5));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_leaves_nothing_on_any_master() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    for polls in 0..4 {
        let mut request = Box::pin(stock.lock());
        for _ in 0..polls {
            if futures::poll!(&mut request).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(request);
        until("nothing is left", || are_free(&stores)).await;
    }
}
