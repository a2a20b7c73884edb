//! A Redis Cluster as one master: each lock is stored by the node that serves the slot of its key.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::pubsub_node::PubsubNode;
use crate::backend::cluster::shard_reports::{Inbox, Note};
use crate::backend::cluster::sharded::{ShardedSubscriber, is_sharded};
use crate::backend::cluster::slots::{NodeAddress, slot};
use crate::backend::cluster::topology_watch::watch_topology;
use crate::backend::connection::{ChannelKind, NameRight, Subscriber};
use crate::backend::server::{Role, Spare};
use crate::backend::{Backend, BoxFuture, runtime};
use crate::base::{Events, Failure};
use crate::config::Seeds;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::keys::Keys;
use crate::wire::{Call, Reply};

/// A backend over a Redis Cluster: a command connection to each node that serves slots, and connections for messages.
pub(crate) struct Cluster {
    nodes: Arc<Nodes>,
    messages: Messages,
    tasks: [AbortHandle; 2],
    name_right: NameRight,
}

/// How messages of releases are received.
enum Messages {
    /// Plain messages, from any node, since nodes forward them to each other.
    Plain(Subscriber),
    /// Sharded messages, from the node that serves the slot.
    Sharded(ShardedSubscriber),
}

impl Cluster {
    /// Finds the cluster by its seeds, and connects to its nodes. If it can't be found now, also returns the error; the cluster is used
    /// once it is found.
    pub(crate) async fn connect(
        seeds: &Seeds,
        role: Role,
        node_timeout: Duration,
        sharded: bool,
        events: Weak<dyn Events>,
    ) -> Result<(Arc<Cluster>, Option<Error>)> {
        let unconnected = Cluster::at(seeds, role, node_timeout, sharded, events)?;
        let nodes = &unconnected.nodes;
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
        Ok((unconnected.start(), away))
    }

    /// Returns a cluster that is to be connected to on the current runtime, which then runs the tasks that own the connections.
    pub(crate) fn at(
        seeds: &Seeds,
        role: Role,
        node_timeout: Duration,
        sharded: bool,
        events: Weak<dyn Events>,
    ) -> Result<Unconnected> {
        let notes = sharded.then(mpsc::unbounded_channel);
        let inbox = notes.as_ref().map(|(inbox, _)| inbox.clone());
        let nodes = Nodes::new(seeds.clone(), role, node_timeout, events.clone(), inbox, runtime()?);
        Ok(Unconnected { nodes, events, notes })
    }
}

/// A cluster before its first topology.
pub(crate) struct Unconnected {
    nodes: Arc<Nodes>,
    events: Weak<dyn Events>,
    /// How sharded channels are reported, if they are used.
    notes: Option<(Inbox, mpsc::UnboundedReceiver<Note>)>,
}

impl Unconnected {
    /// Begins to look for the cluster. Nobody waits for it; the outcome is for the log and for calls.
    pub(crate) fn connect_lazily(self) -> Arc<Cluster> {
        self.nodes.request_topology();
        self.start()
    }

    fn start(self) -> Arc<Cluster> {
        let Unconnected { nodes, events, notes } = self;
        let (target, address) = (watch::Sender::new(None), nodes.seeds.to_string().into());
        let (endpoint, limit) = (target.subscribe(), nodes.connect_limit());
        let plain = |events| Subscriber::start(ChannelKind::Plain, endpoint, address, events, limit);
        let (messages, failures, wanted) = if let Some(notes) = notes {
            let sharded = ShardedSubscriber::start(nodes.clone(), events, notes, plain);
            let ((failures, _), wanted) = (sharded.plain().state(), sharded.wanted());
            (Messages::Sharded(sharded), failures, wanted)
        } else {
            let plain = plain(events);
            let (failures, wanted) = plain.state();
            (Messages::Plain(plain), failures, wanted)
        };
        let pubsub_node = PubsubNode::new(nodes.clone(), target);
        let tasks = [
            tokio::spawn(watch_topology(nodes.clone(), wanted)).abort_handle(),
            tokio::spawn(pubsub_node.run(failures)).abort_handle(),
        ];
        Arc::new(Cluster { nodes, messages, tasks, name_right: NameRight::default() })
    }
}

