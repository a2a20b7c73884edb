//! A Redis Cluster as one master: each lock is stored by the node that serves the slot of its key.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::pubsub_node::choose_pubsub_node;
use crate::backend::cluster::shard_reports::{Inbox, Note, ShardReports};
use crate::backend::cluster::sharded::Subscriptions;
use crate::backend::cluster::slots::{NodeAddress, slot};
use crate::backend::cluster::topology_watch::watch_topology;
use crate::backend::connection::{ChannelKind, Subscriber};
use crate::backend::server::{Role, Spare};
use crate::backend::{Backend, BoxFuture, runtime};
use crate::base::{Events, Task};
use crate::config::Seeds;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::keys::Keys;
use crate::wire::{Call, CallResult, Reply};

/// A backend over a Redis Cluster: a command connection to each node that serves slots, and connections for messages.
pub(crate) struct Cluster {
    nodes: Arc<Nodes>,
    /// Receives which channels are wanted.
    inbox: Inbox,
    tasks: [AbortHandle; 3],
}

impl Cluster {
    /// Starts the tasks on the current runtime. Nothing is queried before [`connect`](Cluster::connect) or `connect_lazily`.
    pub(crate) fn new(
        seeds: &Seeds,
        role: Role,
        sharded: bool,
        events: Weak<dyn Events>,
    ) -> Result<Arc<Cluster>> {
        let (inbox, notes) = mpsc::unbounded_channel();
        let (runtime, nodes_inbox) = (runtime()?, sharded.then(|| inbox.clone()));
        let nodes = Nodes::new(seeds.clone(), role, events.clone(), nodes_inbox, runtime);
        let (target, address, limit) =
            (watch::Sender::new(None), seeds.to_string().into(), nodes.connect_limit());
        let reports: Arc<dyn Events> = Arc::new(ShardReports::new(inbox.clone(), None));
        let receiver = Arc::downgrade(&reports);
        let plain = Subscriber::start(ChannelKind::Plain, target.subscribe(), address, receiver, limit, None);
        let failures = plain.failures();
        let subscriptions = Subscriptions {
            nodes: nodes.clone(),
            events,
            plain,
            _reports: reports,
            channels: HashMap::new(),
        };
        let tasks: [Task; 3] = [
            Box::pin(watch_topology(nodes.clone())),
            Box::pin(choose_pubsub_node(nodes.clone(), target, failures)),
            Box::pin(subscriptions.run(notes)),
        ];
        let tasks = tasks.map(|task| tokio::spawn(task).abort_handle());
        Ok(Arc::new(Cluster { nodes, inbox, tasks }))
    }

    /// Finds the cluster by its seeds, and connects to its nodes. If it can't be found now, returns the error; the cluster is used once it
    /// is found.
    pub(crate) async fn connect(&self) -> Result<Option<Error>> {
        match self.nodes.query_topology().await {
            Ok(topology) => {
                self.nodes.install(&topology);
                self.nodes.wait_connected().await
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.connect_lazily();
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Begins to look for the cluster. Nobody waits for it; the outcome is for the log and for calls.
    pub(crate) fn connect_lazily(&self) {
        self.nodes.request_topology();
    }

    /// Returns the call in the form in which it is sent. If the call publishes a message, it names the kind of channel, plain or sharded,
    /// that the lock's waiters subscribe to.
    fn prepared(&self, mut call: Call) -> Call {
        call.sharded = call.action.publishes() && self.nodes.shards(call.keys.channel());
        call
    }
}

/// Reads the answer to a prepared call. Hides the number of subscribers to a plain channel: a node counts only its own clients,
/// though those of other nodes receive its messages too.
fn read(call: &Call, answer: CallResult) -> CallResult {
    match answer {
        Ok(Reply::Ended(_)) if !call.sharded => Ok(Reply::Done),
        answer => answer,
    }
}

impl Backend for Cluster {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<CallResult> {
        let call = self.prepared(call);
        Box::pin(async move { read(&call, self.nodes.answer(&call, self.nodes.limit()).await) })
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<CallResult>> {
        let calls: Vec<Call> = calls.into_iter().map(|call| self.prepared(call)).collect();
        Box::pin(async move {
            let answers = self.nodes.answer_all(&calls).await;
            calls.iter().zip(answers).map(|(call, answer)| read(call, answer)).collect()
        })
    }

    fn is_unread(&self) -> bool {
        self.nodes.all().iter().any(|node| node.server.is_unread())
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

    fn begin(self: Arc<Self>, call: &Call) -> Option<BoxFuture<CallResult>> {
        let call = self.prepared(call.clone());
        let node = self.nodes.permitted(&call)?;
        let begun = node.server.clone().begin(&call)?;
        Some(Box::pin(async move {
            let limit = self.nodes.limit();
            let answer = match begun.await {
                Err(failure) => self.nodes.send_again(&call, Some(node.node_address), failure, limit).await,
                answer => answer,
            };
            read(&call, answer)
        }))
    }

    fn run_last(&self, calls: Vec<Call>) {
        for call in calls.into_iter().map(|call| self.prepared(call)) {
            if let Some(node) = self.nodes.permitted(&call) {
                node.server.run_last(vec![call]);
            }
        }
    }

    fn end_with_runtime(&self) {
        self.nodes.all().iter().for_each(|node| node.server.end_with_runtime());
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
        let _ = self.inbox.send(Note::Want(channel.into()));
    }

    fn unsubscribe(&self, channel: &str) {
        let _ = self.inbox.send(Note::Leave(channel.into()));
    }

    fn doubt_messages(&self) {
        // The node that messages are received from may have left the cluster.
        self.nodes.request_topology();
    }

    fn close(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.nodes.close();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cluster").field(&format_args!("{}", self.nodes.seeds)).finish()
    }
}

#[cfg(test)]
mod tests;
