//! A grant needs a majority, and does not wait for the other masters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use nestlock::{ErrorKind, Owner};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_hold_is_set_on_all_masters_with_its_count_and_removed_from_all() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    let outer = stock.lock().await.unwrap();
    assert_eq!(counts(&stores, &outer), [Some(1); 3]);
    let inner = stock.lock().await.unwrap();
    assert_eq!(counts(&stores, &outer), [Some(2); 3]);
    inner.release().await.unwrap();
    assert_eq!(counts(&stores, &outer), [Some(1); 3]);
    outer.release().await.unwrap();
    assert!(are_free(&stores));
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_is_away_delays_nothing() {
    for masters in [3, 5] {
        let stores = stores(masters);
        let locks = locks(&stores).await;
        let away = &stores[masters / 2 + 1..];
        away.iter().for_each(|store| store.faults().stall(3600 * SECOND));
        let stock = locks.mutex("stock");
        let begun = Instant::now();
        let guard = stock.lock().await.unwrap();
        let inner = stock.lock().await.unwrap();
        inner.release().await.unwrap();
        guard.extend(10 * SECOND).await.unwrap();
        assert!(stock.is_locked().await.unwrap());
        guard.release().await.unwrap();
        stock.run(async |_| {}).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_nobody_gets_anything() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    stores[1..].iter().for_each(|store| store.faults().stall(20 * SECOND));
    let begun = Instant::now();
    assert_eq!(stock.try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(begun.elapsed(), Duration::from_millis(500));
    let error = stock.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() >= 10 * SECOND && begun.elapsed() < 12 * SECOND, "{:?}", begun.elapsed());
    // The grant of the first master is undone, and so are the later grants of the others.
    until("nothing is left", || are_free(&stores)).await;
    assert!(begun.elapsed() < 22 * SECOND);
    tokio::time::sleep_until(begun + 20 * SECOND).await; // then they answer again
    stock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_nested_hold_and_its_release_need_a_majority_too() {
    for masters in [3, 5] {
        let stores = stores(masters);
        let stock = locks(&stores).await.mutex("stock");
        let outer = stock.lock().await.unwrap();
        let inner = stock.lock().await.unwrap();
        stores[masters / 2..].iter().for_each(|store| store.faults().stall(3 * SECOND));
        let error = stock.try_lock().await.unwrap_err();
        assert_eq!((error.kind(), stock.hold_count()), (ErrorKind::Unavailable, 2));
        assert_eq!(inner.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
        // The background undoes the failed request.
        until("all count one", || counts(&stores, &outer) == vec![Some(1); masters]).await;
        assert!(!outer.is_lost());
        outer.release().await.unwrap();
        assert!(are_free(&stores));
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_takes_long_is_good_for_as_much_less() {
    let stores = stores(3);
    let locks = builder(&stores).node_timeout(20 * SECOND).connect().await.unwrap();
    let begun = Instant::now();
    stores[1..].iter().for_each(|store| store.faults().stall(10 * SECOND));
    let guard = locks.mutex("stock").lock().await.unwrap();
    assert!(begun.elapsed() >= 10 * SECOND, "{:?}", begun.elapsed());
    // The deadline counts from before the request, less the drift: at that time the first master may expire the hold.
    let drift = 30 * SECOND / 100 + Duration::from_millis(2);
    assert_eq!(guard.valid_until(), begun + 30 * SECOND - drift);
}

#[tokio::test(start_paused = true)]
async fn clients_that_compete_exclude_each_other_and_all_get_on() {
    let stores = stores(5);
    let inside = Arc::new(AtomicUsize::new(0));
    let mut crowd = JoinSet::new();
    for client in 0..5 {
        let (stock, inside) = (locks(&stores).await.mutex("stock"), inside.clone());
        crowd.spawn(async move {
            for round in 0..20 {
                let guard = stock.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, SeqCst), 0, "two were inside at once");
                tokio::time::sleep(Duration::from_millis((client * 7 + round) % 5)).await;
                assert_eq!(inside.fetch_sub(1, SeqCst), 1, "two were inside at once");
                guard.release().await.unwrap();
            }
        });
    }
    let begun = Instant::now();
    crowd.join_all().await;
    assert!(begun.elapsed() < 300 * SECOND, "{:?}", begun.elapsed());
    until("nothing is left", || are_free(&stores)).await;
}

#[tokio::test(start_paused = true)]
async fn a_split_vote_is_undone_and_asked_for_again() {
    let stores = stores(3);
    // Two other clients each hold the lock on a minority of our masters.
    let first = locks(&stores[..1]).await.mutex("stock").lock().owner(&Owner::new()).await.unwrap();
    let second = locks(&stores[1..2]).await.mutex("stock").lock().owner(&Owner::new()).await.unwrap();
    let stock = locks(&stores).await.mutex("stock");
    assert!(stock.try_lock().await.unwrap().is_none());
    until("the part that was granted is ended", || is_free(&stores[2])).await;
    let waiting = tokio::spawn(stock.lock());
    tokio::time::sleep(5 * SECOND).await;
    first.release().await.unwrap();
    let begun = Instant::now();
    let guard = waiting.await.unwrap().unwrap();
    // After this many failures the request pauses for up to a second, even if messages arrive.
    assert!(begun.elapsed() <= SECOND, "{:?}", begun.elapsed());
    until("the third is asked", || counts(&stores, &guard)[2] == Some(1)).await;
    assert_eq!(counts(&stores, &guard), [Some(1), None, Some(1)]);
    second.release().await.unwrap();
    // The next renewal finds the masters that lack the field.
    until("the second has it too", || counts(&stores, &guard) == [Some(1); 3]).await;
    guard.release().await.unwrap();
    assert!(are_free(&stores));
}

#[tokio::test(start_paused = true)]
async fn a_majority_whose_answers_are_lost_is_asked_under_a_new_field() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    stores[..2].iter().for_each(|store| store.faults().drop_replies(1));
    let guard = stock.lock().await.unwrap();
    assert_eq!(counts(&stores, &guard), [Some(1); 3]);
    for store in &stores {
        assert_eq!(format!("{store:?}").matches("field").count(), 1, "{store:?}");
    }
    guard.release().await.unwrap();
    assert!(are_free(&stores));
}

#[tokio::test(start_paused = true)]
async fn a_minority_whose_answers_are_lost_changes_nothing() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    for _ in 0..10 {
        let begun = Instant::now();
        stores[0].faults().drop_replies(3);
        let outer = stock.lock().await.unwrap();
        let inner = stock.lock().await.unwrap();
        assert_eq!(counts(&stores, &inner), [Some(2); 3]);
        inner.release().await.unwrap();
        outer.release().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(are_free(&stores));
        stores[0].faults().drop_replies(0);
        tokio::time::sleep(SECOND).await;
    }
}
