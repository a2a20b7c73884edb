//! The nodes of a cluster, and the slots that they serve.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::backend::cluster::identity::Identity;
use crate::backend::cluster::shard_reports::{Inbox, ShardReports};
use crate::backend::cluster::slots::{NodeAddress, Slots, slot};
use crate::backend::cluster::topology::Topology;
use crate::backend::connection::{CLOSED, ConnectionSlot, Endpoint, State, connect_limit, tuned};
use crate::backend::server::{RedisServer, Role};
use crate::backend::{Backend, with_events};
use crate::base::{Events, Failure, after, boxed, lock, telemetry};
use crate::config::{AddressMap, Seeds, Server};
use crate::error::{Error, ErrorKind, Result, rejected};
use crate::wire::keys::Keys;

pub(super) struct Nodes {
    pub(super) me: Weak<Nodes>,
    pub(super) seeds: Seeds,
    /// Whether a call waits for a node that can't be reached, or for a replica to replace it.
    pub(super) waits_for_node: bool,
    /// The role of each node. A node is not the only master, so its calls do not wait for a connection.
    pub(super) role: Role,
    pub(super) runtime: Handle,
    events: Weak<dyn Events>,
    /// Receives what the nodes' subscribers report, if sharded channels are used.
    pub(super) inbox: Option<Inbox>,
    state: Mutex<NodesState>,
    pub(super) identity: Identity,
    /// Notified when the topology has to be queried again.
    pub(super) topology_requested: Notify,
    /// Notified of each call.
    pub(super) called: Notify,
    /// Whether any channel is wanted.
    pub(super) wanted: watch::Sender<bool>,
    /// Notified when a call that failed may succeed now.
    pub(super) changes: watch::Sender<()>,
}

#[derive(Default)]
struct NodesState {
    slots: Slots,
    /// Why there is no first topology yet, if a query has failed.
    unseen: Option<Error>,
    /// Each node that serves a slot, or was named in a redirection since the last topology.
    nodes: HashMap<NodeAddress, Node>,
    replicas: Vec<NodeAddress>,
    /// The node that messages are received from.
    pubsub_node: Option<NodeAddress>,
    /// When the owner of a slot last changed.
    owner_changed: Option<Instant>,
    /// How many times the owner of a slot changed, and how many of these changes are reported as events.
    owner_changes: u64,
    reported_changes: u64,
    /// The slots whose owner has changed since the last report.
    moved: HashSet<u16>,
    closed: bool,
}

impl NodesState {
    /// Notes that these slots, if there are any, have another owner.
    fn owner_has_changed(&mut self, slots: impl IntoIterator<Item = u16>) {
        let mut slots = slots.into_iter().peekable();
        if slots.peek().is_some() {
            self.moved.extend(slots);
            self.owner_changed = Some(Instant::now());
            self.owner_changes += 1;
        }
    }
}

/// A node, and its address.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) node_address: NodeAddress,
    pub(super) server: Arc<RedisServer>,
}

impl Nodes {
    pub(super) fn new(
        seeds: Seeds,
        role: Role,
        events: Weak<dyn Events>,
        inbox: Option<Inbox>,
        runtime: Handle,
    ) -> Arc<Nodes> {
        Arc::new_cyclic(|me| Nodes {
            me: me.clone(),
            seeds,
            waits_for_node: role.alone,
            role: Role { alone: false, ..role },
            runtime,
            events,
            inbox,
            state: Mutex::default(),
            identity: Identity::default(),
            topology_requested: Notify::new(),
            called: Notify::new(),
            wanted: watch::Sender::new(false),
            changes: watch::Sender::new(()),
        })
    }

    /// Returns the map from the addresses that nodes report to those that this client connects to.
    pub(super) fn address_map(&self) -> &AddressMap {
        &self.role.address_map
    }

    /// Returns the time limit of an attempt to connect.
    pub(super) fn connect_limit(&self) -> Duration {
        connect_limit(self.seeds.all().first().and_then(Server::usable), self.role.node_timeout)
    }

    /// Makes the watch task query the topology soon.
    pub(super) fn request_topology(&self) {
        self.topology_requested.notify_one();
    }

    /// Returns the node that is known to serve a slot.
    pub(super) fn owner(&self, slot: u16) -> Result<Node, Failure> {
        let mut state = lock(&self.state);
        let Some(node_address) = state.slots.owner(slot).cloned() else {
            let error = if state.closed {
                Error::new(ErrorKind::Closed, CLOSED)
            } else if let Some(unseen) = &state.unseen {
                unseen.clone()
            } else {
                let message =
                    format!("no node of {} is known to serve slot {slot} now; check the cluster", self.seeds);
                Error::new(ErrorKind::Unavailable, message)
            };
            return Err(Failure::not_run(error));
        };
        self.node(&mut state, node_address)
    }

