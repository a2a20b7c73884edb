//! Queries nodes for the topology.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::backend::cluster::identity::Ids;
use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::cluster::topology::{Topology, parse_answer, slots_command};
use crate::backend::connection::{Commands, ConnectionSlot, Endpoint};
use crate::base::telemetry;
use crate::config::{AddressMap, Destination};
use crate::error::{Error, ErrorKind, Result};

/// The next node is queried after this long without an answer: the first one may be frozen.
const STAGGER: Duration = Duration::from_millis(100);

const TOO_FEW: &str = "the nodes that answer report too few of the known nodes of this cluster; they may have been added to another one";

/// A node that may be queried.
pub(super) struct Candidate {
    node_address: NodeAddress,
    endpoint: Endpoint,
    /// Its command connection, if there is one.
    slot: Option<Arc<ConnectionSlot>>,
    address_map: AddressMap,
}

/// The topology that a node reported, and its address.
pub(super) struct NodeReport {
    pub(super) topology: Topology,
    pub(super) node_address: NodeAddress,
    pub(super) address: Arc<str>,
    slot: Option<Arc<ConnectionSlot>>,
}

impl Nodes {
    /// Returns the first recognized topology, which has more than half of the known nodes. No other is used as long as a node that
    /// reports a recognized one may come back. Otherwise: 1. A node is removed, and added to another cluster; it keeps its id. 2. For a
    /// moment it is the only one to answer. 3. Its topology includes a known node, and leads to the other cluster.
    pub(super) async fn query_topology(&self) -> Result<Topology> {
        let Some(ids) = self.identity.ids() else { return self.first_topology().await };
        let mut query = TopologyQuery::new(self.candidates(), STAGGER, self.connect_limit());
        let mut recognized = None;
        let (mut doubtful, mut strangers) = (Vec::new(), Vec::new());
        while let Some(report) = query.next().await {
            if ids.recognizes(&report.topology.ids) {
                recognized = Some(report.topology);
                break;
            }
            let few = if ids.shared(&report.topology.ids) > 0 { &mut doubtful } else { &mut strangers };
            few.push(report);
        }
        strangers.iter().for_each(|stranger| self.disconnect_stranger(stranger));
        if let Some(topology) = recognized {
            // The gate would refuse new connections to these nodes, so their live connections are not used either.
            doubtful
                .iter()
                .filter(|report| !ids.includes(&report.topology.ids))
                .for_each(|report| self.disconnect_stranger(report));
            return Ok(topology);
        }
        let doubt = doubtful.first().map(|report| report.address.clone());
        match (self.successor(&ids, doubtful, strangers), doubt) {
            (Some(topology), _) => Ok(topology),
            (None, Some(address)) => Err(Error::new(ErrorKind::Unavailable, TOO_FEW).at(&address)),
            (None, None) => Err(query.failure(self)),
        }
    }

    /// Called when a node of another cluster answers at an address.
    fn disconnect_stranger(&self, stranger: &NodeReport) {
        if let Some(slot) = &stranger.slot {
            slot.discard_current("the node belongs to another cluster now");
        }
        if self.identity.report_once(&stranger.address) {
            telemetry::stranger(&stranger.address);
        }
    }

    /// Returns the topology to use if no recognized one was reported for a lease. The first choice is the cluster that most seeds belong
    /// to now: two clients with the same seeds choose the same one, since no two clusters have most of them. The second is what is left
    /// of the old cluster: the topology that has most of its nodes and no others.
    fn successor(
        &self,
        ids: &Ids,
        doubtful: Vec<NodeReport>,
        strangers: Vec<NodeReport>,
    ) -> Option<Topology> {
        if !self.identity.is_gone() {
            return None;
        }
        let seeds = self.seed_addresses();
        let mut all: Vec<NodeReport> = doubtful.into_iter().chain(strangers).collect();
        let votes = |topology: &Topology| {
            let same = |other: &&NodeReport| {
                seeds.contains(&other.node_address) && other.topology.ids.may_be_one_cluster(&topology.ids)
            };
            all.iter().filter(same).count()
        };
        let elected = all.iter().position(|report| 2 * votes(&report.topology) > seeds.len());
        let remainder = || {
            let remainders = all.iter().enumerate().filter(|(_, report)| ids.includes(&report.topology.ids));
            let shared = remainders.map(|(at, report)| (ids.shared(&report.topology.ids), at));
            shared.filter(|(shared, _)| *shared > 0).max().map(|(_, at)| at)
        };
        let NodeReport { topology, address, .. } = all.swap_remove(elected.or_else(remainder)?);
        if !ids.may_be_one_cluster(&topology.ids) {
            telemetry::cluster_replaced(&address);
        }
        Some(topology)
    }

