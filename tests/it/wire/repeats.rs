//! Commands that ran but whose answers were lost or came too late.

use std::time::Duration;

use nestlock::{ErrorKind, Loss};
use tokio::time::{Instant, sleep_until};

use super::{count, fields};
use crate::support::proxy::{Proxy, Which};
use crate::support::server::Server;
use crate::support::{PATIENCE, SECOND, builder, eventually, locks, soon};

#[tokio::test]
async fn a_grant_whose_answer_was_lost_is_settled_and_asked_for_under_a_fresh_field() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let asked = proxy.on(|c| c.is("acquire")).watch();
    let lost = proxy.on(|c| c.is("acquire")).times(1).drop_reply_and_reset();
    let guard = soon("the lock", stock.lock()).await.unwrap();
    let first = lost.done().await.argv()[0].clone();
    assert_ne!(guard.hold_id(), first);
    assert_eq!(fields(&server, "stock").await, [(guard.hold_id().to_owned(), "1".to_owned())]);
    guard.release().await.unwrap();
    let mut asked_for = vec![asked.seen().await.argv()[0].clone()];
    while let Some(command) = asked.seen_now() {
        let field = command.argv()[0].clone();
        assert!(!asked_for.contains(&field), "an acquire of unknown outcome was sent again");
        asked_for.push(field);
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_reentry_whose_answer_was_lost_counts_once_however_often_it_is_asked_for() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let lost = proxy.on(|c| c.is("acquire")).times(3).drop_reply_and_reset();
    let inner = soon("the re-entry", stock.lock()).await.unwrap();
    for _ in 0..3 {
        assert_eq!(lost.done().await.argv()[1], "2");
    }
    assert_eq!((inner.depth(), inner.hold_id()), (2, outer.hold_id()));
    assert_eq!(count(&server, "stock", outer.hold_id()).await.as_deref(), Some("2"));
    inner.release().await.unwrap();
    assert_eq!(count(&server, "stock", outer.hold_id()).await.as_deref(), Some("1"));
    outer.release().await.unwrap();
    assert!(server.keys().await.is_empty());
}

/// The repeated release must not count down by one: that would free the lock under the outer guard.
#[tokio::test]
async fn a_nested_release_whose_answer_was_lost_counts_down_once() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let ours = locks(&proxy.url()).await;
    let stock = ours.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    let lost = proxy.on(|c| c.is("release")).times(1).drop_reply_and_reset();
    let healed = proxy.on(|c| c.is("settle")).delay_reply(Duration::ZERO);
    drop(inner);
    lost.done().await;
    healed.done().await;
    assert_eq!(count(&server, "stock", outer.hold_id()).await.as_deref(), Some("1"));
    outer.release().await.unwrap();
    assert!(server.keys().await.is_empty());
}

/// The lease is longer than the test waits: if the lock becomes free, the settle has freed it.
#[tokio::test]
async fn a_try_lock_whose_answer_was_lost_leaves_nothing_behind() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let ours = builder(&proxy.url()).lease(120 * SECOND).connect().await.unwrap();
    let stock = ours.mutex("stock");
    let lost = proxy.on(|c| c.is("acquire")).times(1).drop_reply_and_reset();
    assert_eq!(stock.try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    lost.done().await;
    eventually("the settle", async || server.keys().await.is_empty()).await;
    assert!(stock.try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_repeated_last_release_that_finds_nothing_is_done_before_the_deadline() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    let first = proxy.on(|c| c.is("release")).times(1).hold_reply();
    let lost = proxy.on(|c| c.is("release")).times(1).drop_reply_and_reset();
    let repeats = proxy.on(|c| c.is("release") && c.argv()[1] == "0").watch();
    drop(inner);
    first.done().await;
    let mut releasing = Box::pin(outer.release());
    assert!(futures::poll!(&mut releasing).is_pending());
    first.let_through().await;
    soon("the release", releasing).await.unwrap();
    assert_eq!(lost.done().await.argv()[1], "0");
    assert!(repeats.seen_now().is_some() && repeats.seen_now().is_some(), "it was not sent twice");
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_repeated_last_release_that_finds_nothing_after_the_deadline_is_lost() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).node_timeout(PATIENCE).connect().await.unwrap().mutex("stock");
    let lease = 5 * SECOND;
    let outer = stock.lock().fixed_lease(lease).await.unwrap();
    let inner = stock.lock().fixed_lease(lease).await.unwrap();
    let end = inner.valid_until();
    let first = proxy.on(|c| c.is("release")).times(1).hold_reply();
    let _lost = proxy.on(|c| c.is("release")).times(1).drop_reply_and_reset();
    let second = proxy.on(|c| c.is("release")).times(1).hold_reply();
    drop(inner);
    first.done().await;
    let mut releasing = Box::pin(outer.release());
    assert!(futures::poll!(&mut releasing).is_pending());
    first.let_through().await;
    assert_eq!(second.done().await.argv()[1], "0");
    sleep_until(end).await;
    second.let_through().await;
    let error = soon("the release", releasing).await.unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::Expired)));
}

