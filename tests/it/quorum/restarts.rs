//! A master that was started a short while ago may have lost what it granted, so it has no vote on new locks.

use std::io::Write;
use std::net::TcpStream;

use nestlock::{Builder, ErrorKind, Guard, Master, Mutex};
use tokio::time::Instant;

use super::network::{by, by_all, cut, ways};
use super::servers::{over, servers};
use super::*;
use crate::support::cluster::Cluster;
use crate::support::proxy::{HalfOpen, Proxy, Which};
use crate::support::server::Server;
use crate::support::{eventually, soon};

/// One client holds the lock on the first two of three masters, and doesn't reach the third. Another client asks all three: the first two
/// refuse, and the third never had the hold. Then some masters restart without their data.
async fn two_of_three(trusting: bool, restarted: &[usize]) -> (Guard, Mutex, Vec<Memory>) {
    let stores = stores(3);
    let unreached = Memory::new();
    unreached.faults().stall(Duration::MAX);
    let ours = [stores[0].clone(), stores[1].clone(), unreached];
    let connect = async |stores: &[Memory]| {
        let builder = builder(stores);
        let builder = if trusting { builder.restart_delay(Duration::ZERO) } else { builder };
        builder.connect().await.unwrap().mutex("stock")
    };
    let guard = connect(&ours).await.lock().await.unwrap();
    let theirs = connect(&stores).await;
    assert!(theirs.try_lock().await.unwrap().is_none());
    until("the part that was granted is ended", || is_free(&stores[2])).await;
    // No command is sent before all of them are back. Otherwise the holder would repair its hold.
    restarted.iter().for_each(|at| stores[*at].faults().restart_empty());
    (guard, theirs, stores)
}

