//! A Redis Cluster as one master: each lock is stored by the node that serves the slot of its key.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::pubsub_node::PubsubNode;
use crate::backend::cluster::topology_watch::watch_topology;
use crate::backend::connection::Subscriber;
use crate::backend::server::Role;
use crate::backend::{Backend, BoxFuture, runtime};
use crate::base::{Events, Failure};
use crate::config::Seeds;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Call, Reply};

/// A backend over a Redis Cluster: a command connection to each node that serves slots, and one connection for messages to any
/// node, since nodes forward messages to each other.
pub(crate) struct Cluster {
    nodes: Arc<Nodes>,
    subscriber: Subscriber,
    tasks: [AbortHandle; 2],
}

impl Cluster {
    /// Finds the cluster by its seeds, and connects to its nodes. If it can't be found now, returns the error too; it is used once
    /// it is found.
    pub(crate) async fn connect(
        seeds: &Seeds,
        role: Role,
        node_timeout: Duration,
        events: Weak<dyn Events>,
    ) -> Result<(Arc<Cluster>, Option<Error>)> {
        let nodes = Nodes::new(seeds.clone(), role, node_timeout, events.clone(), runtime()?);
        let away = match nodes.query_topology().await {
            Ok(topology) => {
                nodes.install(&topology);
                nodes.wait_connected().await?
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                nodes.request_topology();
                Some(error)
            }
            Err(error) => return Err(error),
        };
        let (target, address) = (watch::Sender::new(None), seeds.to_string().into());
        let subscriber = Subscriber::start(target.subscribe(), address, events, nodes.connect_limit());
        let pubsub_node = PubsubNode::new(nodes.clone(), target);
        let (failures, wanted) = subscriber.state();
        let tasks = [
            tokio::spawn(watch_topology(nodes.clone(), wanted)).abort_handle(),
            tokio::spawn(pubsub_node.run(failures)).abort_handle(),
        ];
        Ok((Arc::new(Cluster { nodes, subscriber, tasks }), away))
    }
}

impl Backend for Cluster {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<Result<Reply, Failure>> {
        Box::pin(async move { self.nodes.answer(&call).await })
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        Box::pin(async move { self.nodes.answer_all(&calls).await })
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        self.nodes.is_younger_than(age)
    }

    fn subscribe(&self, channel: &str) {
        self.subscriber.subscribe(channel);
    }

    fn unsubscribe(&self, channel: &str) {
        self.subscriber.unsubscribe(channel);
    }

    fn doubt_messages(&self) {
        // The node that messages are received from may have left the cluster.
        self.nodes.request_topology();
    }

    fn is_portable(&self) -> bool {
        false
    }

    fn close(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.nodes.close();
        self.subscriber.close();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cluster").field(&format_args!("{}", self.nodes)).finish()
    }
}

#[cfg(test)]
mod tests;
