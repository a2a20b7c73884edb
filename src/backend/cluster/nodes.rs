//! The nodes of a cluster, and who of them serves what.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::cluster::gate::gate;
use crate::backend::cluster::identity::Identity;
use crate::backend::cluster::slots::{NodeAddress, Slots};
use crate::backend::cluster::topology::Topology;
use crate::backend::cluster::topology_watch::Usage;
use crate::backend::connection::{CLOSED, Endpoint, Line, State, redis_error, tuned};
use crate::backend::server::{RedisServer, Role, SHORTEST_CONNECT};
use crate::base::{Events, Failure, Outcome, after, lock, telemetry};
use crate::config::Seeds;
use crate::error::{Error, ErrorKind, Result, rejected};

pub(super) struct Nodes {
    me: Weak<Nodes>,
    pub(super) seeds: Seeds,
    /// Whether a call waits for a node that is away, or for another to take its place.
    pub(super) patient: bool,
    /// What each node is: one of several, none of which is waited for.
    role: Role,
    pub(super) node_timeout: Duration,
    runtime: Handle,
    events: Weak<dyn Events>,
    /// What the nodes' connections tell.
    bell: Arc<dyn Events>,
    known: Mutex<Known>,
    pub(super) identity: Identity,
    pub(super) usage: Usage,
    /// Who serves what is to be asked again.
    pub(super) wanted: Notify,
    /// Goes up where it is worth while to try again.
    pub(super) news: watch::Sender<u64>,
}

struct Known {
    slots: Slots,
    /// A connection to each node that serves a slot, or was named in a redirection since that was asked last.
    standing: HashMap<NodeAddress, Arc<RedisServer>>,
    others: Vec<NodeAddress>,
    /// Where messages are heard.
    ear: Option<NodeAddress>,
    /// When slots were last seen to have another owner than before.
    changed: Option<Instant>,
    /// That was not told yet.
    untold: bool,
    closed: bool,
}

/// A node, and where it is.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) place: NodeAddress,
    pub(super) single: Arc<RedisServer>,
}

impl Nodes {
    pub(super) fn new(
        seeds: Seeds,
        role: Role,
        node_timeout: Duration,
        events: Weak<dyn Events>,
        runtime: Handle,
    ) -> Arc<Nodes> {
        let known = Known {
            slots: Slots::new(),
            standing: HashMap::new(),
            others: Vec::new(),
            ear: None,
            changed: None,
            untold: false,
            closed: false,
        };
        Arc::new_cyclic(|me| Nodes {
            me: me.clone(),
            seeds,
            patient: role.alone,
            role: Role { alone: false, ..role },
            node_timeout,
            runtime,
            bell: Arc::new(NodeEvents { nodes: me.clone(), events: events.clone() }),
            events,
            known: Mutex::new(known),
            identity: Identity::default(),
            usage: Usage::default(),
            wanted: Notify::new(),
            news: watch::Sender::new(0),
        })
    }

    /// How long an attempt to connect may take.
    pub(super) fn patience(&self) -> Duration {
        self.node_timeout.max(SHORTEST_CONNECT)
    }

    /// Who serves what is asked again, soon.
    pub(super) fn stir(&self) {
        self.wanted.notify_one();
    }

    /// Who serves a slot, as far as is known.
    pub(super) fn owner(&self, slot: u16) -> Result<Node, Failure> {
        let mut known = lock(&self.known);
        let Some(place) = known.slots.owner(slot).cloned() else {
            let error = if known.closed {
                Error::new(ErrorKind::Closed, CLOSED)
            } else {
                let told =
                    format!("no node of {} is known to serve slot {slot} now; check the cluster", self.seeds);
                Error::new(ErrorKind::Unavailable, told)
            };
            return Err(Failure { outcome: Outcome::NotRun, error });
        };
        self.node(&mut known, place)
    }

    pub(super) fn at(&self, place: NodeAddress) -> Result<Node, Failure> {
        self.node(&mut lock(&self.known), place)
    }

    fn node(&self, known: &mut Known, place: NodeAddress) -> Result<Node, Failure> {
        if let Some(single) = known.standing.get(&place) {
            return Ok(Node { single: single.clone(), place });
        }
        let refused = |error| Failure { outcome: Outcome::NotRun, error };
        if known.closed {
            return Err(refused(Error::new(ErrorKind::Closed, CLOSED)));
        }
        let site = self.site(&place).map_err(refused)?;
        let (timeout, bell) = (self.node_timeout, Arc::downgrade(&self.bell));
        let single = RedisServer::begin(site, self.role, timeout, bell, &self.runtime);
        for line in [Some(single.line()), single.line_of_grants()].into_iter().flatten() {
            self.runtime.spawn(mind(line.clone(), self.me.clone()));
        }
        known.standing.insert(place.clone(), single.clone());
        Ok(Node { single, place })
    }

    /// How to connect to that place: as to the seed there, or to the first one.
    pub(super) fn site(&self, place: &NodeAddress) -> Result<Endpoint> {
        let server = self.seeds.at(&place.host, place.port);
        let server = server.ok_or_else(|| rejected("no node was given to `cluster`"))?;
        let address = server.address();
        let client = tuned(&server.client()?, self.node_timeout)
            .map_err(|error| redis_error::unreachable(error, &address))?;
        let gate = Some(gate(self.me.clone(), place.clone(), address.clone()));
        Ok(Endpoint { client, address, gate })
    }

