//! Held locks are renewed.

use nestlock::{ErrorKind, Loss};
use tokio::time::{Instant, sleep_until};

use super::SECOND;
use crate::support::proxy::{Proxy, Which};
use crate::support::server::Server;
use crate::support::{builder, eventually, locks, log, soon};

#[tokio::test]
async fn a_hold_is_renewed_for_as_long_as_its_guard_lives() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(6 * SECOND).connect().await.unwrap().mutex("stock");
    let renewals = proxy.on(|c| c.is("renew")).watch();
    let guard = stock.lock().await.unwrap();
    let three_leases = Instant::now() + 18 * SECOND;
    while Instant::now() < three_leases {
        let renewal = renewals.seen().await;
        assert_eq!(renewal.argv(), [guard.hold_id(), "6000"]);
    }
    assert!(!guard.is_lost() && guard.valid_until() > three_leases);
    assert_eq!(server.ask::<String>(&["HGET", "stock", guard.hold_id()]).await, "1");
    guard.release().await.unwrap();
}

/// This happens when the server's clock is set back. After a crash, others would wait for the whole hour.
#[tokio::test]
async fn a_ttl_that_became_too_long_is_brought_back() {
    let server = Server::start().await;
    let locks = builder(&server.url()).lease(9 * SECOND).connect().await.unwrap();
    let ttl = async |name: &str| server.ask::<i64>(&["PTTL", name]).await;
    let (one, other) = (locks.mutex("one"), locks.mutex("other"));
    let (one, other) = (one.lock().await.unwrap(), other.lock().await.unwrap());
    let fenced = locks.mutex("fenced").fenced().lock().await.unwrap();
    let longer = locks.mutex("longer").lock().await.unwrap();
    longer.extend(120 * SECOND).await.unwrap();
    for _ in 0..2 {
        for name in ["one", "other", "fenced", "longer"] {
            server.ask::<()>(&["PEXPIRE", name, "3600000"]).await;
        }
        for (name, most) in [("one", 9_100), ("other", 9_100), ("fenced", 9_100), ("longer", 121_000)] {
            eventually(name, async || (1..=most).contains(&ttl(name).await)).await;
        }
        // The TTL is no less than what the guard counts on.
        let counted = longer.valid_until().saturating_duration_since(Instant::now());
        assert!(counted > 30 * SECOND && ttl("longer").await > counted.as_millis() as i64);
    }
    for guard in [&one, &other, &longer] {
        guard.check().await.unwrap();
    }
    fenced.check().await.unwrap();
    longer.release().await.unwrap();
}

/// 1. A TTL has to be brought back, and the command for that is delayed. 2. The guard extends its lease, which the TTL allows. 3. The
/// command runs.
#[tokio::test]
async fn what_brings_a_ttl_back_and_is_late_does_not_cut_an_extended_lease() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(6 * SECOND).connect().await.unwrap().mutex("stock");
    let ttl = async || server.ask::<i64>(&["PTTL", "stock"]).await;
    let guard = stock.lock().await.unwrap();
    let late = proxy.on(|c| c.is("shorten")).times(1).hold();
    server.ask::<()>(&["PEXPIRE", "stock", "3600000"]).await;
    late.seen().await;
    proxy.reset(Which::Commands).await;
    soon("the extension", guard.extend(60 * SECOND)).await.unwrap();
    assert_eq!(late.let_through().await, [":-1\r\n"]);
    assert!(ttl().await > 50_000);
    eventually("what the guard counts on", async || (50_000..=61_000).contains(&ttl().await)).await;
    assert!(!guard.is_lost() && guard.valid_until() > Instant::now() + 50 * SECOND);
    guard.release().await.unwrap();
}

