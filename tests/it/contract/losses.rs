//! What requests and runs of a lost hold's owners return.

use std::sync::atomic::{AtomicBool, Ordering};

use nestlock::{ErrorKind, Loss, Owner, scope};
use tracing::Level;

use super::Home;
use crate::support::{eventually, log, soon};

#[tokio::test]
async fn after_a_loss_reentry_is_lost_until_the_last_guard_is_gone() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    let lost = outer.hold_id().to_owned();
    assert!(stock.force_release().await.unwrap());
    assert_eq!(soon("the loss", outer.lost()).await, Loss::Gone);
    assert_eq!((inner.loss(), stock.is_held(), stock.hold_count()), (Some(Loss::Gone), false, 0));
    for error in [
        stock.lock().await.unwrap_err(),
        stock.try_lock().await.unwrap_err(),
        scope(stock.lock()).await.unwrap_err(),
        stock.run(async |_| {}).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::Gone)));
    }
    // The loss doesn't concern another owner.
    let theirs = soon("a stranger", stock.lock().owner(&Owner::new())).await.unwrap();
    theirs.release().await.unwrap();
    assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(inner.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let fresh = soon("a new hold", stock.lock()).await.unwrap();
    assert_eq!((fresh.depth(), fresh.is_lost()), (1, false));
    assert_ne!(fresh.hold_id(), lost);
}

#[tokio::test]
async fn every_enclosing_run_of_a_lost_hold_ends() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let force = stock.clone();
    let inner = stock.run(async |_| {
        force.force_release().await.unwrap();
        std::future::pending::<()>().await;
    });
    // The middle run sees the inner run's end, and would go on without it.
    let middle = stock.run(async |_| {
        assert_eq!(inner.await.unwrap_err().kind(), ErrorKind::Lost);
        std::future::pending::<()>().await;
    });
    let outer = soon("the end of the outer run", stock.run(|_| middle)).await.unwrap_err();
    assert_eq!((outer.kind(), outer.loss()), (ErrorKind::Lost, Some(Loss::Gone)));
    assert_eq!(soon("a new hold", stock.lock()).await.unwrap().depth(), 1);
}

#[tokio::test]
async fn a_run_under_a_lost_hold_never_starts_its_work() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    stock.force_release().await.unwrap();
    soon("the loss", guard.lost()).await;
    let started = AtomicBool::new(false);
    let error = stock.run(async |_| started.store(true, Ordering::SeqCst)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(!started.load(Ordering::SeqCst));
}

#[tokio::test]
async fn work_that_ends_before_its_loss_is_known_counts() {
    let home = Home::start().await;
    let (ours, theirs) = (home.locks().await, home.locks().await);
    let name = home.unique("gone-at-the-end");
    let stock = ours.mutex(&name);
    // No message reports the loss, so the release finds it.
    let work = async { theirs.mutex(&name).force_release().await.unwrap() };
    assert!(stock.run(|_| work).await.unwrap());
    let event = log::recorded(|e| e.mentions(&name) && e.mentions("work done")).await;
    assert_eq!(event.level, Level::WARN);
}

#[tokio::test]
async fn children_that_wait_for_a_lost_hold_end_with_lost() {
    let home = Home::start().await;
    let stock = super::counting(&home).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let first = scope(async {
        let inner = stock.lock().await.unwrap();
        let loss = inner.lost().await;
        (loss, inner)
    });
    let second = scope(async {
        eventually("the first child's hold", async || home.count("stock", guard.hold_id()).await == Some(2))
            .await;
        let mut waiting = stock.lock();
        assert!(futures::poll!(&mut waiting).is_pending());
        stock.force_release().await.unwrap();
        waiting.await.unwrap_err()
    });
    let ((loss, _inner), error) = soon("both", async { tokio::join!(first, second) }).await;
    assert_eq!((loss, error.kind(), error.loss()), (Loss::Gone, ErrorKind::Lost, Some(Loss::Gone)));
    assert!(guard.is_lost());
}