    /// Returns the node that serves a lock, if there is a connection to it.
    pub(super) fn standing(&self, keys: &Keys) -> Option<Node> {
        let state = lock(&self.state);
        state.nodes.get(state.slots.owner(slot(&keys.key))?).cloned()
    }

    pub(super) fn at(&self, node_address: NodeAddress) -> Result<Node, Failure> {
        self.node(&mut lock(&self.state), node_address)
    }

    fn node(&self, state: &mut NodesState, node_address: NodeAddress) -> Result<Node, Failure> {
        if let Some(node) = state.nodes.get(&node_address) {
            return Ok(node.clone());
        }
        if state.closed {
            return Err(Failure::not_run(Error::new(ErrorKind::Closed, CLOSED)));
        }
        let endpoint = self.endpoint(&node_address).map_err(Failure::not_run)?;
        let reports = |server: &Weak<RedisServer>| -> Option<Arc<dyn Events>> {
            let node = (server.clone(), node_address.clone());
            Some(Arc::new(ShardReports::new(self.inbox.clone()?, Some(node))))
        };
        let server = RedisServer::start_node(endpoint, &self.role, self.me.clone(), reports, &self.runtime);
        for slot in server.slots() {
            self.runtime.spawn(boxed(request_topology_on_loss(slot.clone(), self.me.clone())));
        }
        let node = Node { node_address: node_address.clone(), server };
        state.nodes.insert(node_address, node.clone());
        Ok(node)
    }

    /// Returns how to connect to a node: with the settings of the seed at its address, or of the first seed.
    pub(super) fn endpoint(&self, node_address: &NodeAddress) -> Result<Endpoint> {
        let server = self.seeds.at(&node_address.host, node_address.port);
        let server = server.ok_or_else(|| rejected("no node was given to `Master::cluster`"))?;
        let address = server.address();
        let to = tuned(&server.destination()?, self.role.node_timeout);
        let gate = Some(self.gate(node_address, &address));
        Ok(Endpoint { to, address, gate, login: self.role.login.clone() })
    }

    /// Returns whether a node is known to be part of the cluster, so that it forwards messages. It is not if its
    /// connection for commands is refused while that of another node is live: another cluster may use its address.
    pub(super) fn forwards_messages(&self, node_address: &NodeAddress) -> bool {
        let state = lock(&self.state);
        match state.nodes.get(node_address) {
            Some(node) => {
                let mut slots = state.nodes.values().map(|node| node.server.slot());
                !node.server.slot().is_refused() || slots.all(|slot| !slot.is_up())
            }
            None => state.replicas.contains(node_address),
        }
    }

    pub(super) fn set_pubsub_node(&self, node_address: NodeAddress) {
        lock(&self.state).pubsub_node = Some(node_address);
    }

    pub(super) fn pubsub_node(&self) -> Option<NodeAddress> {
        lock(&self.state).pubsub_node.clone()
    }

    /// Called when a node reports that another one serves this slot now.
    pub(super) fn moved(&self, slot: u16, node_address: &NodeAddress) {
        let mut state = lock(&self.state);
        if state.slots.assign(slot..=slot, node_address) {
            state.owner_has_changed([slot]);
        }
        drop(state);
        self.request_topology();
    }

