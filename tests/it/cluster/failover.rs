//! Replicas that replace their masters, on purpose or after a master's death.

use std::time::Duration;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nestlock::{Builder, ErrorKind, Locks, Loss, Master, Memory, Owner};

use super::{SECOND, channels, locks, without_timers};
use crate::support::cluster::Cluster;
use crate::support::{eventually, soon};

#[tokio::test]
async fn a_hold_survives_a_planned_failover() {
    let cluster = Cluster::start().await;
    let (ours, theirs) = (locks(&cluster).await, without_timers(&cluster).connect().await.unwrap());
    let name = cluster.name_on(0, "planned").await;
    let stock = ours.mutex(&name);
    let guard = soon("the lock", stock.lock()).await.unwrap();
    let waiting = tokio::spawn(theirs.mutex(&name).lock());
    eventually("it listens", async || !channels(&cluster, &name).await.is_empty()).await;
    // Scripts are not copied to a replica.
    cluster.node(3).ask::<()>(&["SCRIPT", "FLUSH"]).await;
    cluster.fail_over(3).await;
    let inner = soon("a re-entry at the new master", stock.lock()).await.unwrap();
    assert_eq!(cluster.fields_on(3, &name).await, [(guard.hold_id().to_owned(), 2)]);
    assert!(locks(&cluster).await.mutex(&name).try_lock().await.unwrap().is_none(), "two hold it");
    inner.release().await.unwrap();
    assert!(!guard.is_lost() && !waiting.is_finished());
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_hold_survives_its_masters_death_where_the_replica_has_it() {
    let cluster = Cluster::short_lived().await;
    let (ours, theirs) = (locks(&cluster).await, without_timers(&cluster).connect().await.unwrap());
    let name = cluster.name_on(1, "replicated").await;
    let stock = ours.mutex(&name);
    let guard = soon("the lock", stock.lock()).await.unwrap();
    cluster.replicated(1, &name).await;
    let waiting = tokio::spawn(theirs.mutex(&name).lock());
    eventually("it listens", async || !channels(&cluster, &name).await.is_empty()).await;
    cluster.node(1).kill();
    // The request begins while no node serves the slot. It waits for the failover, which takes less than a node timeout.
    let inner = soon("a re-entry", stock.lock()).await.unwrap();
    assert_eq!(cluster.fields_on(4, &name).await, [(guard.hold_id().to_owned(), 2)]);
    inner.release().await.unwrap();
    assert!(!guard.is_lost() && !waiting.is_finished());
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_hold_that_the_replica_lacks_is_lost_and_reported() {
    let cluster = Cluster::short_lived().await;
    let locks = locks(&cluster).await;
    let name = cluster.name_on(0, "unreplicated").await;
    let stock = locks.mutex(&name);
    // From now on no write reaches the replica.
    cluster.node(3).freeze();
    assert_eq!(cluster.node(0).ask::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]).await, 1);
    let guard = soon("the lock", stock.lock()).await.unwrap();
    cluster.node(0).kill();
    cluster.node(3).thaw();
    // The loss is reported long before a third of the lease is over.
    assert_eq!(soon("its loss", guard.lost()).await, Loss::Gone);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let again = soon("the lock at the new master", stock.lock()).await.unwrap();
    assert_eq!(cluster.fields_on(3, &name).await, [(again.hold_id().to_owned(), 1)]);
    again.release().await.unwrap();
}

#[tokio::test]
async fn nobody_overlaps_through_planned_failovers() {
    let cluster = Cluster::start().await;
    let processes = [locks(&cluster).await, locks(&cluster).await];
    let name = cluster.name_on(0, "crowd").await;
    let (inside, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for at in 0..6 {
        let (stock, inside, stop) = (processes[at % 2].mutex(&name), inside.clone(), stop.clone());
        tasks.push(tokio::spawn(async move {
            let mut rounds = 0;
            while !stop.load(Ordering::SeqCst) {
                let work = async {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    let second = stock.try_lock().owner(&Owner::new()).await.unwrap();
                    assert!(second.is_none(), "two hold it");
                    inside.fetch_sub(1, Ordering::SeqCst);
                };
                stock.run(|_| work).await.unwrap();
                rounds += 1;
            }
            rounds
        }));
    }
    // The shard fails over to its replica and back. The other masters don't vote for one shard twice within two of their timeouts.
    for replica in [3, 0] {
        cluster.fail_over(replica).await;
        cluster.whole().await;
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        assert!(soon("a task", task).await.unwrap() > 0);
    }
}

/// The cluster is one of three masters here. One of the other two does not answer, so the cluster's vote decides.
#[tokio::test]
async fn a_cluster_in_which_a_replica_took_over_has_no_vote_for_a_while() {
    let cluster = Cluster::start().await;
    let (silent, other) = (Memory::new(), Memory::new());
    let several = || -> Builder {
        let masters = [Master::cluster(cluster.urls()), Master::memory(&silent), Master::memory(&other)];
        Locks::quorum(masters).node_timeout(SECOND).lease(12 * SECOND)
    };
    let stock = several().connect().await.unwrap().mutex(cluster.name_on(0, "vote").await);
    silent.faults().stall(600 * SECOND);
    // The cluster has just been started, so it has no vote before it is old enough.
    let votes = async || stock.try_lock().await;
    eventually("its vote", async || votes().await.is_ok_and(|guard| guard.is_some())).await;
    cluster.fail_over(3).await;
    // The cluster works, but its vote is not counted.
    assert_eq!(soon("an attempt", votes()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let trusting = several().restart_delay(Duration::ZERO).connect().await.unwrap().mutex(stock.name());
    soon("an attempt", trusting.try_lock()).await.unwrap().expect("it is free").release().await.unwrap();
    eventually("its vote again", async || votes().await.is_ok_and(|guard| guard.is_some())).await;
}
