//! Fixed leases, alone and nested.

use nestlock::{ErrorKind, Loss};
use tokio::time::{Instant, sleep_until};

use super::SECOND;
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, eventually, locks, soon};
use crate::wire::{count, ttl};

#[tokio::test]
async fn a_fixed_lease_is_not_renewed() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(SECOND).connect().await.unwrap().mutex("stock");
    let renewals = proxy.on(|c| c.is("renew") || c.is("settle")).watch();
    let guard = stock.lock().fixed_lease(3 * SECOND).await.unwrap();
    let end = guard.valid_until();
    assert_eq!(soon("its end", guard.lost()).await, Loss::Expired);
    assert!(Instant::now() >= end && renewals.seen_now().is_none());
    eventually("the key's end", async || server.keys().await.is_empty()).await;
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// Nothing on the wire shortens a TTL: once the longer level is gone, the client ends the key.
#[tokio::test]
async fn a_hold_whose_longer_level_went_is_ended_by_its_client_at_the_shorter_ones_end() {
    let server = Server::start().await;
    let (ours, strangers) = (locks(&server.url()).await, locks(&server.url()).await);
    let stock = ours.mutex("stock");
    let outer = stock.lock().fixed_lease(2 * SECOND).await.unwrap();
    let end = outer.valid_until();
    let inner = stock.lock().fixed_lease(120 * SECOND).await.unwrap();
    assert!(outer.valid_until() > end + 60 * SECOND, "a hold ends with the latest of its levels");
    inner.release().await.unwrap();
    assert_eq!(outer.valid_until(), end);
    assert!(ttl(&server, "stock").await > 60_000);
    let waiting = tokio::spawn(strangers.mutex("stock").lock());
    assert_eq!(soon("its end", outer.lost()).await, Loss::Expired);
    assert!(Instant::now() >= end);
    soon("the stranger, long before the TTL", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// The end is owner-checked: whoever has the lock by then keeps it.
#[tokio::test]
async fn a_client_that_ends_a_hold_ends_nobody_elses() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let (ours, strangers) = (locks(&proxy.url()).await, locks(&server.url()).await);
    let stock = ours.mutex("stock");
    let outer = stock.lock().fixed_lease(2 * SECOND).await.unwrap();
    stock.lock().fixed_lease(120 * SECOND).await.unwrap().release().await.unwrap();
    server.ask::<()>(&["DEL", "stock"]).await;
    let theirs = strangers.mutex("stock").lock().await.unwrap();
    let ending = proxy.on(|c| c.is("release")).delay_reply(std::time::Duration::ZERO);
    soon("its end", outer.lost()).await;
    ending.done().await;
    assert_eq!(count(&server, "stock", theirs.field()).await.as_deref(), Some("1"));
    theirs.release().await.unwrap();
}

#[tokio::test]
async fn an_inner_lease_never_shortens_an_outer_one() {
    let server = Server::start().await;
    let stock = locks(&server.url()).await.mutex("stock");
    let outer = stock.lock().fixed_lease(120 * SECOND).await.unwrap();
    let end = outer.valid_until();
    let inner = stock.lock().fixed_lease(5 * SECOND).await.unwrap();
    assert!(ttl(&server, "stock").await > 80_000);
    assert_eq!((outer.valid_until(), inner.valid_until()), (end, end));
    inner.release().await.unwrap();
    assert!(ttl(&server, "stock").await > 80_000);
    let watched = stock.lock().await.unwrap();
    assert!(ttl(&server, "stock").await > 80_000);
    watched.release().await.unwrap();
    assert!(ttl(&server, "stock").await > 80_000);
    assert_eq!(outer.valid_until(), end);
    outer.release().await.unwrap();
}

#[tokio::test]
async fn a_short_fixed_level_inside_a_watched_hold_does_not_end_it() {
    let server = Server::start().await;
    let stock = locks(&server.url()).await.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let inner = stock.lock().fixed_lease(SECOND).await.unwrap();
    sleep_until(Instant::now() + SECOND).await;
    assert!(!inner.is_lost() && !outer.is_lost() && stock.hold_count() == 2);
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn an_outer_fixed_lease_stays_good_while_an_inner_level_is_renewed_and_ends_with_it() {
    let server = Server::start().await;
    let stock = builder(&server.url()).lease(2 * SECOND).connect().await.unwrap().mutex("stock");
    let outer = stock.lock().fixed_lease(2 * SECOND).await.unwrap();
    let end = outer.valid_until();
    let inner = stock.lock().await.unwrap();
    eventually("a renewal", async || outer.valid_until() > end + SECOND).await;
    sleep_until(end).await;
    assert!(!outer.is_lost() && outer.valid_until() > end);
    inner.release().await.unwrap();
    assert_eq!(soon("the outer end", outer.lost()).await, Loss::Expired);
    eventually("the key's end", async || server.keys().await.is_empty()).await;
    assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
}