#[tokio::test(start_paused = true)]
async fn without_the_rule_two_hold_the_lock() {
    for restarted in [&[1][..], &[0, 1]] {
        let (guard, theirs, _stores) = two_of_three(true, restarted).await;
        let second = theirs.try_lock().await.unwrap();
        assert!(
            second.is_some_and(|second| !second.is_lost()) && !guard.is_lost(),
            "without the rule both should hold the lock"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn with_the_rule_the_second_one_waits() {
    let (guard, theirs, stores) = two_of_three(false, &[1]).await;
    assert!(theirs.try_lock().await.unwrap().is_none());
    tokio::time::sleep(100 * SECOND).await;
    assert!(!guard.is_lost(), "the hold was not repaired");
    assert!(theirs.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(theirs.lock());
    guard.release().await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    assert_eq!(counts(&stores, &second), [Some(1); 3]);
}

/// A majority is young and empty. If it were trusted, it would grant the lock to the second client while the first one holds it.
#[tokio::test(start_paused = true)]
async fn with_the_rule_two_restarts_within_a_lease_let_nobody_in_either() {
    let (guard, theirs, stores) = two_of_three(false, &[0, 1]).await;
    assert_eq!(theirs.try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    for _ in 0..100 {
        assert!(matches!(theirs.try_lock().await, Ok(None) | Err(_)));
        assert!(!guard.is_lost(), "the holder did not repair its hold");
        tokio::time::sleep(SECOND).await;
    }
    let waiting = tokio::spawn(theirs.lock());
    guard.release().await.unwrap();
    assert_eq!(counts(&stores, &waiting.await.unwrap().unwrap()), [Some(1); 3]);
}

/// What has to stay alive while two clients compete on servers.
type Alive = (Vec<Server>, Vec<Proxy>, [Vec<HalfOpen>; 2]);

/// Sets up three servers and two clients. The holder doesn't reach the third server, and reaches none once some have restarted.
async fn on_servers(lease: Duration, trusting: bool, restarted: &[usize]) -> (Guard, Mutex, Alive) {
    let servers = servers(3).await;
    let ways = ways(&servers).await;
    let connect = async |builder: Builder| {
        let builder = builder
            .lease(lease)
            .restart_delay(if trusting { Duration::ZERO } else { lease })
            .unavailable_after(60 * SECOND);
        builder.connect().await.unwrap().mutex("stock")
    };
    let (ours, theirs) = (connect(by(&ways)).await, connect(over(&servers)).await);
    let third = cut(&ways[2..]);
    let guard = soon("ours", ours.lock()).await.unwrap();
    let others = cut(&ways[..2]);
    for at in restarted {
        servers[*at].restart_empty().await;
    }
    (guard, theirs, (servers, ways, [third, others]))
}

#[tokio::test]
async fn on_servers_too_two_hold_the_lock_without_the_rule() {
    for restarted in [&[1][..], &[0, 1]] {
        let (guard, theirs, _alive) = on_servers(60 * SECOND, true, restarted).await;
        let second = soon("theirs", theirs.lock()).await.unwrap();
        assert!(!second.is_lost() && !guard.is_lost(), "without the rule both should hold the lock");
    }
}

#[tokio::test]
async fn on_servers_too_the_second_one_waits_with_the_rule() {
    for restarted in [&[1][..], &[0, 1]] {
        let (guard, theirs, _alive) = on_servers(3 * SECOND, false, restarted).await;
        let second = soon("theirs", theirs.lock()).await.unwrap();
        assert!(guard.is_lost(), "two hold the lock");
        assert!(Instant::now() >= guard.valid_until());
        second.release().await.unwrap();
    }
}

/// What `INFO` reports if the system clock is set back by an hour after the server's start.
const SET_BACK: (&str, &str) = ("uptime_in_seconds:", "uptime_in_seconds:-359");

#[tokio::test]
async fn a_master_that_restarts_and_reports_a_negative_uptime_has_no_vote() {
    let servers = servers(3).await;
    let (our_ways, their_ways) = (ways(&servers).await, ways(&servers).await);
    let connect = async |ways: &[Proxy]| {
        let builder = by(ways).node_timeout(SECOND).restart_delay(6 * SECOND);
        builder.connect().await.unwrap().mutex("stock")
    };
    let (ours, theirs) = (connect(&our_ways).await, connect(&their_ways).await);
    let third = cut(&our_ways[2..]);
    let guard = soon("ours", ours.lock()).await.unwrap();
    let others = cut(&our_ways[..2]);
    let replaced = their_ways[1].on(|c| c.is("info")).replace_in_reply(SET_BACK.0, SET_BACK.1);
    servers[1].restart_empty().await;
    let second = soon("theirs", theirs.lock()).await.unwrap();
    assert!(guard.is_lost(), "two hold the lock");
    replaced.done().await;
    drop((third, others));
    second.release().await.unwrap();
}

/// The master was not restarted, and has the data of the master that it followed.
#[tokio::test]
async fn a_master_that_was_a_replica_for_a_while_has_no_vote() {
    was_a_replica_for_a_while(false).await;
}

/// Its uptime is that of a server that was a master all the time.
#[tokio::test]
async fn a_master_that_was_a_replica_for_a_while_has_no_vote_of_a_client_that_connects_afterwards() {
    was_a_replica_for_a_while(true).await;
}

async fn was_a_replica_for_a_while(connects_afterwards: bool) {
    let servers = servers(3).await;
    let between = Server::with(&["--repl-diskless-sync-delay", "0"]).await;
    let (our_ways, their_ways) = (ways(&servers).await, ways(&servers).await);
    let connect = async |ways: &[Proxy]| {
        let builder = by(ways).lease(5 * SECOND).node_timeout(SECOND).restart_delay(5 * SECOND);
        builder.connect().await.unwrap().mutex("stock")
    };
    let (ours, theirs) = (connect(&our_ways).await, connect(&their_ways).await);
    let third = cut(&our_ways[2..]);
    let guard = soon("ours", ours.lock()).await.unwrap();
    let others = cut(&our_ways[..2]);
    let away = their_ways[1].refuse().await;
    their_ways[1].reset(Which::All).await;
    servers[1].ask::<()>(&["REPLICAOF", "127.0.0.1", &between.port().to_string()]).await;
    eventually("it has what the other one has", async || servers[1].keys().await.is_empty()).await;
    servers[1].ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    drop(away);
    let theirs = if connects_afterwards { connect(&their_ways).await } else { theirs };
    let second = soon("theirs", theirs.lock()).await.unwrap();
    assert!(guard.is_lost(), "two hold the lock");
    drop((third, others));
    second.release().await.unwrap();
}

/// A cluster is one of three masters. A replica that lacks a hold takes its master's place, and then the master takes it back. For a client
/// that sends nothing in between, the connection, the server's run id and the slots look as before.
#[tokio::test]
async fn a_cluster_whose_master_was_a_replica_while_nobody_asked_has_no_vote() {
    let cluster = Cluster::start().await;
    let servers = servers(2).await;
    let (our_ways, their_ways) = (ways(&servers).await, ways(&servers).await);
    let connect = async |ways: &[Proxy]| {
        let servers = ways.iter().map(|way| Master::server(way.url()));
        let masters = servers.chain([Master::cluster(cluster.urls())]);
        by_all(masters).lease(3 * SECOND).restart_delay(3 * SECOND).connect().await.unwrap()
    };
    let (ours, theirs) = (connect(&our_ways).await, connect(&their_ways).await);
    let (master, replica) = (0, 3);
    let name = cluster.name_on(master, "stock").await;
    // Both clients count the cluster's vote, since the cluster is old enough.
    let _cut = (cut(&our_ways[1..]), cut(&their_ways[..1]));
    for locks in [&ours, &theirs] {
        let other = cluster.name_on(master, "other").await;
        soon("a vote", locks.mutex(other).lock()).await.unwrap().release().await.unwrap();
    }
    let mut admin = TcpStream::connect(("127.0.0.1", cluster.node(replica).port())).unwrap();
    cluster.node(replica).freeze();
    cluster.node(master).ask::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    let guard = soon("ours", ours.mutex(&name).lock().fixed_lease(3 * SECOND)).await.unwrap();
    // The command arrives before the replica can ask for the writes that it missed.
    admin.write_all(b"CLUSTER FAILOVER TAKEOVER\r\n").unwrap();
    cluster.node(replica).thaw();
    let replication = async |node: usize| cluster.node(node).info("replication").await;
    eventually("it is a replica", async || replication(master).await["role"] == "slave").await;
    eventually("it has the other's data", async || replication(master).await["master_link_status"] == "up")
        .await;
    cluster.node(master).ask::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    eventually("it is the master", async || replication(replica).await["role"] == "slave").await;
    assert!(!cluster.node(master).keys().await.contains(&name), "the hold is lost there");
    let second = soon("theirs", theirs.mutex(&name).lock()).await.unwrap();
    assert!(guard.is_lost(), "two hold the lock");
    second.release().await.unwrap();
}

/// A replica takes its master's place, and the old master follows it. Each has the other's data, and no
/// writes are discarded. Then the server that took the place is lost with its last grant, and the old master
/// takes its place back.
#[tokio::test]
async fn a_cluster_whose_master_took_its_place_back_without_discarding_anything_has_no_vote() {
    let cluster = Cluster::start().await;
    let servers = servers(2).await;
    let (our_ways, their_ways) = (ways(&servers).await, ways(&servers).await);
    let connect = async |ways: &[Proxy]| {
        let servers = ways.iter().map(|way| Master::server(way.url()));
        let masters = servers.chain([Master::cluster(cluster.urls())]);
        by_all(masters).lease(5 * SECOND).restart_delay(5 * SECOND).connect().await.unwrap()
    };
    let (ours, theirs) = (connect(&our_ways).await, connect(&their_ways).await);
    let (master, replica) = (0, 3);
    let (name, other) = (cluster.name_on(master, "stock").await, cluster.name_on(master, "other").await);
    let _cut = (cut(&our_ways[1..]), cut(&their_ways[..1]));
    for locks in [&ours, &theirs] {
        soon("a vote", locks.mutex(&other).lock()).await.unwrap().release().await.unwrap();
    }
    let replication = async |node: usize| cluster.node(node).info("replication").await;
    let partial = async || cluster.node(replica).info("stats").await["sync_partial_ok"].clone();
    cluster.fail_over(replica).await;
    eventually("it is a replica", async || replication(master).await["role"] == "slave").await;
    eventually("it follows", async || replication(master).await["master_link_status"] == "up").await;
    assert_ne!(partial().await, "0", "not a partial sync");
    // Our client counts the new master's vote again after a lease.
    soon("a vote", ours.mutex(&other).lock()).await.unwrap().release().await.unwrap();
    let mut admin = TcpStream::connect(("127.0.0.1", cluster.node(master).port())).unwrap();
    cluster.node(master).freeze();
    cluster.node(replica).ask::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    let guard = soon("ours", ours.mutex(&name).lock().fixed_lease(5 * SECOND)).await.unwrap();
    cluster.node(replica).freeze();
    admin.write_all(b"CLUSTER FAILOVER TAKEOVER\r\n").unwrap();
    cluster.node(master).thaw();
    eventually("it is the master", async || replication(master).await["role"] == "master").await;
    assert!(!cluster.node(master).keys().await.contains(&name), "the hold is lost there");
    let second = soon("theirs", theirs.mutex(&name).lock()).await.unwrap();
    assert!(guard.is_lost(), "two hold the lock");
    second.release().await.unwrap();
    cluster.node(replica).thaw();
}

/// All masters are young, so there is no vote at all.
#[tokio::test(start_paused = true)]
async fn a_majority_of_young_masters_has_no_vote_either() {
    let stores = stores(3);
    let stock = locks(&stores).await.mutex("stock");
    stores.iter().for_each(|store| store.faults().restart_empty());
    let begun = Instant::now();
    let error = stock.try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("restart_delay"), "{error}");
    let error = stock.lock().await.unwrap_err();
    assert!(error.to_string().contains("3 of 3 masters"), "{error}");
    // The vote counts again after the restart, a lease, and the drift over that lease.
    let patient = builder(&stores).unavailable_after(Duration::MAX).connect().await.unwrap().mutex("stock");
    let guard = patient.lock().await.unwrap();
    let waited = begun.elapsed();
    assert!(waited >= 30 * SECOND && waited < 33 * SECOND, "{waited:?}");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_master_is_trusted_by_default() {
    let stores = stores(1);
    let trusting = locks(&stores).await.mutex("stock");
    let wary = builder(&stores).restart_delay(30 * SECOND).connect().await.unwrap().mutex("other");
    let guard = wary.lock().await.unwrap();
    stores[0].faults().restart_empty();
    trusting.lock().await.unwrap().release().await.unwrap();
    // The restarted master has granted no other hold, so the hold can be repaired and stays live.
    until("the hold is back", || counts(&stores, &guard) == [Some(1)]).await;
    assert!(!guard.is_lost());
    let fixed = wary.lock().fixed_lease(31 * SECOND).await.unwrap_err();
    assert_eq!(fixed.kind(), ErrorKind::Config);
}

#[tokio::test(start_paused = true)]
async fn what_one_master_granted_while_the_others_had_no_vote_is_undone() {
    let stores = stores(3);
    let locks = locks(&stores).await;
    stores[0].faults().restart_empty();
    stores[1].faults().restart_empty();
    let error = locks.mutex("stock").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), nestlock::ErrorKind::Unavailable, "{error}");
    // This is much sooner than the end of the lease.
    tokio::time::sleep(5 * SECOND).await;
    assert!(is_free(&stores[2]), "{stores:?}");
    // Waiters pause between attempts. Otherwise paused time could not advance.
    let waiting = tokio::time::timeout(9 * SECOND, locks.mutex("stock").lock()).await;
    assert!(waiting.is_err(), "{waiting:?}");
}
