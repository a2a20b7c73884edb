//! A Redis Cluster as the master: three masters and three replicas, which are real processes.

mod connect;
mod failover;
mod locks;
mod moves;
mod outage;
mod strangers;

use std::time::Duration;

use nestlock::{Builder, Locks};

use crate::support::cluster::Cluster;

const SECOND: Duration = Duration::from_secs(1);

/// So long that nothing which waits for it comes within a test.
const HOUR: Duration = Duration::from_secs(3600);

/// The options that a test starts from. The node timeout is longer than any stall of a busy machine.
fn builder(cluster: &Cluster) -> Builder {
    Locks::builder().cluster(cluster.urls()).node_timeout(10 * SECOND).unavailable_after(60 * SECOND)
}

async fn locks(cluster: &Cluster) -> Locks {
    builder(cluster).connect().await.unwrap()
}

/// What a waiter gets, it gets by an event: no timer wakes it.
fn without_timers(cluster: &Cluster) -> Builder {
    builder(cluster).poll_interval(Duration::MAX).retry_delay(HOUR..=HOUR)
}

/// The nodes at which somebody listens for this lock; those that are down are not asked.
async fn channels(cluster: &Cluster, name: &str) -> Vec<usize> {
    let mut nodes = Vec::new();
    for (at, node) in cluster.nodes().iter().enumerate() {
        let channels: Vec<String> = node.try_ask(&["PUBSUB", "CHANNELS"]).await.unwrap_or_default();
        if channels.iter().any(|channel| channel.contains(name)) {
            nodes.push(at);
        }
    }
    nodes
}