    /// Returns nodes with a live connection, then the other known nodes, then the seeds; each once, and each part from a random start.
    /// The node that messages are received from comes last: if it has left the cluster, it may be the last to know.
    fn candidates(&self) -> Vec<Candidate> {
        let (nodes, replicas) = self.all();
        let (up, down): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.server.slot().is_up());
        let slots = rotated(up).into_iter().map(|node| (node.node_address, Some(node.server.slot().clone())));
        let others = rotated(down.into_iter().map(|node| node.node_address).chain(replicas).collect());
        let node_addresses = slots.chain(
            others.into_iter().chain(rotated(self.seed_addresses())).map(|node_address| (node_address, None)),
        );
        let mut candidates: Vec<Candidate> = Vec::new();
        for (node_address, slot) in node_addresses {
            if !candidates.iter().any(|candidate| candidate.node_address == node_address)
                && let Ok(endpoint) = self.endpoint(&node_address)
            {
                let address_map = self.address_map().clone();
                candidates.push(Candidate { node_address, endpoint, slot, address_map });
            }
        }
        let pubsub_node = self.pubsub_node();
        let (last, mut candidates): (Vec<_>, Vec<_>) = candidates
            .into_iter()
            .partition(|candidate| Some(&candidate.node_address) == pubsub_node.as_ref());
        candidates.extend(last);
        candidates
    }

    /// Returns only the nodes at these addresses.
    pub(super) fn candidates_at(&self, node_addresses: Vec<NodeAddress>) -> Vec<Candidate> {
        let candidate = |node_address| {
            let (endpoint, address_map) = (self.endpoint(&node_address).ok()?, self.address_map().clone());
            Some(Candidate { endpoint, node_address, slot: None, address_map })
        };
        rotated(node_addresses).into_iter().filter_map(candidate).collect()
    }

    /// Returns the addresses of the seeds, each once.
    pub(super) fn seed_addresses(&self) -> Vec<NodeAddress> {
        let mut node_addresses = Vec::new();
        for node_address in
            self.seeds.all().iter().filter_map(|seed| seed.usable()).filter_map(NodeAddress::seed)
        {
            if !node_addresses.contains(&node_address) {
                node_addresses.push(node_address);
            }
        }
        node_addresses
    }
}

/// A query to nodes that are asked one after the other, and answer in any order.
pub(super) struct TopologyQuery {
    candidates: std::vec::IntoIter<Candidate>,
    stagger: Duration,
    limit: Duration,
    asking: JoinSet<Result<NodeReport>>,
    failed: Option<Error>,
}

impl TopologyQuery {
    pub(super) fn new(candidates: Vec<Candidate>, stagger: Duration, limit: Duration) -> TopologyQuery {
        let candidates = candidates.into_iter();
        TopologyQuery { candidates, stagger, limit, asking: JoinSet::new(), failed: None }
    }

    /// Returns the next report, or `None` if there are no more. Nodes that can't be queried are skipped.
    pub(super) async fn next(&mut self) -> Option<NodeReport> {
        loop {
            if let Some(candidate) = self.candidates.next() {
                self.asking.spawn(query_node(candidate, self.limit));
            }
            let more = self.candidates.len() > 0;
            tokio::select! {
                report = self.asking.join_next() => match report {
                    Some(Ok(Ok(report))) => return Some(report),
                    Some(Ok(Err(error))) => self.failed = Some(more_useful(self.failed.take(), error)),
                    Some(Err(_)) => {}
                    None if !more => return None,
                    None => {}
                },
                () = sleep(self.stagger), if more => {}
            }
        }
    }

    /// Returns the error to report if no answer was usable.
    pub(super) fn failure(&mut self, nodes: &Nodes) -> Error {
        self.failed.take().unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("no node of {} can be queried", nodes.seeds))
        })
    }
}

/// Rotates a list to a random start, so that not all clients query the same node.
fn rotated<T>(mut list: Vec<T>) -> Vec<T> {
    if !list.is_empty() {
        let first = rand::random_range(0..list.len());
        list.rotate_left(first);
    }
    list
}

/// Returns the more useful error: one about an option, rather than one about another node that can't be reached.
fn more_useful(known: Option<Error>, error: Error) -> Error {
    match known {
        Some(known) if known.kind() != ErrorKind::Unavailable => known,
        _ => error,
    }
}

async fn query_node(candidate: Candidate, limit: Duration) -> Result<NodeReport> {
    let Candidate { node_address, endpoint, slot, address_map } = candidate;
    // Outside the limit, for the reason given in `Reconnector`.
    let to = if slot.is_none() { Some(endpoint.destination().await?.0) } else { None };
    let answer = endpoint.within(limit, send_query(&endpoint, to, slot.clone())).await?;
    let topology = parse_answer(answer, &node_address, &endpoint.address)?.mapped(&address_map);
    Ok(NodeReport { topology, node_address, address: endpoint.address, slot })
}

/// Sends the query over the node's command connection or, if there is none, over a temporary one.
async fn send_query(
    endpoint: &Endpoint,
    to: Option<Destination>,
    slot: Option<Arc<ConnectionSlot>>,
) -> Result<Value> {
    let slots_command = slots_command();
    let unreachable = |error| endpoint.unreachable(error, false);
    if let Some(slot) = slot {
        let link = slot.link(Instant::now()).await.map_err(|failure| failure.error)?;
        return link.connection.send(&slots_command, None).await.map_err(unreachable);
    }
    let to = to.as_ref().unwrap_or(&endpoint.to);
    let connection = Commands::connect(to, Box::new(drop)).await.map_err(unreachable)?;
    connection.send(&slots_command, None).await.map_err(unreachable)
}

#[cfg(test)]
mod tests;
