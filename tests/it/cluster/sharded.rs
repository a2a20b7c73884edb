//! Messages of releases on sharded channels, at the node that serves the lock's slot.

use nestlock::{Guard, Locks};
use tokio::task::JoinHandle;

use super::{builder, channels, over, plain, without_timers};
use crate::support::cluster::Cluster;
use crate::support::{self, eventually, soon};

/// Returns a guard, and a waiter of another client that no timer wakes.
async fn pair(cluster: &Cluster, name: &str) -> (Guard, JoinHandle<nestlock::Result<Guard>>) {
    // The lease is too long for its end to wake a waiter.
    let (ours, theirs) = (builder(cluster).lease(support::HOUR), without_timers(cluster));
    let (ours, theirs) = (ours.connect().await.unwrap(), theirs.connect().await.unwrap());
    waits(cluster, &ours, &theirs, name).await
}

async fn waits(
    cluster: &Cluster,
    ours: &Locks,
    theirs: &Locks,
    name: &str,
) -> (Guard, JoinHandle<nestlock::Result<Guard>>) {
    let guard = soon("the lock", ours.mutex(name).lock()).await.unwrap();
    let waiting = tokio::spawn(theirs.mutex(name).lock());
    eventually("it listens", async || !channels(cluster, name).await.is_empty()).await;
    (guard, waiting)
}

async fn is_woken(guard: Guard, waiting: JoinHandle<nestlock::Result<Guard>>) {
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// Returns how many messages were published on all nodes: on plain channels and on sharded channels.
async fn published(cluster: &Cluster) -> [u64; 2] {
    let mut sum = [0, 0];
    for node in cluster.nodes() {
        let run = node.commands_run().await;
        for (sum, command) in sum.iter_mut().zip(["publish", "spublish"]) {
            *sum += run.get(command).copied().unwrap_or_default();
        }
    }
    sum
}

#[tokio::test]
async fn a_waiter_listens_at_the_node_of_its_slot_and_is_woken_by_one_message_there() {
    let cluster = Cluster::start().await;
    for at in 0..3 {
        let name = cluster.name_on(at, "lamp").await;
        let (guard, waiting) = pair(&cluster, &name).await;
        assert_eq!(channels(&cluster, &name).await, [at]);
        assert_eq!(cluster.node(at).channels().await.len(), 1);
        let before = published(&cluster).await;
        guard.release().await.unwrap();
        let next = soon("the waiter", waiting).await.unwrap().unwrap();
        assert_eq!(published(&cluster).await, [before[0], before[1] + 1]);
        next.release().await.unwrap();
        eventually("nobody listens", async || channels(&cluster, &name).await.is_empty()).await;
    }
}

#[tokio::test]
async fn a_waiter_follows_its_slot() {
    let cluster = Cluster::start().await;
    let name = cluster.name_on(0, "moved").await;
    let (guard, waiting) = pair(&cluster, &name).await;
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        assert_eq!(channels(&cluster, &name).await, [from]);
        cluster.begin_move(&name, from, to).await;
        cluster.move_key(&name, from, to).await;
        cluster.end_move(&name, to, &[to, from, 3 - from - to]).await;
        eventually("it listens at the other node", async || channels(&cluster, &name).await == [to]).await;
        assert!(!waiting.is_finished() && !guard.is_lost());
    }
    is_woken(guard, waiting).await;
}

/// The lock is freed at the node that its slot moves to, while all waiters listen at the node that still serves the slot.
#[tokio::test]
async fn a_waiter_is_woken_while_its_slot_moves() {
    let cluster = Cluster::start().await;
    let name = cluster.name_on(1, "moving").await;
    let (guard, waiting) = pair(&cluster, &name).await;
    cluster.begin_move(&name, 1, 2).await;
    cluster.move_key(&name, 1, 2).await;
    is_woken(guard, waiting).await;
    assert_eq!(channels(&cluster, &name).await.iter().filter(|at| **at != 1).count(), 0);
    // Now the lock itself is made on the node that the slot moves to.
    let (guard, waiting) = pair(&cluster, &name).await;
    assert_eq!(cluster.fields_on(2, &name).await.len(), 1);
    is_woken(guard, waiting).await;
}