#[tokio::test]
async fn a_grant_that_is_answered_after_its_lease_is_settled_and_requested_again() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let late = proxy.on(|c| c.is("acquire")).times(1).delay_reply(Duration::from_millis(1200));
    let settled = proxy.on(|c| c.is("release")).watch();
    let guard = soon("the lock", stock.lock().fixed_lease(SECOND)).await.unwrap();
    let first = late.done().await.argv()[0].clone();
    assert_ne!(guard.hold_id(), first);
    assert!(settled.seen().await.names(&first));
}

#[tokio::test]
async fn a_reentry_that_is_answered_after_the_holds_end_is_lost() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).node_timeout(PATIENCE).connect().await.unwrap().mutex("stock");
    let outer = stock.lock().fixed_lease(4 * SECOND).await.unwrap();
    let late = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let mut inner = Box::pin(stock.lock().fixed_lease(SECOND));
    assert!(futures::poll!(&mut inner).is_pending());
    late.done().await;
    assert_eq!(outer.lost().await, Loss::Expired);
    late.let_through().await;
    assert_eq!(soon("the re-entry", inner).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(stock.lock().await.is_err_and(|error| error.kind() == ErrorKind::Lost));
    drop(outer);
    soon("a fresh hold", stock.lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_that_is_answered_after_the_deadline_does_not_revive_a_lost_hold() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let options = builder(&proxy.url()).lease(6 * SECOND).node_timeout(PATIENCE);
    let stock = options.connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    let late = proxy.on(|c| c.is("renew") || c.is("settle")).hold_reply();
    late.done().await;
    let end = guard.valid_until();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert!(Instant::now() >= end);
    late.let_through().await;
    stock.is_locked().await.unwrap();
    assert_eq!(guard.loss(), Some(Loss::Expired));
    assert_eq!(guard.extend(SECOND).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    eventually("the key's end", async || server.keys().await.is_empty()).await;
    assert_eq!(proxy.connections(Which::Commands), 1);
}

/// The re-entry's acquire ran, nobody waits for its answer, and the connection stays open: only the settle corrects the count.
#[tokio::test]
async fn a_reentry_that_was_dropped_while_it_asked_is_settled() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(120 * SECOND).connect().await.unwrap().mutex("stock");
    let outer = stock.lock().await.unwrap();
    let late = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let mut inner = Box::pin(stock.lock());
    assert!(futures::poll!(&mut inner).is_pending());
    late.done().await;
    assert_eq!(count(&server, "stock", outer.hold_id()).await.as_deref(), Some("2"));
    drop(inner);
    late.let_through().await;
    eventually("the settle", async || count(&server, "stock", outer.hold_id()).await.as_deref() == Some("1"))
        .await;
    assert_eq!(stock.hold_count(), 1);
    outer.release().await.unwrap();
    assert!(server.keys().await.is_empty());
    assert_eq!(proxy.connections(Which::Commands), 1);
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_with_its_connection_is_confirmed_by_its_repeat() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let ours = builder(&proxy.url()).node_timeout(Duration::from_secs(20)).connect().await.unwrap();
    let stock = ours.mutex("stock");
    for levels in [1, 2] {
        let mut guards = Vec::new();
        for _ in 0..levels {
            guards.push(stock.lock().await.unwrap());
        }
        let lost = proxy.on(|c| c.is("release")).times(1).drop_reply_and_reset();
        let released = guards.pop().unwrap().release().await;
        lost.done().await;
        assert!(released.is_ok(), "{levels} levels: {released:?}");
    }
    ours.close().await.unwrap();
    assert!(server.keys().await.is_empty());
}