/// A server before Redis 7 does not know the command that asks for this either.
#[tokio::test]
async fn without_the_right_to_ask_when_a_key_ends_renewals_go_on() {
    let server = Server::start().await;
    server.ask::<()>(&["ACL", "SETUSER", "default", "-pexpiretime"]).await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(6 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    let first = guard.valid_until();
    server.ask::<()>(&["PEXPIRE", "stock", "3600000"]).await;
    let shortens = proxy.on(|c| c.is("shorten")).watch();
    sleep_until(first).await;
    assert!(!guard.is_lost() && guard.valid_until() > first);
    assert!(server.ask::<i64>(&["PTTL", "stock"]).await > 3_500_000);
    assert!(shortens.seen_now().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn one_failed_renewal_ends_neither_renewal_nor_that_of_later_holds() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(6 * SECOND).connect().await.unwrap().mutex("stock");
    for _ in 0..2 {
        let failing = proxy.on(|c| c.is("renew")).times(1).lose_and_reset();
        let guard = stock.lock().await.unwrap();
        failing.done().await;
        let renewals = proxy.on(|c| c.is("renew")).watch();
        for _ in 0..3 {
            renewals.seen().await;
        }
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    }
}

/// No more answers arrive, and the key may still be there: the client can only use its own deadline.
#[tokio::test]
async fn a_failed_renewal_is_retried_until_the_deadline_and_then_the_hold_is_lost() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(6 * SECOND).connect().await.unwrap().mutex("stock");
    let tries = proxy.on(|c| c.is("renew") || c.is("settle")).lose_and_reset();
    let guard = stock.lock().await.unwrap();
    let end = guard.valid_until();
    for _ in 0..3 {
        tries.done().await;
    }
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert!(Instant::now() >= end);
    assert_eq!(guard.valid_until(), end);
}

#[tokio::test]
async fn a_hold_is_lost_at_its_deadline_while_the_server_is_away() {
    let server = Server::start().await;
    let stock = builder(&server.url()).lease(2 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    server.kill();
    let end = guard.valid_until();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert!(Instant::now() >= end);
}

#[tokio::test]
async fn a_hold_outlives_an_outage_that_is_shorter_than_its_lease() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = builder(&proxy.url()).lease(6 * SECOND).connect().await.unwrap();
    let stock = locks.mutex("outlives-an-outage");
    let guard = stock.lock().await.unwrap();
    let away = proxy.refuse().await;
    proxy.reset(Which::All).await;
    let end = guard.valid_until();
    log::recorded(|e| e.mentions("outlives-an-outage") && e.mentions("retrying")).await;
    drop(away);
    eventually("a renewal", async || guard.valid_until() > end).await;
    sleep_until(end).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

/// The lease belongs to the hold: using a handle again, or for both kinds of lease, changes nothing about another hold.
#[tokio::test]
async fn a_lease_is_the_holds_own_and_not_the_handles() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(6 * SECOND).connect().await.unwrap().mutex("stock");
    let renewals = proxy.on(|c| c.is("renew")).watch();
    let fixed = stock.lock().fixed_lease(60 * SECOND).await.unwrap();
    fixed.release().await.unwrap();
    let watched = stock.lock().await.unwrap();
    assert_eq!(renewals.seen().await.argv()[1], "6000");
    watched.release().await.unwrap();
    let fixed = stock.lock().fixed_lease(2 * SECOND).await.unwrap();
    while renewals.seen_now().is_some() {}
    assert_eq!(soon("its end", fixed.lost()).await, Loss::Expired);
    assert!(renewals.seen_now().is_none());
}

#[tokio::test]
async fn renewal_goes_on_through_a_flush_of_the_scripts() {
    let server = Server::start().await;
    let stock = builder(&server.url()).lease(6 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    // After this the script is sent by its hash.
    let end = guard.valid_until();
    eventually("the first renewal", async || guard.valid_until() > end).await;
    server.ask::<()>(&["SCRIPT", "FLUSH"]).await;
    let end = guard.valid_until();
    eventually("a renewal", async || guard.valid_until() > end).await;
    guard.release().await.unwrap();
    let other = locks(&server.url()).await.mutex("stock").try_lock().await.unwrap();
    assert!(other.is_some());
}

/// 1. The user loses a right that renewals need and releases don't. 2. Renewals are refused. 3. The nested hold is released.
#[tokio::test]
async fn a_nested_release_waits_for_no_renewal_that_is_refused() {
    let server = Server::start().await;
    let locks = builder(&server.url()).lease(30 * SECOND).connect().await.unwrap();
    let stock = locks.mutex("refused-renewals");
    stock
        .run(async |_| {
            let nested = stock.lock().await.unwrap();
            // The time has to differ by at least a millisecond; otherwise there would be nothing to renew.
            assert_eq!(server.ask::<i64>(&["PEXPIRE", "refused-renewals", "20000"]).await, 1);
            server.ask::<()>(&["ACL", "SETUSER", "default", "-pexpire"]).await;
            assert_eq!(nested.check().await.unwrap_err().kind(), ErrorKind::Denied);
            soon("the release", nested.release()).await.unwrap();
            server.ask::<()>(&["ACL", "SETUSER", "default", "+pexpire"]).await;
        })
        .await
        .unwrap();
}

/// The connection stays open, so only the retry renews the lease.
#[tokio::test]
async fn a_renewal_that_the_server_refused_is_tried_again() {
    let server = Server::start().await;
    let locks = builder(&server.url()).lease(9 * SECOND).connect().await.unwrap();
    let guard = locks.mutex("refused-renewal").lock().await.unwrap();
    server.set("min-replicas-to-write", 1).await;
    let end = guard.valid_until();
    log::recorded(|e| e.mentions("refused-renewal") && e.mentions("retrying")).await;
    server.set("min-replicas-to-write", 0).await;
    eventually("a renewal", async || guard.valid_until() > end).await;
    sleep_until(end).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}
