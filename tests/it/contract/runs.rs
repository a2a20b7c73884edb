//! A `run` ends when its hold does.

use std::future::pending;
use std::sync::Arc;

use nestlock::{ErrorKind, Loss};

use super::{Home, LONG};
use crate::support::{eventually, soon};

#[tokio::test]
async fn a_run_drops_its_work_when_the_hold_is_lost() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let witness = Arc::new(());
    let held = witness.clone();
    let runs = stock.clone();
    let running = tokio::spawn(runs.run(async move |_| {
        pending::<()>().await;
        drop(held);
    }));
    eventually("the work", async || stock.is_locked().await.unwrap()).await;
    eventually("the loss", async || {
        stock.force_release().await.unwrap();
        running.is_finished()
    })
    .await;
    let error = running.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::Gone)));
    assert_eq!(Arc::strong_count(&witness), 1);
    stock.lock().await.unwrap().release().await.unwrap();
}

/// The inner run's error arrives first. The work of the outer run must not go on because of it.
#[tokio::test]
async fn every_run_around_a_lost_hold_ends() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let other = locks.mutex("other");
    let forced = tokio::sync::Notify::new();
    let around = stock.run(async |_| {
        let inner = other.run(|_| {
            stock.run(async |_| {
                forced.notify_one();
                pending::<()>().await
            })
        });
        let _ = inner.await;
        pending::<()>().await
    });
    let force = async {
        forced.notified().await;
        locks.mutex("stock").force_release().await.unwrap();
    };
    let (outcome, ()) = soon("the end of both", async { tokio::join!(around, force) }).await;
    assert_eq!(outcome.unwrap_err().loss(), Some(Loss::Gone));
    locks.close().await.unwrap();
    assert!(home.keys().await.is_empty(), "the lock between them is not free");
}

#[tokio::test]
async fn a_run_under_a_lost_hold_never_starts() {
    let home = Home::start().await;
    let locks = super::counting(&home).await;
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    // This client is not subscribed, so no message reports the loss.
    assert!(home.locks().await.mutex("stock").force_release().await.unwrap());
    let mut started = false;
    let error = stock.run(async |_| started = true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(!started);
    drop(guard);
    stock.run(async |_| {}).await.unwrap();
}

#[tokio::test]
async fn requests_that_wait_to_enter_a_lost_hold_fail() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let (one, two) = (guard.owner().child(), guard.owner().child());
    let first = stock.lock().owner(&one).await.unwrap();
    let mut second = Box::pin(stock.lock().owner(&two));
    assert!(futures::poll!(&mut second).is_pending());
    stock.force_release().await.unwrap();
    assert_eq!(soon("its answer", second).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(soon("the loss", first.lost()).await, Loss::Gone);
}
