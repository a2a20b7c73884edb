//! The check of a new connection to a node, before a call is sent over it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::backend::cluster::identity::Identity;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::cluster::topology::{parse_answer, slots_command};
use crate::backend::connection::{Gate, redis_error};
use crate::base::telemetry;
use crate::error::{Error, ErrorKind};

/// Returns a check that fails unless the connection leads to a node of this cluster, by the topology that the node itself reports. 1. A
/// node dies, or leaves. 2. A node of another cluster is started at its address. 3. A call that is sent there acquires a lock in the
/// other cluster. The check's query is sent over the same connection as the call would be, so in every order the call is not sent.
///
/// A view that is not recognized also notifies `topology_requested`: the cluster may have changed so much that this client's topology is
/// outdated.
pub(super) fn gate(
    identity: Weak<Identity>,
    topology_requested: Arc<Notify>,
    node_address: NodeAddress,
    address: Arc<str>,
) -> Gate {
    Arc::new(move |connection| {
        let (identity, topology_requested) = (identity.clone(), topology_requested.clone());
        let (node_address, address) = (node_address.clone(), address.clone());
        Box::pin(async move {
            let mut asked = 0;
            loop {
                asked += 1;
                let answer = connection.send(&slots_command(), None).await;
                let answer = answer.map_err(|error| redis_error::unreachable(error, &address))?;
                let topology = parse_answer(answer, &node_address, &address)?;
                let Some(identity) = identity.upgrade() else { return Ok(()) };
                if identity.accepts(&topology.ids) {
                    return Ok(());
                }
                topology_requested.notify_one();
                let is_stranger = !identity.may_show_few(&topology.ids);
                if asked == ASKED {
                    if is_stranger && identity.report_once(&address) {
                        telemetry::stranger(&address);
                    }
                    let why = if is_stranger { STRANGER } else { FEW };
                    return Err(Error::new(ErrorKind::Unavailable, why).at(&address));
                }
                drop(identity);
                sleep(PAUSE).await;
            }
        })
    })
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