impl Cluster {
    /// Chooses how the release of a lock is published. Its waiters subscribe by the same rule.
    fn publish(&self, call: &mut Call) {
        let sharded = matches!(self.messages, Messages::Sharded(_));
        call.sharded = sharded && call.action.publishes() && is_sharded(call.keys.channel());
    }
}

/// Hides the number of subscribers to a plain channel: a node counts its own clients only, and others receive what it publishes too.
fn uncounted(reply: Reply, sharded: bool) -> Reply {
    if let (Reply::Ended(_), false) = (&reply, sharded) { Reply::Done } else { reply }
}

impl Backend for Cluster {
    fn run(self: Arc<Self>, mut call: Call) -> BoxFuture<Result<Reply, Failure>> {
        self.publish(&mut call);
        self.name_right.apply(&mut call);
        Box::pin(async move {
            let answer = self.nodes.answer(&call).await;
            self.name_right.learn(&answer);
            answer.map(|reply| uncounted(reply, call.sharded))
        })
    }

    fn run_all(self: Arc<Self>, mut calls: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        calls.iter_mut().for_each(|call| self.publish(call));
        Box::pin(async move {
            let answers = self.nodes.answer_all(&calls).await;
            let each = answers.into_iter().zip(&calls);
            each.map(|(answer, call)| answer.map(|reply| uncounted(reply, call.sharded))).collect()
        })
    }

    fn is_unread(&self) -> bool {
        self.nodes.all().0.iter().any(|node| node.server.is_unread())
    }

    fn spare(&self, keys: &Keys) -> Option<Spare> {
        let (nodes, node) = (Arc::downgrade(&self.nodes), self.nodes.standing(keys)?);
        let at = node.node_address;
        let redirect = move |to: &str| {
            let nodes = nodes.upgrade()?;
            nodes.endpoint(&NodeAddress::of(to, &at)?.mapped(nodes.address_map())).ok()
        };
        Some(node.server.spare(keys)?.with_redirect(Arc::new(redirect)))
    }

    fn is_unused(&self, keys: &Keys) -> bool {
        self.nodes.standing(keys).is_some_and(|node| node.server.is_unused(keys))
    }

    fn begin(self: Arc<Self>, call: &Call) -> Option<BoxFuture<Result<Reply, Failure>>> {
        let mut call = call.clone();
        self.publish(&mut call);
        self.name_right.apply(&mut call);
        let node = self.nodes.permitted(&call)?;
        let answer = node.server.clone().begin(&call)?;
        Some(Box::pin(async move {
            let answer = self.nodes.answer_behind(&call, node, answer).await;
            self.name_right.learn(&answer);
            answer.map(|reply| uncounted(reply, call.sharded))
        }))
    }

    fn run_last(&self, calls: Vec<Call>) {
        for mut call in calls {
            self.publish(&mut call);
            self.name_right.apply(&mut call);
            if let Some(node) = self.nodes.permitted(&call) {
                node.server.run_last(vec![call]);
            }
        }
    }

    fn end_with_runtime(&self) {
        self.nodes.end_with_runtime();
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        self.nodes.is_younger_than(age)
    }

    fn first_attempt(self: Arc<Self>) -> BoxFuture<bool> {
        Box::pin(async move { self.nodes.first_attempt().await })
    }

    fn is_connected(&self, keys: &Keys) -> bool {
        self.nodes.is_connected(slot(&keys.key))
    }

    fn subscribe(&self, channel: &str) {
        match &self.messages {
            Messages::Plain(subscriber) => subscriber.subscribe(channel),
            Messages::Sharded(subscriber) => subscriber.subscribe(channel),
        }
    }

    fn unsubscribe(&self, channel: &str) {
        match &self.messages {
            Messages::Plain(subscriber) => subscriber.unsubscribe(channel),
            Messages::Sharded(subscriber) => subscriber.unsubscribe(channel),
        }
    }

    fn doubt_messages(&self) {
        // The node that messages are received from may have left the cluster.
        self.nodes.request_topology();
    }

    fn close(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.nodes.close();
        match &self.messages {
            Messages::Plain(subscriber) => subscriber.close(),
            Messages::Sharded(subscriber) => subscriber.close(),
        }
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
