//! Deadlines count from before the command is sent.

use tokio::time::Instant;

use super::{SECOND, less_drift};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, locks, soon};

#[tokio::test]
async fn the_deadline_of_a_grant_counts_from_before_its_send() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let late = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let before = Instant::now();
    let asking = tokio::spawn(stock.lock().fixed_lease(20 * SECOND));
    late.done().await;
    let ran = Instant::now();
    late.let_through().await;
    let guard = soon("the lock", asking).await.unwrap().unwrap();
    assert!(guard.valid_until() >= before + less_drift(20 * SECOND));
    assert!(guard.valid_until() <= ran + less_drift(20 * SECOND));
}

#[tokio::test]
async fn the_deadline_of_a_reentry_counts_from_before_its_send() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let outer = stock.lock().fixed_lease(10 * SECOND).await.unwrap();
    let late = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let mut asking = Box::pin(stock.lock().fixed_lease(20 * SECOND));
    assert!(futures::poll!(&mut asking).is_pending());
    late.done().await;
    let ran = Instant::now();
    late.let_through().await;
    let _inner = soon("the re-entry", asking).await.unwrap();
    assert!(outer.valid_until() <= ran + less_drift(20 * SECOND));
}

#[tokio::test]
async fn the_deadline_of_a_renewal_counts_from_before_its_send() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(9 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    let granted = guard.valid_until();
    let late = proxy.on(|c| c.is("renew")).times(1).hold_reply();
    late.done().await;
    let ran = Instant::now();
    late.let_through().await;
    soon("the renewal", async {
        while guard.valid_until() == granted {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(guard.valid_until() > granted && guard.valid_until() <= ran + less_drift(9 * SECOND));
}

#[tokio::test]
async fn the_deadline_of_an_extension_counts_from_before_its_send() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let guard = stock.lock().fixed_lease(20 * SECOND).await.unwrap();
    let late = proxy.on(|c| c.is("renew")).times(1).hold_reply();
    let before = Instant::now();
    let mut extending = Box::pin(guard.extend(60 * SECOND));
    assert!(futures::poll!(&mut extending).is_pending());
    late.done().await;
    let ran = Instant::now();
    late.let_through().await;
    soon("the extension", extending).await.unwrap();
    assert!(guard.valid_until() >= before + less_drift(60 * SECOND));
    assert!(guard.valid_until() <= ran + less_drift(60 * SECOND));
}

/// The second attempt's lease does not lose the time of the first attempt, and does not count from the first one's start.
#[tokio::test]
async fn each_attempt_counts_from_its_own_send() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let lost = proxy.on(|c| c.is("acquire")).times(1).drop_reply_and_reset();
    let second = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let asking = tokio::spawn(stock.lock().fixed_lease(20 * SECOND));
    lost.done().await;
    let between = Instant::now();
    second.done().await;
    let ran = Instant::now();
    second.let_through().await;
    let guard = soon("the lock", asking).await.unwrap().unwrap();
    assert!(guard.valid_until() >= between + less_drift(20 * SECOND));
    assert!(guard.valid_until() <= ran + less_drift(20 * SECOND));
}
