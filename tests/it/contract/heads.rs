//! Heads that are not polled, and queues that change while requests wait in them.

use nestlock::{Owner, scope};

use super::{Home, SECOND, foreign_guard, without_timers};
use crate::support::{enlisted, eventually, parked, soon};

#[tokio::test]
async fn a_head_that_was_polled_once_is_passed_over() {
    let home = Home::start().await;
    let locks = without_timers(&home).connect().await.unwrap();
    let foreign = foreign_guard(&home, "stock").await;
    let stock = locks.mutex("stock");
    let parked = enlisted(&stock);
    let second = tokio::spawn(enlisted(&stock));
    foreign.release().await.unwrap();
    let guard = soon("the second", second).await.unwrap().unwrap();
    // The parked request is polled again, and has kept its place in the queue.
    let third = tokio::spawn(enlisted(&stock));
    let parked = tokio::spawn(parked);
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    let guard = soon("the parked one", parked).await.unwrap().unwrap();
    assert!(!third.is_finished());
    drop(guard);
    drop(soon("the third", third).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_sleeping_head_that_is_not_polled_is_passed_over() {
    let home = Home::start().await;
    let locks = without_timers(&home).connect().await.unwrap();
    let foreign = foreign_guard(&home, "stock").await;
    let stock = locks.mutex("stock");
    let mut head = enlisted(&stock);
    parked(&mut head, home.asleep(1)).await;
    let second = tokio::spawn(enlisted(&stock));
    foreign.release().await.unwrap();
    let guard = soon("the second", second).await.unwrap().unwrap();
    guard.release().await.unwrap();
    soon("the parked one", head).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_grant_that_nobody_polls_for_is_undone() {
    let home = Home::start().await;
    let patient = home.builder().node_timeout(SECOND).connect();
    let stock = patient.await.unwrap().mutex("stock");
    let lost = enlisted(&stock);
    eventually("its grant", async || home.keys().await == ["stock"]).await;
    let second = soon("the second", stock.lock().owner(&Owner::new())).await.unwrap();
    assert_eq!(home.fields("stock").await, [(second.hold_id().to_owned(), 1)]);
    second.release().await.unwrap();
    soon("the first, polled again", lost).await.unwrap().release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn a_child_waits_among_strangers_again_when_its_parents_hold_ends() {
    let home = Home::start().await;
    let locks = without_timers(&home).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let (held, free) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let first = scope(async {
        let guard = stock.lock().await.unwrap();
        held.notify_one();
        free.notified().await;
        guard.release().await.unwrap();
    });
    let second = scope(async {
        held.notified().await;
        let mut waiting = stock.lock();
        assert!(futures::poll!(&mut waiting).is_pending());
        // The parent's level ends and the first child's stays, so the second child is now a stranger.
        outer.release().await.unwrap();
        let stranger = tokio::spawn(enlisted(&stock));
        free.notify_one();
        let guard = waiting.await.unwrap();
        assert!(guard.depth() == 1 && !stranger.is_finished(), "it came before the stranger");
        guard.release().await.unwrap();
        drop(stranger.await.unwrap().unwrap());
    });
    soon("both", async { tokio::join!(first, second) }).await;
}
