use std::future::pending;
use std::pin::pin;
use std::task::Waker;

use super::*;
use crate::{Guards, Locks};

/// Checks that a run of this request, which is not granted, asks as one owner however often it is polled.
/// Otherwise each poll would put one more owner between the hold and the work.
fn assert_one_owner<A: Answer>(request: A::Asks) {
    let mut run = pin!(Run::<A, _>::new(request, |_: A::Hold| pending::<()>()));
    let mut context = Context::from_waker(Waker::noop());
    let mut asks = || {
        assert!(run.as_mut().poll(&mut context).is_pending());
        match &mut *run.as_mut().project().stage {
            RunStage::Asking { request, .. } => request.options_mut().owner.clone(),
            _ => None,
        }
    };
    let first = asks();
    assert!(first.is_some());
    for _ in 0..3 {
        assert_eq!(asks(), first);
    }
}

#[tokio::test]
async fn a_run_that_waits_asks_as_one_owner() {
    let stock = Locks::in_memory().mutex("stock");
    let _held = stock.lock().owner(&Owner::new()).await.unwrap();
    assert_one_owner::<Guard>(stock.request(None));
}

#[tokio::test]
async fn a_run_that_waits_for_several_names_asks_as_one_owner() {
    let locks = Locks::in_memory();
    let _held = locks.mutex("b").lock().owner(&Owner::new()).await.unwrap();
    assert_one_owner::<Guards>(locks.mutexes(["a", "b"]).request(None));
}

/// Otherwise the run would keep the lock, and never end.
#[tokio::test]
async fn a_run_that_is_polled_after_its_closure_panicked_fails_and_frees_the_lock() {
    let stock = Locks::in_memory().mutex("stock");
    let mut run = Box::pin(stock.run(|_| -> std::future::Ready<()> { panic!("why it ends") }));
    let polls = std::panic::AssertUnwindSafe(&mut run);
    assert!(futures::FutureExt::catch_unwind(polls).await.is_err());
    assert_eq!(run.await.unwrap_err().kind(), ErrorKind::Misuse);
    assert!(stock.lock().await.is_ok());
}

#[tokio::test]
async fn a_run_that_is_polled_after_it_was_ready_says_so() {
    let stock = Locks::in_memory().mutex("stock");
    let mut ran = pin!(stock.run(async |_| 1));
    let mut refused = pin!(stock.try_lock().owner(&Owner::new()).run(async |_| 1));
    let held = stock.lock().await.unwrap();
    assert_eq!(ran.as_mut().await.unwrap(), 1);
    assert_eq!(refused.as_mut().await.unwrap(), None);
    drop(held);
    assert_eq!(ran.await.unwrap_err().kind(), ErrorKind::Misuse);
    assert_eq!(refused.await.unwrap_err().kind(), ErrorKind::Misuse);
}
