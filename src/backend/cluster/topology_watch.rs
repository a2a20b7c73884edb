//! The task that keeps the topology up to date.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::backend::cluster::nodes::Nodes;
use crate::backend::connection::Backoff;
use crate::base::telemetry;

/// How often the topology is queried without a request while the cluster is used. The time is shortened by up to a third at random.
const POLL: Duration = Duration::from_secs(5);

/// The pause before seeds that are not known to be of the cluster are queried again: at first, and the longest. It doubles, since a seed may
/// be gone for good, and is shortened like [`POLL`].
const SEED_POLL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// Keeps the topology up to date, and concurrently queries late seeds: one that hangs must not delay the detection of a failover.
pub(super) async fn watch_topology(nodes: Arc<Nodes>) {
    tokio::join!(query_topologies(&nodes), watch_late_seeds(&nodes));
}

/// Queries the seeds that are not known to be of the cluster, until all are.
async fn watch_late_seeds(nodes: &Nodes) {
    // They are known once there is a topology.
    let _ = nodes.changes.subscribe().wait_for(|_| nodes.is_seen()).await;
    let mut pause = SEED_POLL.0;
    while !nodes.identity.unconfirmed_seeds().is_empty() {
        nodes.query_late_seeds().await;
        sleep(shortened(pause)).await;
        pause = SEED_POLL.1.min(pause * 2);
    }
}

/// Queries the topology on request: one query at a time, with growing pauses between them. It also does so every few seconds while a
/// channel is subscribed, or calls are sent. Otherwise:
///
/// 1. A node is removed from the cluster, and maybe added to another one. Its connections stay open.
/// 2. A waiter is subscribed there, and receives no more messages; or a call is sent there, and acquires a lock in the other
///    cluster.
/// 3. Neither fails, so no error reports that the node has left.
///
/// The first call after a long idle time triggers a query at once. An idle client sends no queries.
async fn query_topologies(nodes: &Nodes) {
    let mut wanted = nodes.wanted.subscribe();
    let mut backoff = Backoff::default();
    // Whether calls were sent since the last query.
    let mut is_called = false;
    let mut queried = Instant::now();
    // An outage is reported once, not at each attempt.
    let mut reported = false;
    // An instant, not a pause: waiters that come and go must not postpone it.
    let mut next_poll = queried;
    loop {
        let is_subscribed = *wanted.borrow_and_update();
        tokio::select! {
            () = nodes.topology_requested.notified() => {}
            () = sleep_until(next_poll), if is_subscribed || is_called => {}
            // Not at each call, which would wake this task each time.
            () = nodes.called.notified(), if !is_called => {
                is_called = true;
                continue;
            }
            Ok(()) = wanted.changed() => continue,
        }
        backoff.lost(queried);
        sleep(backoff.pause()).await;
        // Calls sent from now on trigger the next query.
        pin!(nodes.called.notified()).enable();
        is_called = false;
        match nodes.query_topology().await {
            Ok(topology) => {
                let (was_reported, was_seen) = (std::mem::take(&mut reported), nodes.is_seen());
                nodes.install(&topology);
                if was_reported && !was_seen {
                    telemetry::arrived(&nodes.seeds.to_string());
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut reported, true) {
                    match nodes.is_seen() {
                        true => telemetry::cluster_unseen(&error),
                        false => telemetry::absent(&error),
                    }
                }
                nodes.is_unseen(error);
                nodes.request_topology();
            }
        }
        queried = Instant::now();
        next_poll = queried + shortened(POLL);
    }
}

/// Returns a pause that is shorter by up to a third at random.
fn shortened(pause: Duration) -> Duration {
    pause.mul_f64(1.0 - rand::random::<f64>() / 3.0)
}

#[cfg(test)]
mod tests;
