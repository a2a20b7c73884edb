//! `check`, and what happens while it is under way.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use nestlock::{ErrorKind, Loss};

use super::{NODE_TIMEOUT, SECOND, rest, stock};
use crate::support::home::memory::Home;

async fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    let mut future = future;
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// 1. The command runs. 2. The lock is deleted, and this process is notified. 3. The client reads the answer, which says that the hold
/// stands.
#[tokio::test(start_paused = true)]
async fn a_check_that_ran_before_the_lock_was_deleted_does_not_confirm_it() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let guard = stock.lock().await.unwrap();
    rest().await;
    let mut check = pin!(guard.check());
    assert!(poll_once(check.as_mut()).await.is_pending(), "it was answered in its first poll");
    home.lose("stock").await;
    assert_eq!(check.await.unwrap_err().loss(), Some(Loss::Gone));
}

/// The check waits for the settle that the false alarm caused, and is then sent again.
#[tokio::test(start_paused = true)]
async fn a_check_beside_a_false_alarm_confirms_the_hold() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let guard = stock.lock().await.unwrap();
    rest().await;
    let mut check = Box::pin(guard.check());
    assert!(poll_once(check.as_mut()).await.is_pending());
    // The answer is dropped, and the client reconnects.
    home.stall(NODE_TIMEOUT / 2).await;
    check.await.unwrap();
    home.drop_replies(1).await;
    assert_eq!(guard.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
    guard.check().await.unwrap();
    guard.release().await.unwrap();
}

/// The machine may be busy, or the future may not be polled: then the answer says nothing about the present.
#[tokio::test(start_paused = true)]
async fn a_check_that_is_polled_after_the_end_of_its_hold_does_not_confirm_it() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let guard = stock.lock().fixed_lease(SECOND).await.unwrap();
    let mut check = pin!(guard.check());
    assert!(poll_once(check.as_mut()).await.is_pending());
    tokio::time::sleep(SECOND).await;
    assert_eq!(check.await.unwrap_err().loss(), Some(Loss::Expired));
}
