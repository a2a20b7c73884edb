//! The holder of a lock is the one that a majority of the masters reports.

use std::time::Duration;

use nestlock::{ErrorKind, Locks};

use super::servers::{counts, over, servers};
use super::{SECOND, builder, stores};
use crate::support::server::Server;
use crate::support::{STRANGER, eventually, soon};

const LABEL: &str = "billing@web-7";

async fn plant(server: &Server, field: &str, count: u32, millis: u32) {
    server.ask::<()>(&["DEL", "stock"]).await;
    server.ask::<()>(&["HSET", "stock", field, &count.to_string()]).await;
    server.ask::<()>(&["PEXPIRE", "stock", &millis.to_string()]).await;
}

async fn timeout(locks: &Locks) -> nestlock::Error {
    soon("the end", locks.mutex("stock").lock().within(Duration::ZERO)).await.unwrap_err()
}

#[tokio::test]
async fn on_servers_it_is_who_has_a_majority_and_one_may_be_away() {
    let servers = servers(3).await;
    let (theirs, ours) =
        (over(&servers).holder_name(LABEL).connect().await.unwrap(), over(&servers).connect().await.unwrap());
    let stock = ours.mutex("stock");
    assert_eq!(stock.holder().await.unwrap(), None);
    let guard = soon("the lock", theirs.mutex("stock").lock()).await.unwrap();
    // Two masters are enough for the grant, so the third may be late.
    eventually("all have it", async || counts(&servers, "stock").await == [["1"]; 3]).await;
    for away in [false, true] {
        if away {
            servers[1].kill();
        }
        let holder = soon("the answer", stock.holder()).await.unwrap().expect("it is held");
        assert_eq!((holder.name(), holder.hold_id(), holder.count()), (Some(LABEL), guard.hold_id(), 1));
        let error = timeout(&ours).await;
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert_eq!(error.holder().map(|holder| holder.hold_id()), Some(guard.hold_id()));
        assert!(error.to_string().contains("held by billing@web-7 for another "), "{error}");
    }
    servers[2].kill();
    let error = soon("the answer", stock.holder()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn where_no_majority_has_the_same_field_it_is_nobody() {
    let servers = servers(3).await;
    let locks = over(&servers).connect().await.unwrap();
    let stock = locks.mutex("stock");
    for (server, field) in
        servers.iter().zip(["1", "2", "3"].map(|id| [&STRANGER[..STRANGER.len() - 1], id].concat()))
    {
        plant(server, &field, 1, 600_000).await;
    }
    assert_eq!(soon("the answer", stock.holder()).await.unwrap(), None);
    assert!(stock.is_locked().await.unwrap(), "the lock is reported as free");
    assert_eq!(timeout(&locks).await.holder(), None);
    // A hold on a minority of the masters is no hold.
    servers[1].ask::<()>(&["DEL", "stock"]).await;
    servers[2].ask::<()>(&["DEL", "stock"]).await;
    assert_eq!(soon("the answer", stock.holder()).await.unwrap(), None);
}

#[tokio::test]
async fn count_and_lease_are_what_a_majority_has() {
    let servers = servers(3).await;
    let stock = over(&servers).connect().await.unwrap().mutex("stock");
    for (server, (count, millis)) in servers.iter().zip([(1, 500_000), (3, 600_000), (2, 100_000)]) {
        plant(server, STRANGER, count, millis).await;
    }
    // The two masters that answer first decide.
    let holder = soon("the answer", stock.holder()).await.unwrap().unwrap();
    assert_eq!(holder.hold_id(), STRANGER);
    assert!((1..3).contains(&holder.count()), "{holder:?}");
    assert!(holder.remaining_lease() <= 500 * SECOND, "{holder:?}");
}

/// A master that is cut off from the others still has an older hold, and answers first.
#[tokio::test(start_paused = true)]
async fn a_field_that_one_master_has_kept_is_not_the_holder() {
    let stores = stores(3);
    let old = builder(&stores[..1]).connect().await.unwrap();
    let left = old.mutex("stock").lock().await.unwrap();
    let theirs = builder(&stores).restart_delay(Duration::ZERO).holder_name(LABEL).connect().await.unwrap();
    let guard = theirs.mutex("stock").lock().await.unwrap();
    let ours = builder(&stores).restart_delay(Duration::ZERO).connect().await.unwrap();
    let holder = ours.mutex("stock").holder().await.unwrap().unwrap();
    assert_eq!(holder.hold_id(), guard.hold_id());
    let waited = ours.mutex("stock").lock().within(3 * SECOND).await.unwrap_err();
    assert!(waited.holder().is_none_or(|holder| holder.hold_id() == guard.hold_id()), "{waited}");
    drop(left);
}
