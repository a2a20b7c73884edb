//! What a new connection to a node has to show before anything is sent over it.

use std::sync::{Arc, Weak};

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::cluster::topology_query::{question, understood};
use crate::backend::connection::{Gate, redis_error};
use crate::base::telemetry;
use crate::error::{Error, ErrorKind};

/// That it leads to a node of this cluster, by the node's own view. 1. A node dies, or leaves. 2. A node of another cluster
/// is started at its address. 3. A call that is sent there takes a lock in the other cluster. Asked by the very connection that
/// the call would go over, so in every order the call is not sent.
pub(super) fn gate(nodes: Weak<Nodes>, place: NodeAddress, address: Arc<str>) -> Gate {
    Arc::new(move |mut connection| {
        let (nodes, place, address) = (nodes.clone(), place.clone(), address.clone());
        Box::pin(async move {
            let answer = connection.send_packed_command(&question()).await;
            let answer = answer.map_err(|error| redis_error::unreachable(error, &address))?;
            let view = understood(answer, &place, &address)?;
            let Some(nodes) = nodes.upgrade() else { return Ok(()) };
            if nodes.identity.admits(&view.ids) {
                return Ok(());
            }
            if nodes.identity.is_news(&address) {
                telemetry::stranger(&address);
            }
            // Or so much has changed that this client has fallen behind.
            nodes.stir();
            Err(Error::new(ErrorKind::Unavailable, STRANGER).at(&address))
        })
    })
}

const STRANGER: &str =
    "a node of another cluster answers there; check what it is, and the addresses of this cluster";
