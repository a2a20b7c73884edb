//! Commands that run long after their client gave them up.

use std::time::Duration;

use nestlock::ErrorKind;

use super::{count, fields, ttl};
use crate::support::proxy::{Proxy, Which};
use crate::support::server::Server;
use crate::support::{SECOND, builder, eventually, locks, soon};

/// 1. An outer hold has a fixed lease. 2. An inner level is taken. 3. Its `release(1)` gets no answer, and is settled. 4. A re-entry for 60
/// s is granted. 5. The late release runs. If it set a TTL, a stranger would get the lock under a guard that is valid for 60 s.
#[tokio::test]
async fn a_late_nested_release_does_not_shorten_a_longer_reentry() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let (ours, strangers) = (locks(&proxy.url()).await, locks(&server.url()).await);
    let stock = ours.mutex("stock");
    let outer = stock.lock().fixed_lease(20 * SECOND).await.unwrap();
    let inner = stock.lock().fixed_lease(10 * SECOND).await.unwrap();
    let late = proxy.on(|c| c.is("release")).times(1).hold();
    let settled = proxy.on(|c| c.is("settle")).watch();
    let releasing = tokio::spawn(inner.release());
    assert_eq!(late.seen().await.argv()[1], "1");
    proxy.reset(Which::Commands).await;
    let _ = soon("the release's end", releasing).await.unwrap();
    let longer = soon("the re-entry", stock.lock().fixed_lease(60 * SECOND)).await.unwrap();
    assert_eq!(longer.depth(), 2);
    assert!(settled.seen_now().is_some(), "an unknown outcome is settled before the hold's next command");
    assert_eq!(late.let_through().await, [":-1\r\n"]);
    assert!(ttl(&server, "stock").await > 50_000);
    assert!(strangers.mutex("stock").try_lock().await.unwrap().is_none());
    // The count may be off by one now, and the next command corrects it.
    let third = stock.lock().await.unwrap();
    assert_eq!(count(&server, "stock", outer.hold_id()).await.as_deref(), Some("3"));
    third.release().await.unwrap();
    longer.release().await.unwrap();
    assert_eq!(count(&server, "stock", outer.hold_id()).await.as_deref(), Some("1"));
    outer.release().await.unwrap();
    assert!(server.keys().await.is_empty());
}

/// If both holds had the same field, the old release would end the newer hold. That takes 15 steps, so no random test finds it.
#[tokio::test]
async fn a_late_release_of_an_earlier_hold_leaves_the_newer_one_alone() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let (ours, strangers) = (locks(&proxy.url()).await, locks(&server.url()).await);
    let stock = ours.mutex("stock");
    let first = stock.lock().await.unwrap();
    let old = first.hold_id().to_owned();
    let late = proxy.on(|c| c.is("release")).times(1).hold();
    drop(first);
    late.seen().await;
    proxy.reset(Which::Commands).await;
    let second = soon("the next hold", stock.lock()).await.unwrap();
    assert_ne!(second.hold_id(), old);
    assert_eq!(late.let_through().await, [":-2\r\n"]);
    assert_eq!(fields(&server, "stock").await, [(second.hold_id().to_owned(), "1".to_owned())]);
    assert!(strangers.mutex("stock").try_lock().await.unwrap().is_none());
    second.release().await.unwrap();
    assert!(server.keys().await.is_empty());
}

/// The network may hold back the acquire for any time. Then it sets a field that has no guard. A second end removes the field, or its lease
/// does.
#[tokio::test]
async fn an_acquire_that_runs_after_its_end_blocks_others_until_it_is_ended_again() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let ours = builder(&proxy.url()).connect().await.unwrap();
    let stock = ours.mutex("stock");
    let late = proxy.on(|c| c.is("acquire")).times(1).hold();
    let ended = proxy.on(|c| c.is("release")).times(1).delay_reply(Duration::ZERO);
    let again = proxy.on(|c| c.is("release")).times(1).hold();
    let asking = tokio::spawn(stock.try_lock());
    let ghost = late.seen().await.argv()[0].clone();
    proxy.reset(Which::Commands).await;
    let error = soon("the attempt's end", asking).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(ended.done().await.names(&ghost));
    assert_eq!(late.let_through().await, [":-1\r\n"]);
    assert_eq!(fields(&server, "stock").await, [(ghost.clone(), "1".to_owned())]);
    assert!(ttl(&server, "stock").await <= 30_000);
    assert!(stock.try_lock().await.unwrap().is_none());

    assert!(soon("the second end", again.seen()).await.names(&ghost));
    again.let_through().await;
    let guard = soon("the lock, after the ghost", stock.lock()).await.unwrap();
    assert_ne!(guard.hold_id(), ghost);
    assert_eq!(fields(&server, "stock").await, [(guard.hold_id().to_owned(), "1".to_owned())]);
}

#[tokio::test]
async fn a_late_reentry_after_the_last_release_leaves_no_ghost() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let late = proxy.on(|c| c.is("acquire")).times(1).hold();
    {
        let mut inner = Box::pin(stock.try_lock());
        assert!(futures::poll!(&mut inner).is_pending());
        assert_eq!(late.seen().await.argv()[1], "2");
        proxy.reset(Which::Commands).await;
        assert_eq!(soon("the attempt's end", inner).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    soon("the release", outer.release()).await.unwrap();
    assert!(server.keys().await.is_empty());
    assert_eq!(late.let_through().await, [":-2\r\n"]);
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn the_last_release_ends_the_hold_whatever_its_count() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let outer = stock.lock().await.unwrap();
    // The acquire has run and the count is 2, but this process doesn't know that. A release that counted down by one would leave the count
    // at 1 for ever.
    let lost = proxy.on(|c| c.is("acquire")).times(1).drop_reply_and_reset();
    let settles = proxy.on(|c| c.is("settle")).lose_and_reset();
    stock.try_lock().await.unwrap_err();
    lost.done().await;
    assert_eq!(count(&server, "stock", outer.hold_id()).await.as_deref(), Some("2"));
    drop(outer);
    eventually("the end of the hold", async || server.keys().await.is_empty()).await;
    drop(settles);
}

#[tokio::test]
async fn a_late_renewal_does_not_cut_an_extended_lease() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(9 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    let late = proxy.on(|c| c.is("renew")).times(1).hold();
    late.seen().await;
    proxy.reset(Which::Commands).await;
    soon("the extension", guard.extend(60 * SECOND)).await.unwrap();
    // The renewal finds the longer TTL. A server before Redis 7 can't report when the key ends.
    let found = late.let_through().await;
    assert!(found[0].starts_with("*2\r\n:") || found[0] == ":-1\r\n", "{found:?}");
    assert!(ttl(&server, "stock").await > 50_000);
    assert!(!guard.is_lost());
}
