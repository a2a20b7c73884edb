//! What `close` finishes, and what remains to be done after it.

use std::time::Duration;

use futures::future::join_all;
use nestlock::{Error, ErrorKind, Loss};

use super::{Home, LONG, SECOND, long_lived};
use crate::support::{eventually, soon};

/// Checks that this is the error of a closed `Locks`, and that it names `close`.
fn closed(error: Error) {
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(error.to_string().contains("was closed"), "{error}");
}

#[tokio::test]
async fn close_finishes_queued_releases() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let mutexes: Vec<_> = (0..100).map(|at| locks.mutex(format!("stock:{at}"))).collect();
    let guards = join_all(mutexes.iter().map(|mutex| mutex.lock())).await;
    assert_eq!(home.keys().await.len(), 100);
    drop(guards);
    locks.close().await.unwrap();
    assert!(home.keys().await.is_empty());
    home.deserted().await;
}

#[tokio::test]
async fn close_may_be_called_again_and_at_once() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    drop(guard);
    let closed = join_all((0..5).map(|_| locks.close())).await;
    assert!(closed.iter().all(Result::is_ok), "{closed:?}");
    locks.clone().close().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn everything_is_closed_after_close() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    locks.close().await.unwrap();
    let before = home.asked().await;
    closed(stock.lock().await.unwrap_err());
    closed(stock.lock().within(Duration::ZERO).await.unwrap_err());
    closed(stock.try_lock().await.unwrap_err());
    closed(stock.run(async |_| {}).await.unwrap_err());
    closed(stock.try_lock().run(async |_| {}).await.unwrap_err());
    closed(stock.is_locked().await.unwrap_err());
    closed(stock.remaining_lease().await.unwrap_err());
    closed(stock.force_release().await.unwrap_err());
    closed(guard.extend(LONG).await.unwrap_err());
    closed(locks.mutex("other").lock().await.unwrap_err());
    assert_eq!(home.asked().await, before);
    guard.release().await.unwrap();
    home.tidy().await;
}

#[tokio::test]
async fn a_guard_can_be_released_after_close() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let stock = locks.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    locks.close().await.unwrap();
    assert_eq!(home.keys().await, ["stock"]);
    inner.release().await.unwrap();
    assert_eq!(home.keys().await, ["stock"]);
    outer.release().await.unwrap();
    assert!(home.keys().await.is_empty());
    drop((locks, stock));
    home.deserted().await;
}

#[tokio::test]
async fn a_guard_dropped_after_close_is_released_as_well_as_possible() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    locks.close().await.unwrap();
    drop(guard);
    home.tidy().await;
}

#[tokio::test]
async fn renewal_ends_with_close_and_the_guard_is_lost_at_its_end() {
    let home = Home::start().await;
    let lease = Duration::from_secs(2);
    let locks = home.builder().lease(lease).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    locks.close().await.unwrap();
    let until = guard.valid_until();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert!(tokio::time::Instant::now() >= until);
    assert_eq!(guard.valid_until().max(until), until.max(guard.valid_until()));
    eventually("the lease's end", async || home.keys().await.is_empty()).await;
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Expired));
}

#[tokio::test]
async fn requests_that_wait_end_with_close() {
    let home = Home::start().await;
    let (holder, locks) = (long_lived(&home).await, long_lived(&home).await);
    let guard = holder.mutex("stock").lock().await.unwrap();
    let waiters: Vec<_> = (0..5)
        .map(|_| {
            let stock = locks.mutex("stock");
            tokio::spawn(async move { stock.lock().await })
        })
        .collect();
    home.listened().await;
    locks.close().await.unwrap();
    for waiter in waiters {
        closed(soon("a waiter's end", waiter).await.unwrap().unwrap_err());
    }
    home.silence().await;
    guard.release().await.unwrap();
    home.tidy().await;
}

#[tokio::test]
async fn close_reports_releases_that_are_left_to_their_leases() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).node_timeout(SECOND).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    home.stall(LONG).await;
    drop(guard);
    let error = soon("the close", locks.close()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    home.stall(Duration::ZERO).await;
    // The rest is done in the background.
    home.tidy().await;
    home.deserted().await;
    locks.close().await.unwrap();
}
