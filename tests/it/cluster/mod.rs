//! A Redis Cluster as the master: three masters and three replicas, each a real process.

mod connect;
mod failover;
mod fair;
mod locks;
mod moves;
mod outage;
mod sharded;
mod strangers;

use nestlock::{Builder, Locks, Master};

use crate::support::cluster::Cluster;
use crate::support::{self, HOUR, SECOND};

/// Returns the options that a test starts from. The node timeout is longer than any stall of a busy machine.
fn builder(cluster: &Cluster) -> Builder {
    over(&cluster.urls())
}

fn over(urls: &[String]) -> Builder {
    Locks::builder(Master::cluster(urls)).node_timeout(10 * SECOND).unavailable_after(60 * SECOND)
}

async fn locks(cluster: &Cluster) -> Locks {
    builder(cluster).connect().await.unwrap()
}

/// Returns options with which only an event wakes a waiter, never a timer.
fn without_timers(cluster: &Cluster) -> Builder {
    support::without_timers(builder(cluster))
}

/// Returns options with plain channels, as they were before Redis 7.
fn plain(cluster: &Cluster) -> Builder {
    builder(cluster).sharded_channels(false)
}

/// Returns the nodes that have a subscriber for this lock. Nodes that are down are skipped.
async fn channels(cluster: &Cluster, name: &str) -> Vec<usize> {
    let mut nodes = Vec::new();
    for (at, node) in cluster.nodes().iter().enumerate() {
        for kind in ["CHANNELS", "SHARDCHANNELS"] {
            let channels: Vec<String> = node.try_ask(&["PUBSUB", kind]).await.unwrap_or_default();
            if channels.iter().any(|channel| channel.contains(name)) {
                nodes.push(at);
            }
        }
    }
    nodes
}
