//! The future that `lost()` returns.

use futures::future::join_all;
use nestlock::Loss;
use tokio::time::Instant;

use super::{Home, LONG, SECOND};
use crate::support::soon;

#[tokio::test]
async fn any_number_of_callers_is_notified() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    let forced = async {
        tokio::task::yield_now().await;
        locks.mutex("stock").force_release().await.unwrap();
    };
    let outers = join_all((0..100).map(|_| outer.lost()));
    let inners = join_all((0..100).map(|_| inner.lost()));
    let (outers, inners, ()) = soon("all of them", async { tokio::join!(outers, inners, forced) }).await;
    assert!(outers.into_iter().chain(inners).all(|loss| loss == Loss::Gone));
    assert_eq!(soon("a late caller", outer.lost()).await, Loss::Gone);
}

#[tokio::test]
async fn a_caller_that_goes_away_takes_nothing_along() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let mut stays = Box::pin(guard.lost());
    assert!(futures::poll!(&mut stays).is_pending());
    for _ in 0..10 {
        let mut goes = Box::pin(guard.lost());
        assert!(futures::poll!(&mut goes).is_pending());
    }
    stock.force_release().await.unwrap();
    assert_eq!(soon("the loss", stays).await, Loss::Gone);
}

#[tokio::test]
async fn a_hold_is_lost_at_its_deadline_after_close() {
    let home = Home::start().await;
    let locks = home.builder().lease(2 * SECOND).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    locks.close().await.unwrap();
    let end = guard.valid_until();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert!(Instant::now() >= end);
}

#[tokio::test]
async fn a_guard_is_released_after_close() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    locks.close().await.unwrap();
    guard.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn a_lost_hold_is_not_valid_in_any_time_to_come() {
    let home = Home::start().await;
    let ours = home.locks().await;
    let stock = ours.mutex("stock");
    let guard = stock.lock().await.unwrap();
    assert!(stock.force_release().await.unwrap());
    soon("the loss", guard.lost()).await;
    assert!(guard.valid_until() <= tokio::time::Instant::now());
    let limited = ours.mutex("limited").lock().max_hold(std::time::Duration::from_millis(50)).await.unwrap();
    soon("its end", limited.lost()).await;
    assert!(limited.valid_until() <= tokio::time::Instant::now());
}
