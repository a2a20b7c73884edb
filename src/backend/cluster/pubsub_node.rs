//! Chooses the node that messages are received from.

use std::sync::Arc;

use tokio::sync::watch;

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::connection::Endpoint;

/// Chooses the node that messages are received from. Any node will do, since nodes forward messages to each other.
pub(super) struct PubsubNode {
    nodes: Arc<Nodes>,
    target: watch::Sender<Option<Endpoint>>,
}

impl PubsubNode {
    pub(super) fn new(nodes: Arc<Nodes>, target: watch::Sender<Option<Endpoint>>) -> PubsubNode {
        PubsubNode { nodes, target }
    }

    /// Chooses another node when the connection to the last one is lost, or when that has left the cluster and receives no more messages.
    pub(super) async fn run(self, mut failures: watch::Receiver<u64>) {
        let mut changes = self.nodes.changes.subscribe();
        self.switch();
        loop {
            let failed = tokio::select! {
                failed = failures.changed() => match failed {
                    Ok(()) => true,
                    Err(_) => return,
                },
                _ = changes.changed() => false,
            };
            if failed || !self.nodes.pubsub_node().is_some_and(|last| self.nodes.forwards_messages(&last)) {
                self.switch();
            }
        }
    }

    fn switch(&self) {
        let Some(node_address) = self.choose() else { return };
        if let Ok(endpoint) = self.nodes.endpoint(&node_address) {
            self.target.send_replace(Some(endpoint));
        }
        self.nodes.set_pubsub_node(node_address);
    }

    /// Returns another node than the last one, if there is one, preferably one that is connected.
    fn choose(&self) -> Option<NodeAddress> {
        let (last, (serving, replicas)) = (self.nodes.pubsub_node(), self.nodes.all());
        let (up, down): (Vec<_>, Vec<_>) = serving.into_iter().partition(|node| node.server.slot().is_up());
        let mut node_addresses: Vec<NodeAddress> = up.into_iter().map(|node| node.node_address).collect();
        if node_addresses.iter().all(|node_address| Some(node_address) == last.as_ref()) {
            node_addresses.extend(replicas);
            node_addresses.extend(down.into_iter().map(|node| node.node_address));
        }
        if node_addresses.len() > 1 {
            node_addresses.retain(|node_address| Some(node_address) != last.as_ref());
        }
        match node_addresses.len() {
            0 => None,
            count => Some(node_addresses.swap_remove(rand::random_range(0..count))),
        }
    }
}

#[cfg(test)]
mod tests;
