//! Nodes that freeze, lose their connections or restart, and clusters with too few nodes.

use nestlock::{ErrorKind, Loss};
use tokio::time::Instant;

use super::{SECOND, builder, channels, locks, plain};
use crate::support::cluster::Cluster;
use crate::support::{self, STRANGER, eventually, soon};

#[tokio::test]
async fn a_frozen_node_stops_its_own_locks_alone() {
    let cluster = Cluster::start().await;
    let ours = builder(&cluster).node_timeout(3 * SECOND).connect().await.unwrap();
    let names = [
        cluster.name_on(0, "frozen").await,
        cluster.name_on(1, "alive").await,
        cluster.name_on(2, "alive").await,
    ];
    for name in &names {
        soon("a run", ours.mutex(name).run(async |_| {})).await.unwrap();
    }
    cluster.node(0).freeze();
    let frozen = ours.mutex(&names[0]);
    let error = soon("its end", frozen.try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let begun = Instant::now();
    for _ in 0..50 {
        for name in &names[1..] {
            soon("a run", ours.mutex(name).run(async |_| {})).await.unwrap();
        }
    }
    // If each command had waited for the frozen node, this would have taken a hundred node timeouts.
    assert!(begun.elapsed() < 150 * SECOND, "{:?}", begun.elapsed());
    // Once the node continues, its own locks can be taken again.
    cluster.node(0).thaw();
    soon("the lock", frozen.lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_client_that_comes_while_a_node_is_frozen_is_served_by_the_others() {
    let cluster = Cluster::start().await;
    cluster.node(1).freeze();
    let late = builder(&cluster).node_timeout(SECOND).connect().await.unwrap();
    let name = format!("{{{}}}", "alive");
    let owner = cluster.owner(&name).await;
    let name = if owner == 1 { cluster.name_on(0, "alive").await } else { name };
    soon("a run", late.mutex(&name).run(async |_| {})).await.unwrap();
    cluster.node(1).thaw();
    let name = cluster.name_on(1, "thawed").await;
    soon("a run", late.mutex(&name).run(async |_| {})).await.unwrap();
}

#[tokio::test]
async fn a_node_that_comes_back_with_its_data_has_its_holds() {
    let cluster = Cluster::with(60 * SECOND, &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let (ours, theirs) = (locks(&cluster).await, locks(&cluster).await);
    let name = cluster.name_on(2, "kept").await;
    let stock = ours.mutex(&name);
    let guard = soon("the lock", stock.lock()).await.unwrap();
    cluster.node(2).restart().await;
    let inner = soon("a re-entry", stock.lock()).await.unwrap();
    assert_eq!(inner.hold_id(), guard.hold_id());
    assert!(soon("an attempt", theirs.mutex(&name).try_lock()).await.unwrap().is_none(), "two hold it");
    inner.release().await.unwrap();
    guard.release().await.unwrap();
    soon("theirs", theirs.mutex(&name).lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_holds_of_a_node_that_restarts_empty_are_reported_as_lost() {
    let cluster = Cluster::start().await;
    let locks = locks(&cluster).await;
    let (gone, kept) = (cluster.name_on(0, "gone").await, cluster.name_on(1, "kept").await);
    let gone = soon("the lock", locks.mutex(&gone).lock()).await.unwrap();
    let kept = soon("the lock", locks.mutex(&kept).lock()).await.unwrap();
    cluster.node(0).restart_empty().await;
    assert_eq!(soon("its loss", gone.lost()).await, Loss::Gone);
    assert!(!kept.is_lost());
    kept.release().await.unwrap();
}

#[tokio::test]
async fn a_cluster_without_a_majority_is_unavailable_until_it_is_back() {
    let cluster = Cluster::short_lived().await;
    let locks = builder(&cluster).node_timeout(SECOND).connect().await.unwrap();
    let stock = locks.mutex(cluster.name_on(0, "minority").await);
    for at in [1, 2] {
        cluster.node(at).kill();
    }
    eventually("a cluster that is down", async || {
        cluster.node(0).ask::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:fail")
    })
    .await;
    let begun = Instant::now();
    let error = soon("its end", stock.try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("CLUSTERDOWN"), "{error}");
    assert!(begun.elapsed() >= SECOND / 2, "the client gave up at once");
    let waiting = tokio::spawn(stock.lock());
    for at in [1, 2] {
        cluster.node(at).restart().await;
    }
    soon("the lock", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_is_woken_though_the_node_that_it_listened_at_died() {
    let cluster = Cluster::start().await;
    let (ours, theirs) = (plain(&cluster), support::without_timers(plain(&cluster)));
    let (ours, theirs) = (ours.connect().await.unwrap(), theirs.connect().await.unwrap());
    let (first, pubsub_node) = listening(&cluster, &ours, &theirs).await;
    let name = cluster.name_on((pubsub_node + 1) % 3, "elsewhere").await;
    let guard = soon("the lock", ours.mutex(&name).lock()).await.unwrap();
    let waiting = tokio::spawn(theirs.mutex(&name).lock());
    eventually("it listens", async || channels(&cluster, &name).await == [pubsub_node]).await;
    cluster.node(pubsub_node).kill();
    eventually("it listens elsewhere", async || {
        let at = channels(&cluster, &name).await;
        !at.is_empty() && !at.contains(&pubsub_node)
    })
    .await;
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    drop(first);
}

/// The node's connections stay open, but no more messages arrive there.
#[tokio::test]
async fn waiters_are_woken_though_the_node_that_they_listened_at_has_left_the_cluster() {
    let cluster = Cluster::start().await;
    let ours = plain(&cluster).lease(600 * SECOND).connect().await.unwrap();
    let theirs = support::without_timers(plain(&cluster)).connect().await.unwrap();
    let (first, pubsub_node) = listening(&cluster, &ours, &theirs).await;
    let name = cluster.name_on((pubsub_node + 1) % 3, "left").await;
    let mut guard = soon("the lock", ours.mutex(&name).lock()).await.unwrap();
    let mut waiting = tokio::spawn(theirs.mutex(&name).lock());
    eventually("it listens", async || channels(&cluster, &name).await == [pubsub_node]).await;
    cluster.expel(pubsub_node, (pubsub_node + 2) % 3).await;
    eventually("it listens elsewhere", async || {
        let at = channels(&cluster, &name).await;
        !at.is_empty() && !at.contains(&pubsub_node)
    })
    .await;
    for _ in 0..5 {
        guard.release().await.unwrap();
        soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
        guard = soon("the lock", ours.mutex(&name).lock()).await.unwrap();
        waiting = tokio::spawn(theirs.mutex(&name).lock());
        eventually("it listens", async || !channels(&cluster, &name).await.is_empty()).await;
    }
    drop((first, guard, waiting));
}

/// Returns how often nodes were queried for the topology.
async fn looks(cluster: &Cluster) -> u64 {
    let mut looks = 0;
    for node in cluster.nodes() {
        looks += node.commands_run().await.get("cluster|slots").copied().unwrap_or_default();
    }
    looks
}

/// If a waiter finds a lock free by its poll and had no message, the node at which the client listens may have left the cluster. The
/// periodic queries are at least 3.3 s apart.
#[tokio::test]
async fn the_topology_is_queried_once_a_poll_finds_a_lock_free_without_a_message() {
    let cluster = Cluster::start().await;
    let locks = builder(&cluster).poll_interval(SECOND / 2).connect().await.unwrap();
    let name = cluster.name_on(0, "unanswered").await;
    let (stock, node) = (locks.mutex(&name), cluster.node(0));
    let mut prompt = false;
    // A busy machine may be late by seconds once or twice.
    for _ in 0..10 {
        node.ask::<i64>(&["HSET", &name, STRANGER, "1"]).await;
        node.ask::<i64>(&["PEXPIRE", &name, "600000"]).await;
        let waiting = tokio::spawn(stock.lock());
        eventually("it listens", async || !channels(&cluster, &name).await.is_empty()).await;
        let before = looks(&cluster).await;
        eventually("a periodic look", async || looks(&cluster).await > before).await;
        let (before, begun) = (looks(&cluster).await, Instant::now());
        node.ask::<i64>(&["DEL", &name]).await;
        let guard = soon("the waiter, by its poll", waiting).await.unwrap().unwrap();
        eventually("a look", async || looks(&cluster).await > before).await;
        prompt = begun.elapsed() < 5 * SECOND / 2;
        guard.release().await.unwrap();
        if prompt {
            break;
        }
    }
    assert!(prompt, "the topology was queried only periodically");
}

#[tokio::test]
async fn a_waiter_listens_elsewhere_where_its_node_is_silent() {
    let cluster = Cluster::start().await;
    let ours = plain(&cluster).node_timeout(SECOND).connect().await.unwrap();
    let theirs = support::without_timers(plain(&cluster)).node_timeout(SECOND).connect().await.unwrap();
    let (first, pubsub_node) = listening(&cluster, &ours, &theirs).await;
    let name = cluster.name_on((pubsub_node + 1) % 3, "elsewhere").await;
    let guard = soon("the lock", ours.mutex(&name).lock()).await.unwrap();
    let waiting = tokio::spawn(theirs.mutex(&name).lock());
    eventually("it listens", async || channels(&cluster, &name).await == [pubsub_node]).await;
    cluster.node(pubsub_node).freeze();
    let others: Vec<usize> = (0..6).filter(|at| *at != pubsub_node).collect();
    eventually("it listens elsewhere", async || {
        let mut subscribed = false;
        for at in &others {
            subscribed |= cluster.node(*at).channels().await.iter().any(|channel| channel.contains(&name));
        }
        subscribed
    })
    .await;
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    cluster.node(pubsub_node).thaw();
    drop(first);
}

/// Starts a waiter. Returns it with the node from which its process receives messages.
async fn listening(
    cluster: &Cluster,
    ours: &nestlock::Locks,
    theirs: &nestlock::Locks,
) -> (tokio::task::JoinHandle<()>, usize) {
    let guard = soon("the lock", ours.mutex("first").lock()).await.unwrap();
    let first = theirs.mutex("first");
    let waiting = tokio::spawn(async move { drop(first.lock().await) });
    eventually("it listens", async || channels(cluster, "first").await.len() == 1).await;
    let pubsub_node = channels(cluster, "first").await[0];
    std::mem::forget(guard);
    (waiting, pubsub_node)
}
