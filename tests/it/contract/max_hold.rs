//! `max_hold` ends the hold of a task that hangs.

use std::future::pending;
use std::time::Duration;

use nestlock::{ErrorKind, Loss};
use tokio::time::Instant;

use super::{Home, LONG, SECOND};
use crate::support::{eventually, soon};

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_guard_is_lost_at_its_max_hold_and_its_lock_free_once_it_goes() {
    let home = Home::start().await;
    let stock = home.builder().lease(LONG).connect().await.unwrap().mutex("stock");
    let before = Instant::now();
    let guard = stock.lock().max_hold(SHORT).await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::MaxHold);
    assert!(Instant::now() >= before + SHORT);
    assert!(!stock.is_held() && stock.is_locked().await.unwrap());
    let error = guard.release().await.unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::MaxHold)));
    eventually("the lock's end", async || home.keys().await.is_empty()).await;
}

#[tokio::test]
async fn a_guard_that_stays_beyond_its_max_hold_is_renewed_no_more() {
    let home = Home::start().await;
    let stock = home.builder().lease(2 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().max_hold(SHORT).await.unwrap();
    eventually("the lease's end", async || home.keys().await.is_empty()).await;
    assert_eq!(guard.loss(), Some(Loss::MaxHold));
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Lost);
    drop(guard);
    stock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_max_hold_of_a_level_ends_that_level_only() {
    let home = Home::start().await;
    let stock = home.builder().lease(LONG).connect().await.unwrap().mutex("stock");
    let outer = stock.lock().await.unwrap();
    let inner = stock.lock().max_hold(SHORT).await.unwrap();
    assert_eq!(soon("the loss", inner.lost()).await, Loss::MaxHold);
    assert!(!outer.is_lost());
    assert_eq!(stock.hold_count(), 1);
    drop(inner);
    eventually("its count's end", async || home.count("stock", outer.hold_id()).await == Some(1)).await;
    let again = stock.lock().await.unwrap();
    assert_eq!(again.depth(), 2);
    again.release().await.unwrap();
    outer.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn a_run_drops_its_work_at_its_max_hold_and_frees_the_lock_at_once() {
    let home = Home::start().await;
    let stock = home.builder().lease(LONG).connect().await.unwrap().mutex("stock");
    let dropped = std::sync::Arc::new(());
    let held = dropped.clone();
    let work = async move {
        pending::<()>().await;
        drop(held);
    };
    let error = soon("the run's end", stock.lock().max_hold(SHORT).run(|_| work)).await.unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::MaxHold)));
    assert_eq!(std::sync::Arc::strong_count(&dropped), 1);
    soon("the next", stock.lock()).await.unwrap().release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn the_max_hold_of_an_inner_run_leaves_the_outer_one_running() {
    let home = Home::start().await;
    let stock = home.builder().lease(LONG).connect().await.unwrap().mutex("stock");
    let outer = stock.run(async |_| {
        let inner = stock.lock().max_hold(SHORT).run(|_| pending::<()>()).await;
        assert_eq!(inner.unwrap_err().loss(), Some(Loss::MaxHold));
        stock.run(async |_| stock.hold_count()).await.unwrap()
    });
    assert_eq!(soon("the outer run", outer).await.unwrap(), 2);
    assert!(home.keys().await.is_empty());
}