    /// Replaces the topology.
    pub(super) fn install(&self, topology: &Topology) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        let other = self.identity.install(&topology.ids);
        let before = std::mem::replace(&mut state.slots, topology.slots.clone());
        if other {
            state.owner_has_changed(Slots::all());
        } else if !before.is_empty() {
            state.owner_has_changed(topology.slots.differing(&before));
        }
        state.unseen = None;
        state.replicas.clone_from(&topology.replicas);
        let (before, serving) = (state.nodes.clone(), topology.slots.serving());
        state.nodes.retain(|node_address, _| serving.contains(&node_address));
        for node_address in serving {
            // A call that needs an invalid address reports it.
            let _ = self.node(&mut state, node_address.clone());
        }
        let (changes, moved) = (state.owner_changes, std::mem::take(&mut state.moved));
        drop(state);
        // A server with calls in flight lives until they are answered.
        drop(before);
        self.notify_changes();
        if !moved.is_empty() {
            // Only the locks in these slots are concerned. Otherwise: 1. Slots are moved one after the other. 2. All holds are asked for at
            // each of them. 3. Some of these commands find the next slot that has moved, and so on.
            with_events(&self.events, |events| events.moved(&|key| moved.contains(&slot(key))));
        }
        // Set after the report, since until then the session does not know that holds may be gone.
        let mut state = lock(&self.state);
        state.reported_changes = state.reported_changes.max(changes);
    }

    /// Returns whether the node that serves a slot is connected, and all known changes are reported.
    pub(super) fn is_connected(&self, slot: u16) -> bool {
        let state = lock(&self.state);
        let node = state.slots.owner(slot).and_then(|node_address| state.nodes.get(node_address));
        state.owner_changes == state.reported_changes
            && node.is_some_and(|node| node.server.slot().is_connected())
    }

    /// Returns whether a topology was ever installed.
    pub(super) fn is_seen(&self) -> bool {
        !lock(&self.state).slots.is_empty()
    }

    /// Called when a query for the topology has failed. Before the first topology, calls fail with this error, which may be about
    /// a wrong option.
    pub(super) fn is_unseen(&self, error: Error) {
        let mut state = lock(&self.state);
        if state.slots.is_empty() {
            state.unseen = Some(error);
            drop(state);
            self.notify_changes();
        }
    }

    /// Waits for the first topology and for the first attempt to connect to each of its nodes, or until a query has failed. Returns
    /// whether a node is connected.
    pub(super) async fn first_attempt(&self) -> bool {
        let has_outcome = |_: &()| {
            let state = lock(&self.state);
            state.closed || state.unseen.is_some() || !state.nodes.is_empty()
        };
        let _ = self.changes.subscribe().wait_for(has_outcome).await;
        let mut any = false;
        for node in self.all() {
            any |= node.server.first_attempt().await;
        }
        any
    }

    fn notify_changes(&self) {
        self.changes.send_replace(());
    }

    /// Waits until every node is connected, or its first attempt has failed. If no node is connected, returns the error of the last one.
    pub(super) async fn wait_connected(&self) -> Result<Option<Error>> {
        let (mut any_connected, mut away) = (false, Vec::new());
        for attempt in self.first_attempts().await {
            match attempt {
                Ok(()) => any_connected = true,
                Err(Failure { error, .. }) if error.kind() == ErrorKind::Unavailable => away.push(error),
                Err(Failure { error, .. }) => return Err(error),
            }
        }
        if !any_connected {
            return Ok(away.pop());
        }
        away.iter().for_each(telemetry::absent);
        Ok(None)
    }

    /// Returns for each node whether it could be connected to, once it is connected or its first attempt has failed.
    pub(super) async fn first_attempts(&self) -> Vec<Result<(), Failure>> {
        let deadline = after(Instant::now(), self.connect_limit());
        let mut attempts = Vec::new();
        for node in self.all() {
            let mut links = Ok(());
            for slot in node.server.slots() {
                links = links.and(slot.link(deadline).await.map(drop));
            }
            attempts.push(links);
        }
        attempts
    }

    /// Returns the nodes that serve slots.
    pub(super) fn all(&self) -> Vec<Node> {
        lock(&self.state).nodes.values().cloned().collect()
    }

    /// Returns the addresses of all nodes that are known: of those that serve slots, each with its connection slot if it is connected, and
    /// of their replicas, to which there are no connections for commands.
    pub(super) fn known(&self) -> Vec<(NodeAddress, Option<Arc<ConnectionSlot>>)> {
        let state = lock(&self.state);
        let serving = state.nodes.values().map(|Node { node_address, server }| {
            (node_address.clone(), server.slot().is_up().then(|| server.slot().clone()))
        });
        serving.chain(state.replicas.iter().map(|replica| (replica.clone(), None))).collect()
    }

    /// Returns whether a node that serves slots was started, or replaced another one, less than `age` ago: it may lack earlier
    /// grants.
    pub(super) fn is_younger_than(&self, age: Duration) -> bool {
        let state = lock(&self.state);
        state.owner_changed.is_some_and(|changed| changed.elapsed() < age)
            || state.nodes.values().any(|node| node.server.is_younger_than(age))
    }

    pub(super) fn close(&self) {
        let nodes = {
            let mut state = lock(&self.state);
            state.closed = true;
            std::mem::take(&mut state.nodes)
        };
        nodes.values().for_each(|node| node.server.close());
        self.notify_changes();
    }
}

/// Requests the topology when a node's connection is lost, and again with each failed attempt to connect: a replica may have
/// replaced the node.
async fn request_topology_on_loss(slot: Arc<ConnectionSlot>, nodes: Weak<Nodes>) {
    let mut state = slot.state.subscribe();
    loop {
        let failed = match &*state.borrow_and_update() {
            State::Up(_) | State::Down { attempt: 0, .. } => false,
            State::Down { .. } => true,
            State::Ended(..) => return,
        };
        if failed {
            let Some(nodes) = nodes.upgrade() else { return };
            nodes.request_topology();
        }
        if state.changed().await.is_err() {
            return;
        }
    }
}

/// Receives the events of the nodes' command connections.
impl Events for Nodes {
    fn reconnected(&self) {
        self.notify_changes();
        with_events(&self.events, |events| events.reconnected());
    }

    // The nodes' subscriptions are reported elsewhere.
    fn subscribed(&self, _: &str) {}
    fn message(&self, _: &str, _: &str) {}
    fn not_subscribed(&self, _: &str) {}
    fn subscriptions_lost(&self) {}
}

#[cfg(test)]
mod tests;
