//! Chooses the node that plain messages are received from.

use std::sync::Arc;

use tokio::sync::watch;

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::connection::Endpoint;

/// Chooses the node that plain messages are received from: any node will do, since nodes forward them to each other. Chooses another
/// node when the connection to the last one is lost, or when that node has left the cluster and receives no more messages.
pub(super) async fn choose_pubsub_node(
    nodes: Arc<Nodes>,
    target: watch::Sender<Option<Endpoint>>,
    mut failures: watch::Receiver<u64>,
) {
    let mut changes = nodes.changes.subscribe();
    // Before any node is connected, the choice might fall on one that can't be reached, which the first waiter would notice.
    while nodes.known().is_empty() {
        let _ = changes.changed().await;
    }
    nodes.first_attempts().await;
    // These failures were those of a subscriber without a node.
    failures.mark_unchanged();
    let mut failed = true;
    loop {
        if (failed || !nodes.pubsub_node().is_some_and(|last| nodes.forwards_messages(&last)))
            && let Some(node_address) = nodes.another_pubsub_node()
        {
            if let Ok(endpoint) = nodes.endpoint(&node_address) {
                target.send_replace(Some(endpoint));
            }
            nodes.set_pubsub_node(node_address);
        }
        failed = tokio::select! {
            failed = failures.changed() => match failed {
                Ok(()) => true,
                Err(_) => return,
            },
            _ = changes.changed() => false,
        };
    }
}

impl Nodes {
    /// Returns another node than the last one, if there is one, preferably one that is connected.
    fn another_pubsub_node(&self) -> Option<NodeAddress> {
        let (known, last) = (self.known().into_iter(), self.pubsub_node());
        let order = |(node_address, slot): &(NodeAddress, Option<_>)| {
            (Some(node_address) == last.as_ref(), slot.is_none(), rand::random::<u32>())
        };
        Some(known.min_by_key(order)?.0)
    }
}

#[cfg(test)]
mod tests;
