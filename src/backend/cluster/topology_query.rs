//! Queries nodes for the topology.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::backend::cluster::identity::Ids;
use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::cluster::topology::{Topology, parse_answer, slots_command};
use crate::backend::connection::{Connection, ConnectionSlot, Endpoint};
use crate::backend::tasks::Tasks;
use crate::base::telemetry;
use crate::config::AddressMap;
use crate::error::{Error, ErrorKind, Result};

/// The next node is queried after this long without an answer: the first one may be frozen.
const STAGGER: Duration = Duration::from_millis(100);

const TOO_FEW: &str = "the nodes that answer report too few of the known nodes of this cluster; they may have been added to another one";

/// A node that may be queried.
pub(super) struct Candidate {
    node_address: NodeAddress,
    endpoint: Endpoint,
    /// Its command connection, if that is live.
    slot: Option<Arc<ConnectionSlot>>,
}

/// The topology that a node reported, and its address.
pub(super) struct NodeReport {
    pub(super) topology: Topology,
    pub(super) node_address: NodeAddress,
    pub(super) address: Arc<str>,
    slot: Option<Arc<ConnectionSlot>>,
}

impl Nodes {
    /// Returns the first recognized topology, which has more than half of the known nodes. No other topology is used as long as a node
    /// that reports a recognized one may come back. Otherwise: 1. A node is removed, and added to another cluster; it keeps its id.
    /// 2. For a moment it is the only one to answer. 3. Its topology includes a known node, and leads to the other cluster.
    pub(super) async fn query_topology(&self) -> Result<Topology> {
        let Some(ids) = self.identity.ids() else { return self.first_topology().await };
        let mut query = self.query(self.candidates(), STAGGER);
        let (mut recognized, mut others) = (None, Vec::new());
        while let Some(report) = query.next().await {
            if ids.recognizes(&report.topology.ids) {
                recognized = Some(report.topology);
                break;
            }
            others.push(report);
        }
        let is_stranger = |report: &&NodeReport| {
            let shown = &report.topology.ids;
            // Once a topology is recognized, the gate would refuse new connections to a node that shows an unknown one, so its live
            // connection is not used either.
            ids.shared(shown) == 0 || recognized.is_some() && !ids.includes(shown)
        };
        for stranger in others.iter().filter(is_stranger) {
            if let Some(slot) = &stranger.slot {
                slot.leave("the node belongs to another cluster now");
            }
            self.identity.report_stranger(&stranger.address, telemetry::stranger);
        }
        if let Some(topology) = recognized {
            return Ok(topology);
        }
        let doubtful = others.iter().find(|report| ids.shared(&report.topology.ids) > 0);
        let doubtful = doubtful.map(|report| report.address.clone());
        self.successor(&ids, others).ok_or_else(|| match doubtful {
            Some(address) => Error::new(ErrorKind::Unavailable, TOO_FEW).at(&address),
            None => query.failure(),
        })
    }

    /// Returns the topology to use if no recognized one was reported for a lease. The first choice is the cluster that most seeds belong
    /// to now: two clients with the same seeds choose the same one, since no two clusters have most of them. The second is what is left
    /// of the old cluster: the topology that has most of its nodes and no others.
    fn successor(&self, ids: &Ids, mut reports: Vec<NodeReport>) -> Option<Topology> {
        if !self.identity.is_gone() {
            return None;
        }
        let seeds = self.seed_addresses();
        let is_elected = |report: &NodeReport| {
            let same = |other: &&NodeReport| {
                seeds.contains(&other.node_address)
                    && other.topology.ids.may_be_one_cluster(&report.topology.ids)
            };
            2 * reports.iter().filter(same).count() > seeds.len()
        };
        let shared = |at: &usize| ids.shared(&reports[*at].topology.ids);
        let is_remainder = |at: &usize| shared(at) > 0 && ids.includes(&reports[*at].topology.ids);
        let remainder = || (0..reports.len()).filter(is_remainder).max_by_key(shared);
        let chosen = reports.iter().position(is_elected).or_else(remainder)?;
        let NodeReport { topology, address, .. } = reports.swap_remove(chosen);
        if !ids.may_be_one_cluster(&topology.ids) {
            telemetry::cluster_replaced(&address);
        }
        Some(topology)
    }

