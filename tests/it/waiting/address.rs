//! One address that leads to another server while a waiter is connected: by DNS, a load balancer, or a virtual IP.

use super::*;
use crate::support::proxy::{Proxy, Which};
use crate::support::soon;

/// 1. The server does not answer for a moment, and its address is given to another server. 2. The connection for commands is replaced, and
/// leads to the new server. 3. The connection for messages is quiet, and stays open to the old server, which is alive again.
#[tokio::test]
async fn a_waiter_listens_at_the_server_that_its_commands_go_to() {
    let (old, new) = (Server::start().await, Server::start().await);
    let proxy = Proxy::to(&old).await;
    let locks = without_timers(&proxy.url()).connect().await.unwrap();
    let (_there, here) = (foreign_guard(&old, "stock").await, foreign_guard(&new, "stock").await);
    let run = scripts_run(&old).await;
    let waiting = tokio::spawn(locks.mutex("stock").lock());
    asleep(&old, run).await;
    let asked = proxy.on(|c| c.is("acquire")).watch();
    proxy.lead_to(&new);
    proxy.reset(Which::Commands).await;
    asked.seen().await;
    here.release().await.unwrap();
    let guard = soon("the lock", waiting).await.unwrap().unwrap();
    assert_eq!(new.keys().await, ["stock"]);
    guard.release().await.unwrap();
}

/// 1. The server becomes a replica, closes no connection, and its address is given to another server. 2. A waiter's first attempt finds the
/// lock busy: it only reads, which a replica allows. 3. The next attempt enters the line, which it refuses.
#[tokio::test]
async fn a_waiter_leaves_a_server_that_has_become_a_replica() {
    let (old, new) = (Server::start().await, Server::start().await);
    let proxy = Proxy::to(&old).await;
    let locks = without_timers(&proxy.url()).connect().await.unwrap();
    let _there = foreign_guard(&old, "stock").await;
    // No server listens at port 1, so this one stays a replica with its data.
    old.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    proxy.lead_to(&new);
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    assert_eq!(new.keys().await, ["stock"]);
    guard.release().await.unwrap();
}
