//! Fixed leases, alone and nested.

use nestlock::{ErrorKind, Loss};
use tokio::time::Instant;

use super::SECOND;
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, eventually, locks, soon};
use crate::wire::count;

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

/// The client's command compares the owner, so the next holder keeps the lock.
#[tokio::test]
async fn a_client_that_ends_a_hold_ends_nobody_elses() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let (ours, strangers) = (locks(&proxy.url()).await, locks(&server.url()).await);
    let stock = ours.mutex("stock");
    let outer = stock.lock().fixed_lease(4 * SECOND).await.unwrap();
    stock.lock().fixed_lease(120 * SECOND).await.unwrap().release().await.unwrap();
    let ending = proxy.on(|c| c.is("release")).delay_reply(std::time::Duration::ZERO);
    server.ask::<()>(&["DEL", "stock"]).await;
    let theirs = strangers.mutex("stock").lock().await.unwrap();
    soon("its end", outer.lost()).await;
    ending.done().await;
    assert_eq!(count(&server, "stock", theirs.hold_id()).await.as_deref(), Some("1"));
    theirs.release().await.unwrap();
}
