//! What `extend` does to a lease.

use std::time::Duration;

use nestlock::ErrorKind;

use super::SECOND;
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, locks, soon};
use crate::wire::ttl;

#[tokio::test]
async fn an_extension_of_a_watched_hold_is_a_floor_and_renewal_goes_on() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(6 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    guard.extend(120 * SECOND).await.unwrap();
    let end = guard.valid_until();
    let renewals = proxy.on(|c| c.is("renew")).watch();
    for _ in 0..4 {
        assert_eq!(renewals.seen().await.argv()[1], "6000");
    }
    assert!(ttl(&server, "stock").await > 80_000);
    assert_eq!(guard.valid_until(), end);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_impossible_extension_is_refused_and_harms_nothing() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let guard = stock.lock().fixed_lease(60 * SECOND).await.unwrap();
    let end = guard.valid_until();
    let sent = proxy.on(|c| c.names("stock")).watch();
    for lease in [Duration::ZERO, Duration::from_micros(900), Duration::from_millis(2), Duration::MAX] {
        assert_eq!(guard.extend(lease).await.unwrap_err().kind(), ErrorKind::Config, "{lease:?}");
    }
    assert!(sent.seen_now().is_none());
    assert!(!guard.is_lost() && guard.valid_until() == end);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_extension_without_an_answer_leaves_the_hold_as_it_was() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let guard = stock.lock().fixed_lease(60 * SECOND).await.unwrap();
    let end = guard.valid_until();
    let lost = proxy.on(|c| c.is("renew")).times(1).lose_and_reset();
    assert_eq!(guard.extend(120 * SECOND).await.unwrap_err().kind(), ErrorKind::Unavailable);
    lost.done().await;
    assert!(!guard.is_lost() && guard.valid_until() == end);
    soon("another", guard.extend(120 * SECOND)).await.unwrap();
    assert!(guard.valid_until() > end + SECOND);
    guard.release().await.unwrap();
    assert!(server.keys().await.is_empty());
}
