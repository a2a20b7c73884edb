//! The order in which the commands of one process are sent.

use std::time::Duration;

use super::count;
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, locks, soon};

#[tokio::test]
async fn a_request_goes_after_the_release_of_the_guard_that_was_dropped_before_it() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let release = proxy.on(|c| c.is("release")).times(1).hold();
    let acquire = proxy.on(|c| c.is("acquire")).watch();
    drop(guard);
    let mut asking = Box::pin(stock.try_lock());
    assert!(futures::poll!(&mut asking).is_pending());
    release.seen().await;
    assert!(acquire.seen_now().is_none());
    assert_eq!(release.let_through().await, [":-4\r\n"]);
    assert!(soon("the answer", asking).await.unwrap().is_some(), "it met its own earlier hold");
}

#[tokio::test]
async fn guards_dropped_together_are_released_by_one_command_or_two() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = locks(&proxy.url()).await;
    let stock = locks.mutex("stock");
    let releases = proxy.on(|c| c.is("release")).watch();
    let mut guards = Vec::new();
    for _ in 0..6 {
        guards.push(stock.lock().await.unwrap());
    }
    let field = guards[0].hold_id().to_owned();
    guards.drain(1..).rev().for_each(drop);
    let outer = guards.remove(0);
    let inner = stock.lock().await.unwrap();
    assert_eq!((inner.depth(), count(&server, "stock", &field).await.as_deref()), (2, Some("2")));
    drop((inner, outer));
    locks.close().await.unwrap();
    assert!(server.keys().await.is_empty());
    let counts: Vec<_> = std::iter::from_fn(|| releases.seen_now()).map(|c| c.argv()[1].clone()).collect();
    assert!(counts.len() <= 4, "more than two for each batch: {counts:?}");
    assert_eq!(counts.last().map(String::as_str), Some("0"));
}

#[tokio::test]
async fn several_names_are_asked_for_and_released_in_one_round_trip() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let several = locks(&proxy.url()).await.mutexes(["a", "b", "c", "d"]);
    let first = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let others = proxy.on(|c| c.is("acquire")).skip(1).watch();
    let request = tokio::spawn(several.lock());
    // No answer has arrived yet.
    assert_eq!(first.seen().await.keys()[0], "a");
    for name in ["b", "c", "d"] {
        assert_eq!(others.seen().await.keys()[0], name);
    }
    first.let_through().await;
    let guards = soon("all", request).await.unwrap().unwrap();
    assert!(others.seen_now().is_none());
    let first = proxy.on(|c| c.is("release")).times(1).hold_reply();
    let others = proxy.on(|c| c.is("release")).skip(1).watch();
    let release = tokio::spawn(guards.release());
    assert_eq!(first.seen().await.keys()[0], "a");
    for name in ["b", "c", "d"] {
        assert_eq!(others.seen().await.keys()[0], name);
    }
    first.let_through().await;
    soon("the release", release).await.unwrap().unwrap();
}

/// Two commands could overtake each other on the wire.
#[tokio::test]
async fn one_command_of_a_hold_is_under_way_at_a_time() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = locks(&proxy.url()).await;
    let stock = locks.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    let first = proxy.on(|c| c.is("renew")).times(1).hold_reply();
    let others =
        proxy.on(|c| c.names("stock") && ["acquire", "release", "settle"].iter().any(|s| c.is(s))).watch();
    let barrier = proxy.on(|c| c.is("look")).watch();
    let mut extending = Box::pin(outer.extend(Duration::from_secs(60)));
    assert!(futures::poll!(&mut extending).is_pending());
    first.done().await;
    drop(inner);
    let mut reentry = Box::pin(stock.lock());
    assert!(futures::poll!(&mut reentry).is_pending());
    let mut look = Box::pin(stock.is_locked());
    assert!(futures::poll!(&mut look).is_pending());
    barrier.seen().await;
    assert!(others.seen_now().is_none());
    first.let_through().await;
    soon("the extension", extending).await.unwrap();
    let next = soon("the re-entry", reentry).await.unwrap();
    assert_eq!((next.depth(), count(&server, "stock", next.hold_id()).await.as_deref()), (2, Some("2")));
    assert!(look.await.unwrap());
    drop((next, outer));
    locks.close().await.unwrap();
    assert!(server.keys().await.is_empty());
}

/// Otherwise a hold without a guard would be renewed for ever. The renewals of another lock measure the time.
#[tokio::test]
async fn a_hold_that_was_left_is_renewed_no_more_also_while_its_release_fails() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = builder(&proxy.url()).lease(Duration::from_secs(12)).connect().await.unwrap();
    let clock = locks.mutex("clock").lock().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    let ticks = proxy.on(|c| c.is("renew") && c.names("clock")).watch();
    let renewed = proxy.on(|c| c.names("stock") && (c.is("renew") || c.is("settle"))).watch();
    renewed.seen().await;
    let trouble = proxy.on(|c| c.is("release")).times(2).lose_and_reset();
    drop(guard);
    for _ in 0..2 {
        trouble.done().await;
    }
    while ticks.seen_now().is_some() {}
    for _ in 0..2 {
        ticks.seen().await;
    }
    assert!(renewed.seen_now().is_none());
    assert_eq!(server.keys().await, ["clock"]);
    assert!(!clock.is_lost());
}

#[tokio::test]
async fn the_clean_up_of_an_old_hold_leaves_the_renewal_of_the_new_one_alone() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(Duration::from_secs(9)).connect().await.unwrap().mutex("stock");
    let old = stock.lock().await.unwrap();
    let lost = proxy.on(|c| c.is("release")).times(1).drop_reply_and_reset();
    drop(old);
    let new = soon("the next hold", stock.lock()).await.unwrap();
    lost.done().await;
    let field = new.hold_id().to_owned();
    let renewals = proxy.on(move |c| c.is("renew") && c.names(&field)).watch();
    for _ in 0..4 {
        renewals.seen().await;
    }
    assert!(!new.is_lost());
    new.release().await.unwrap();
}