    /// Returns nodes with a live connection, then the other known nodes and the seeds; each once, and each part in random order. The node
    /// that messages are received from comes last: if it has left the cluster, it may be the last to know.
    fn candidates(&self) -> Vec<Candidate> {
        let (mut all, last) = (self.known(), self.pubsub_node());
        all.extend(self.seed_addresses().into_iter().map(|seed| (seed, None)));
        all.sort_by_cached_key(|(node_address, slot)| {
            (Some(node_address) == last.as_ref(), slot.is_none(), rand::random::<u32>())
        });
        let mut candidates: Vec<Candidate> = Vec::new();
        for (node_address, slot) in all {
            if candidates.iter().all(|candidate| candidate.node_address != node_address) {
                candidates.extend(self.candidate(node_address, slot));
            }
        }
        candidates
    }

    /// Returns a node that may be queried, or `None` if its address is invalid.
    fn candidate(&self, node_address: NodeAddress, slot: Option<Arc<ConnectionSlot>>) -> Option<Candidate> {
        let endpoint = self.endpoint(&node_address).ok()?;
        Some(Candidate { node_address, endpoint, slot })
    }

    /// Queries the nodes at these addresses, all at once.
    pub(super) fn query_at(&self, node_addresses: &[NodeAddress]) -> TopologyQuery<'_> {
        let candidate = |node_address: &NodeAddress| self.candidate(node_address.clone(), None);
        self.query(node_addresses.iter().filter_map(candidate).collect(), Duration::ZERO)
    }

    /// Queries these nodes, each `stagger` after the one before it if none has answered.
    fn query(&self, candidates: Vec<Candidate>, stagger: Duration) -> TopologyQuery<'_> {
        let candidates = candidates.into_iter();
        TopologyQuery { nodes: self, candidates, stagger, asking: Tasks::new(), failed: None }
    }

    /// Returns the addresses of the seeds, each once.
    pub(super) fn seed_addresses(&self) -> Vec<NodeAddress> {
        let seeds = self.seeds.all().iter().filter_map(|seed| NodeAddress::seed(seed.usable()?));
        seeds.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// A query to nodes that are asked one after the other, and answer in any order.
pub(super) struct TopologyQuery<'a> {
    nodes: &'a Nodes,
    candidates: std::vec::IntoIter<Candidate>,
    stagger: Duration,
    asking: Tasks<Result<NodeReport>>,
    failed: Option<Error>,
}

impl TopologyQuery<'_> {
    /// Returns the next report, or `None` if there are no more. Nodes that can't be queried are skipped.
    pub(super) async fn next(&mut self) -> Option<NodeReport> {
        loop {
            if let Some(candidate) = self.candidates.next() {
                let (timeout, map) = (self.nodes.role.node_timeout, self.nodes.address_map().clone());
                self.asking.spawn(query_node(candidate, timeout, map));
            }
            let more = self.candidates.len() > 0;
            tokio::select! {
                report = self.asking.join_next() => match report {
                    Some(Some(Ok(report))) => return Some(report),
                    Some(Some(Err(error))) => self.failed = Some(more_useful(self.failed.take(), error)),
                    Some(None) => {}
                    None if !more => return None,
                    None => {}
                },
                () = sleep(self.stagger), if more => {}
            }
        }
    }

    /// Returns the error to report if no answer was usable.
    pub(super) fn failure(self) -> Error {
        self.failed.unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("no node of {} can be queried", self.nodes.seeds))
        })
    }
}

/// Returns the more useful error: one about an option, rather than one about another node that can't be reached.
fn more_useful(known: Option<Error>, error: Error) -> Error {
    match known {
        Some(known) if known.kind() != ErrorKind::Unavailable => known,
        _ => error,
    }
}

/// Sends the query over the node's command connection or, if there is none, over a temporary one.
async fn query_node(candidate: Candidate, node_timeout: Duration, map: AddressMap) -> Result<NodeReport> {
    let Candidate { node_address, endpoint, slot } = candidate;
    let unreachable = |error| endpoint.unreachable(error, false);
    // Outside the limit, for the reason given in `Reconnector`.
    let to = if slot.is_none() { endpoint.destination().await?.0 } else { endpoint.to.clone() };
    let answer = endpoint.within(node_timeout, async {
        let connection = match &slot {
            Some(slot) => slot.link_now().map_err(|failure| failure.error)?.connection,
            None => Connection::connect(&to, Box::new(drop)).await.map_err(unreachable)?,
        };
        connection.send(&slots_command(), None).await.map_err(unreachable)
    });
    let topology = parse_answer(answer.await?, &node_address, &map, &endpoint.address)?;
    Ok(NodeReport { topology, node_address, address: endpoint.address, slot })
}

#[cfg(test)]
mod tests;
