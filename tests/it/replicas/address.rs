//! One address that leads to another master after a while: by DNS, a load balancer, or a virtual IP.

use nestlock::Locks;

use super::*;
use crate::support::proxy::{Proxy, Which};
use crate::support::{builder, soon};

/// Checks that the lock is taken and released at that master, by both connections: one sends the acquire, the other the release.
async fn is_held_and_released_there(locks: &Locks, master: &Server) {
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    assert_eq!(fields(master, "stock").await, [guard.hold_id()]);
    soon("its release", guard.release()).await.unwrap();
    assert!(master.keys().await.is_empty());
}

async fn connected(proxy: &Proxy) -> Locks {
    let builder = builder(&proxy.url()).replicas(1, LONG).lease(60 * SECOND);
    builder.unavailable_after(60 * SECOND).connect().await.unwrap()
}

#[tokio::test]
async fn a_connection_for_acquires_that_comes_to_another_master_takes_the_other_one_along() {
    let ((old, _replicas), (new, _others)) = (master(1).await, master(1).await);
    let proxy = Proxy::to(&old).await;
    let locks = connected(&proxy).await;
    is_held_and_released_there(&locks, &old).await;
    proxy.lead_to(&new);
    // The connection for commands is still open, to the old master.
    let lost = proxy.on(|c| c.is("acquire")).times(1).lose_and_reset();
    is_held_and_released_there(&locks, &new).await;
    lost.done().await;
    assert!(old.keys().await.is_empty());
}

#[tokio::test]
async fn an_address_that_leads_elsewhere_between_two_connections_is_found_out() {
    let ((old, _replicas), (new, _others)) = (master(1).await, master(1).await);
    let proxy = Proxy::to(&old).await;
    let locks = connected(&proxy).await;
    let held = proxy.on(|c| c.is("info")).times(1).hold_reply();
    proxy.reset(Which::Commands).await;
    held.done().await;
    // One of the two connections is now to the old master.
    proxy.lead_to(&new);
    held.let_through().await;
    is_held_and_released_there(&locks, &new).await;
}

/// Without the right to `INFO`, the server's identity is unknown.
#[tokio::test]
async fn without_the_right_to_info_both_connections_go_together_all_the_same() {
    let ((old, _replicas), (new, _others)) = (master(1).await, master(1).await);
    for server in [&old, &new] {
        server
            .ask::<String>(&["ACL", "SETUSER", "locker", "on", ">secret", "~*", "&*", "+@all", "-info"])
            .await;
    }
    let proxy = Proxy::to(&old).await;
    let url = proxy.url().replace("redis://", "redis://locker:secret@");
    let builder = builder(&url).replicas(1, LONG).lease(60 * SECOND).unavailable_after(60 * SECOND);
    let locks = builder.connect().await.unwrap();
    is_held_and_released_there(&locks, &old).await;
    proxy.lead_to(&new);
    let lost = proxy.on(|c| c.is("acquire")).times(1).lose_and_reset();
    is_held_and_released_there(&locks, &new).await;
    lost.done().await;
}

#[tokio::test]
async fn a_grant_whose_connection_for_commands_is_replaced_while_replicas_are_waited_for_does_not_count() {
    let (master, replicas) = master(1).await;
    let proxy = Proxy::to(&master).await;
    let locks = connected(&proxy).await;
    replicas[0].freeze();
    let commands = proxy.on(|c| c.is("look")).times(1).lose_and_reset();
    let asking = tokio::spawn(locks.mutex("stock").try_lock());
    eventually("it is granted there", async || !fields(&master, "stock").await.is_empty()).await;
    // This ends the connection for commands.
    let _ = soon("a look", locks.mutex("stock").is_locked()).await;
    commands.done().await;
    replicas[0].thaw();
    let error = soon("an answer", asking).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("the connection was replaced"), "{error}");
    eventually("it is undone", async || master.keys().await.is_empty()).await;
}