#[tokio::test]
async fn a_waiter_listens_at_the_replica_that_took_over() {
    let cluster = Cluster::short_lived().await;
    let name = cluster.name_on(1, "failed").await;
    let (guard, waiting) = pair(&cluster, &name).await;
    cluster.replicated(1, &name).await;
    cluster.node(1).kill();
    eventually("it listens at the replica", async || channels(&cluster, &name).await == [4]).await;
    assert!(!waiting.is_finished() && !guard.is_lost());
    is_woken(guard, waiting).await;
}

#[tokio::test]
async fn a_lost_subscription_is_made_again_and_a_release_in_between_is_not_missed() {
    let cluster = Cluster::start().await;
    let name = cluster.name_on(2, "cut").await;
    let (guard, waiting) = pair(&cluster, &name).await;
    // This publishes nothing, so the waiter finds the lock free only when it asks.
    cluster.node(2).ask::<i64>(&["DEL", &name]).await;
    assert!(!waiting.is_finished());
    cluster.node(2).ask::<i64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    drop(guard);
}

#[tokio::test]
async fn with_the_option_off_plain_channels_are_used() {
    let cluster = Cluster::start().await;
    let theirs = support::without_timers(plain(&cluster)).connect().await.unwrap();
    let ours = plain(&cluster).lease(support::HOUR).connect().await.unwrap();
    let name = cluster.name_on(0, "plain").await;
    let (guard, waiting) = waits(&cluster, &ours, &theirs, &name).await;
    for node in cluster.nodes() {
        assert!(node.sharded_channels().await.is_empty());
    }
    let before = published(&cluster).await;
    is_woken(guard, waiting).await;
    assert_eq!(published(&cluster).await[1], before[1]);
}

#[tokio::test]
async fn clients_that_do_not_agree_on_the_channels_exclude_each_other_and_poll() {
    let cluster = Cluster::start().await;
    let poll = super::SECOND / 5;
    let clients = [
        builder(&cluster).poll_interval(poll).connect().await.unwrap(),
        plain(&cluster).poll_interval(poll).connect().await.unwrap(),
    ];
    let name = cluster.name_on(0, "mixed").await;
    for (one, other) in [(0, 1), (1, 0)] {
        let (guard, waiting) = waits(&cluster, &clients[one], &clients[other], &name).await;
        assert!(clients[other].mutex(&name).try_lock().await.unwrap().is_none());
        is_woken(guard, waiting).await;
    }
}

/// These users have the rights of clients for nodes without sharded channels.
#[tokio::test]
async fn users_without_the_right_to_sharded_channels_wake_each_other_on_plain_ones() {
    let cluster = Cluster::start().await;
    let user = "ACL SETUSER old reset on >secret ~* &* +@all -ssubscribe -sunsubscribe -spublish";
    for node in cluster.nodes() {
        node.ask::<()>(&user.split(' ').collect::<Vec<_>>()).await;
    }
    let urls: Vec<String> =
        cluster.urls().into_iter().map(|url| url.replace("redis://", "redis://old:secret@")).collect();
    let old = || over(&urls);
    let ours = old().lease(support::HOUR).connect().await.unwrap();
    let theirs = support::without_timers(old()).connect().await.unwrap();
    let name = cluster.name_on(1, "old").await;
    let (guard, waiting) = waits(&cluster, &ours, &theirs, &name).await;
    is_woken(guard, waiting).await;
    // The user is granted the right while a request waits. Soon both the waiter and the releases use the sharded channel.
    let (guard, waiting) = waits(&cluster, &ours, &theirs, &name).await;
    for node in cluster.nodes() {
        node.ask::<()>(&["ACL", "SETUSER", "old", "+ssubscribe", "+sunsubscribe", "+spublish"]).await;
    }
    eventually("it listens", async || !cluster.node(1).sharded_channels().await.is_empty()).await;
    is_woken(guard, waiting).await;
}

/// If key and channel are in two slots, no script can publish a sharded message.
#[tokio::test]
async fn names_whose_channel_is_in_another_slot_use_plain_ones() {
    let cluster = Cluster::start().await;
    for name in ["a}b", "{}tag", "un{paired"] {
        let (guard, waiting) = pair(&cluster, name).await;
        for node in cluster.nodes() {
            assert!(node.sharded_channels().await.is_empty(), "{name}");
        }
        is_woken(guard, waiting).await;
    }
}