    /// Whether a node is part of the cluster, as far as is known, so that messages are published there. Not one that can't be
    /// connected to for commands, where others can: another cluster may use its address.
    pub(super) fn may_hear(&self, place: &NodeAddress) -> bool {
        let known = lock(&self.known);
        match known.standing.get(place) {
            Some(node) => {
                !node.line().is_refused() || known.standing.values().all(|node| !node.line().is_up())
            }
            None => known.others.contains(place),
        }
    }

    /// Messages are heard from there.
    pub(super) fn set_ear(&self, place: &NodeAddress) {
        lock(&self.known).ear = Some(place.clone());
    }

    pub(super) fn ear(&self) -> Option<NodeAddress> {
        lock(&self.known).ear.clone()
    }

    /// A node tells that another one serves this slot now.
    pub(super) fn moved(&self, slot: u16, place: &NodeAddress) {
        let mut known = lock(&self.known);
        if known.slots.assign(slot..=slot, place) {
            known.changed = Some(Instant::now());
            known.untold = true;
        }
        drop(known);
        self.stir();
    }

    /// What a node told of the cluster is how it is from now on.
    pub(super) fn install(&self, view: &Topology) {
        let mut known = lock(&self.known);
        if known.closed {
            return;
        }
        let other = self.identity.install(&view.ids);
        if other || !known.slots.is_empty() && known.slots != view.slots {
            known.changed = Some(Instant::now());
            known.untold = true;
        }
        known.slots = view.slots.clone();
        known.others.clone_from(&view.others);
        let before = std::mem::take(&mut known.standing);
        for place in view.slots.serving() {
            match before.get(place) {
                Some(single) => drop(known.standing.insert(place.clone(), single.clone())),
                // An address that can't be used is told by the calls that need it.
                None => drop(self.node(&mut known, place.clone())),
            }
        }
        let told = std::mem::take(&mut known.untold);
        drop(known);
        // Whose answers are still awaited live on until they came.
        drop(before);
        self.spread_news();
        if let (true, Some(events)) = (told, self.events.upgrade()) {
            events.reconnected();
        }
    }

    fn spread_news(&self) {
        self.news.send_modify(|news| *news = news.wrapping_add(1));
    }

    /// Waits until each node is connected to, or was tried. With the error of the last one, where none is there.
    pub(super) async fn meet(&self) -> Result<Option<Error>> {
        let deadline = after(Instant::now(), self.patience());
        let (nodes, _) = self.all();
        let (mut there, mut away) = (false, Vec::new());
        for node in &nodes {
            let mut links = Ok(());
            for line in [Some(node.single.line()), node.single.line_of_grants()].into_iter().flatten() {
                links = links.and(line.link(deadline).await.map(drop));
            }
            match links {
                Ok(()) => there = true,
                Err(Failure { error, .. }) if error.kind() == ErrorKind::Unavailable => away.push(error),
                Err(Failure { error, .. }) => return Err(error),
            }
        }
        if !there {
            return Ok(away.pop());
        }
        away.iter().for_each(telemetry::absent);
        Ok(None)
    }

    /// Those that serve slots, and the places of their replicas.
    pub(super) fn all(&self) -> (Vec<Node>, Vec<NodeAddress>) {
        let known = lock(&self.known);
        let node = |(place, single): (&NodeAddress, &Arc<RedisServer>)| Node {
            place: place.clone(),
            single: single.clone(),
        };
        (known.standing.iter().map(node).collect(), known.others.clone())
    }

    /// Whether a node that serves slots was started less than that ago, or one took the place of another: what that one had
    /// granted it may lack.
    pub(super) fn is_younger_than(&self, age: Duration) -> bool {
        let known = lock(&self.known);
        known.changed.is_some_and(|changed| changed.elapsed() < age)
            || known.standing.values().any(|node| node.is_younger_than(age))
    }

    pub(super) fn close(&self) {
        let standing = {
            let mut known = lock(&self.known);
            known.closed = true;
            std::mem::take(&mut known.standing)
        };
        standing.values().for_each(|node| node.close());
        self.spread_news();
    }
}

/// Has it asked who serves what when a node's connection is lost, and again with each attempt that fails: for all that is
/// known, another takes its place.
async fn mind(line: Arc<Line>, nodes: Weak<Nodes>) {
    let mut state = line.state.subscribe();
    loop {
        let failed = match &*state.borrow_and_update() {
            State::Up(_) | State::Down { attempt: 0, .. } => false,
            State::Down { .. } => true,
            State::Ended(_) => return,
        };
        if failed {
            let Some(nodes) = nodes.upgrade() else { return };
            nodes.stir();
        }
        if state.changed().await.is_err() {
            return;
        }
    }
}

/// What the nodes' command connections tell.
struct NodeEvents {
    nodes: Weak<Nodes>,
    events: Weak<dyn Events>,
}

impl Events for NodeEvents {
    fn reconnected(&self) {
        if let Some(nodes) = self.nodes.upgrade() {
            nodes.spread_news();
        }
        if let Some(events) = self.events.upgrade() {
            events.reconnected();
        }
    }

    // Nodes have no subscriptions.
    fn subscribed(&self, _: &str) {}
    fn message(&self, _: &str) {}
    fn not_subscribed(&self, _: &str) {}
    fn subscriptions_lost(&self) {}
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seeds.fmt(f)
    }
}
