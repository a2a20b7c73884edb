//! The check of a new connection to a node, before a call is sent over it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::cluster::topology::{parse_answer, slots_command};
use crate::backend::connection::{Connection, Gate, redis_error};
use crate::base::telemetry;
use crate::config::AddressMap;
use crate::error::{Error, ErrorKind, Result};

impl Nodes {
    /// Returns a check that fails unless the connection leads to a node of this cluster, by the topology that the node itself reports.
    /// Without it: 1. A node dies, or leaves. 2. A node of another cluster is started at its address. 3. A call that is sent there
    /// acquires a lock in the other cluster. The check's query goes over the same connection as the call would, so whatever the order of
    /// these steps, the call is not sent.
    pub(super) fn gate(&self, node_address: &NodeAddress, address: &Arc<str>) -> Gate {
        let node = (self.me.clone(), node_address.clone(), address.clone());
        Arc::new(move |connection| Box::pin(check(node.clone(), connection)))
    }
}

/// A view that is not recognized also makes the watch task query the topology: the cluster may have changed so much that this client's
/// topology is outdated.
async fn check(
    (nodes, node_address, address): (Weak<Nodes>, NodeAddress, Arc<str>),
    connection: Connection,
) -> Result<()> {
    let mut asked = 0;
    loop {
        asked += 1;
        let answer = connection.send(&slots_command(), None).await;
        let answer = answer.map_err(|error| redis_error::unreachable(error, &address))?;
        let ids = parse_answer(answer, &node_address, &AddressMap::NONE, &address)?.ids;
        let Some(nodes) = nodes.upgrade() else { return Ok(()) };
        if nodes.identity.accepts(&ids) {
            return Ok(());
        }
        nodes.request_topology();
        if asked == ASKED {
            if nodes.identity.may_show_few(&ids) {
                return Err(Error::new(ErrorKind::Unavailable, FEW).at(&address));
            }
            nodes.identity.report_stranger(&address, telemetry::stranger);
            return Err(Error::new(ErrorKind::Unavailable, STRANGER).at(&address));
        }
        drop(nodes);
        sleep(PAUSE).await;
    }
}

/// How many times a node is asked if its view is not recognized, and the pause after each answer. A view shows too few of the known nodes for
/// a moment when several shards fail over. It shows nodes that nobody knew if the cluster was made a few seconds ago, and its nodes did not
/// list their replicas when this client connected. The topology that was requested may show them.
const ASKED: usize = 4;
const PAUSE: Duration = Duration::from_millis(50);

const FEW: &str = "its view of the cluster shows too few of the known nodes; it is connected to again, and should show them once a \
                   failover is complete: check the cluster";

const STRANGER: &str = "a node of another cluster answers there; check what runs at this address, and the addresses of this cluster";

#[cfg(test)]
mod tests;
