//! What a check sends to the server.

use nestlock::{ErrorKind, Loss};
use tokio::time::sleep;

use super::SECOND;
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, eventually, soon};

#[tokio::test]
async fn a_check_is_one_renewal_and_makes_no_fixed_lease_longer() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = builder(&proxy.url()).lease(60 * SECOND).connect().await.unwrap();
    let sent = proxy.on(|c| c.script.is_some()).watch();
    for fixed in [false, true] {
        let stock = locks.mutex(if fixed { "fixed" } else { "watched" });
        let guard = match fixed {
            true => stock.lock().fixed_lease(60 * SECOND).await.unwrap(),
            false => stock.lock().await.unwrap(),
        };
        assert!(sent.seen().await.is("acquire"));
        sleep(SECOND / 10).await;
        let before: u64 = server.ask(&["PTTL", stock.name()]).await;
        guard.check().await.unwrap();
        let renewal = sent.seen().await;
        assert!(renewal.is("renew") && sent.seen_now().is_none());
        let lease: u64 = renewal.argv()[1].parse().unwrap();
        let after: u64 = server.ask(&["PTTL", stock.name()]).await;
        match fixed {
            true => assert!(lease > 30_000 && lease < before && after <= before, "{lease} {before} {after}"),
            false => assert_eq!(lease, 60_000),
        }
        guard.release().await.unwrap();
        assert!(sent.seen().await.is("release"));
    }
}

/// Another client persisted the key, and a fixed lease is not renewed. The check gives the key the rest of its lease, and doesn't end it.
#[tokio::test]
async fn a_check_of_a_fixed_lease_without_a_ttl_gives_it_the_rest() {
    let server = Server::start().await;
    let stock = builder(&server.url()).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().fixed_lease(60 * SECOND).await.unwrap();
    server.ask::<()>(&["PERSIST", "stock"]).await;
    guard.check().await.unwrap();
    let left: i64 = server.ask(&["PTTL", "stock"]).await;
    assert!((30_000..60_000).contains(&left), "{left}");
    guard.check().await.unwrap();
    guard.release().await.unwrap();
}

/// What is sent after a reconnect confirms the hold as a check does.
#[tokio::test]
async fn a_reconnect_gives_a_fixed_lease_without_a_ttl_the_rest() {
    let server = Server::start().await;
    let stock = builder(&server.url()).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().fixed_lease(60 * SECOND).await.unwrap();
    server.ask::<()>(&["PERSIST", "stock"]).await;
    server.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    eventually("the rest", async || {
        let left: i64 = server.ask(&["PTTL", "stock"]).await;
        (30_000..60_000).contains(&left)
    })
    .await;
    guard.check().await.unwrap();
    guard.release().await.unwrap();
}

/// It is unknown whether the hold still stands, and the guard reports exactly that.
#[tokio::test]
async fn a_check_whose_answer_is_lost_is_unavailable_and_the_next_one_is_answered() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    let lost = proxy.on(|c| c.is("renew")).times(1).drop_reply();
    assert_eq!(guard.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
    lost.done().await;
    soon("an answer", async { while guard.check().await.is_err() {} }).await;
    server.ask::<()>(&["DEL", "stock"]).await;
    assert_eq!(guard.check().await.unwrap_err().loss(), Some(Loss::Gone));
}
