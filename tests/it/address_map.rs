//! Servers that report addresses which nobody can use from here: the addresses of proxies that reset each client.

use std::collections::HashMap;
use std::time::Duration;

use nestlock::{Builder, ErrorKind};

use crate::support::cluster::Cluster;
use crate::support::proxy::{Fault, Proxy};
use crate::support::sentinel::{Group, NAME, Setup};
use crate::support::server::Server;
use crate::support::{SECOND, eventually, options, soon, without_timers};

/// Closes these proxies to clients: each client that sends `HELLO` is reset. The servers themselves don't send `HELLO` to each other.
fn closed(proxies: &[Proxy]) -> Vec<Fault> {
    proxies.iter().map(|proxy| proxy.on(|c| c.is("hello")).lose_and_reset()).collect()
}

/// Maps the addresses of the proxies to the servers behind them.
fn mapped(builder: Builder, proxies: &[Proxy], servers: &[Server]) -> Builder {
    let ports: HashMap<u16, u16> =
        proxies.iter().map(Proxy::port).zip(servers.iter().map(Server::port)).collect();
    builder.address_map(move |host, port| (host.to_owned(), ports.get(&port).copied().unwrap_or(port)))
}

fn nobody_came(faults: &[Fault]) -> bool {
    faults.iter().all(|fault| fault.seen_now().is_none())
}

#[tokio::test]
async fn a_cluster_is_used_at_the_addresses_that_its_own_are_mapped_to() {
    let (cluster, proxies) = Cluster::behind_proxies(Duration::from_secs(60), &[]).await;
    let faults = closed(&proxies);
    let builder = || options(nestlock::Master::cluster(cluster.urls())).lease(60 * SECOND);
    let with_map = || without_timers(mapped(builder(), &proxies, cluster.nodes()));
    let (ours, theirs) = (with_map().connect().await.unwrap(), with_map().connect().await.unwrap());
    let subscribed = async |at: usize| {
        eventually("a subscription", async || !cluster.node(at).channels().await.is_empty()).await;
    };

    // A failover: the replica's address comes with the topology, and the subscription follows it.
    let name = cluster.name_on(0, "mapped").await;
    let guard = ours.mutex(&name).lock().await.unwrap();
    let waiting = tokio::spawn(theirs.mutex(&name).lock());
    subscribed(0).await;
    cluster.replicated(0, &name).await;
    cluster.fail_over(3).await;
    subscribed(3).await;
    guard.check().await.unwrap();
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();

    // A slot that moves: the server answers `ASK` during the move and `MOVED` after it.
    let name = cluster.name_on(1, "mapped").await;
    let guard = ours.mutex(&name).lock().await.unwrap();
    let waiting = tokio::spawn(theirs.mutex(&name).lock());
    subscribed(1).await;
    cluster.begin_move(&name, 1, 2).await;
    cluster.move_key(&name, 1, 2).await;
    guard.check().await.unwrap();
    cluster.end_move(&name, 2, &[1, 2, 3]).await;
    subscribed(2).await;
    guard.check().await.unwrap();
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert!(nobody_came(&faults), "a reported address was used without the map");

    // Without the map nothing can be reached.
    let error = soon("an error", builder().node_timeout(SECOND).connect()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!nobody_came(&faults));
}

#[tokio::test]
async fn the_master_of_sentinels_is_at_the_address_that_theirs_is_mapped_to() {
    let (group, proxies) = Group::behind_proxies(Setup::default()).await;
    let faults = closed(&proxies);
    let builder = || options(nestlock::Master::sentinel(group.urls("", ""), NAME)).lease(60 * SECOND);
    let with_map = || without_timers(mapped(builder(), &proxies, &group.servers));
    let (ours, theirs) = (with_map().connect().await.unwrap(), with_map().connect().await.unwrap());
    let old = &group.servers[0];
    let guard = ours.mutex("stock").lock().await.unwrap();
    let waiting = tokio::spawn(theirs.mutex("stock").lock());
    eventually("a subscription", async || !old.channels().await.iter().all(|one| one.contains("sentinel")))
        .await;
    for replica in &group.servers[1..] {
        eventually("the key on the replica", async || replica.keys().await == ["stock"]).await;
    }
    group.fail_over().await;
    let new = group.failed_over(old).await;
    eventually("a subscription", async || !new.channels().await.iter().all(|one| one.contains("sentinel")))
        .await;
    guard.check().await.unwrap();
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert!(nobody_came(&faults), "a reported address was used without the map");

    let error = soon("an error", builder().node_timeout(SECOND).connect()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!nobody_came(&faults));
}

/// The map runs in a task of this crate. A panic would end the task, and with it everything that follows the master.
#[tokio::test]
async fn a_map_that_panics_leaves_addresses_as_they_are_reported() {
    let group = Group::start().await;
    let map = |host: &str, port: u16| -> (String, u16) { panic!("no address for {host}:{port}") };
    let locks = group.builder().lease(60 * SECOND).address_map(map).connect().await.unwrap();
    let old = group.master().await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    for replica in group.servers.iter().filter(|server| server.port() != old.port()) {
        eventually("the key on the replica", async || replica.keys().await == ["stock"]).await;
    }
    group.fail_over().await;
    let new = group.failed_over(old).await;
    eventually("a check", async || guard.check().await.is_ok()).await;
    guard.release().await.unwrap();
    soon("the lock", locks.mutex("stock").lock()).await.unwrap().release().await.unwrap();
    assert!(new.keys().await.is_empty());
}
