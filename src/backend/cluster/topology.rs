//! The answer to `CLUSTER SLOTS`.

use std::sync::Arc;

use redis::{RedisError, Value};

use crate::backend::cluster::identity::Ids;
use crate::backend::cluster::slots::{NodeAddress, Slots};
use crate::backend::connection::redis_error;
use crate::backend::resp::text;
use crate::config::AddressMap;
use crate::error::{Error, ErrorKind, Result};

/// A cluster as one of its nodes reports it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Topology {
    pub(super) slots: Slots,
    pub(super) replicas: Vec<NodeAddress>,
    /// The ids of all these nodes.
    pub(super) ids: Ids,
}

impl Topology {
    /// Parses ranges, each with its master and then its replicas. `asked` is the address that the command was sent to. It stands for a
    /// node that does not know its own name, or is configured not to report it. `map` replaces reported addresses by those to connect to.
    pub(super) fn read(answer: &Value, asked: &NodeAddress, map: &AddressMap) -> Option<Topology> {
        let parse_node = |node| Some(node_address(node, asked)?.mapped(map));
        let (mut slots, mut replicas, mut ids) = (Slots::default(), Vec::new(), Ids::default());
        let mut lowest = None;
        for range in list(answer)? {
            let [Value::Int(first), Value::Int(last), nodes @ ..] = list(range)? else { return None };
            let range = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
            nodes.iter().filter_map(id).for_each(|id| ids.add(id));
            let [master, others @ ..] = nodes else { continue };
            if lowest.is_none_or(|lowest| first < lowest)
                && let Some(id) = id(master)
            {
                ids.set_first(id);
                lowest = Some(first);
            }
            if let Some(master) = parse_node(master) {
                slots.assign(range, &master);
            }
            replicas.extend(others.iter().filter_map(parse_node));
        }
        Some(Topology { slots, replicas, ids })
    }

    /// Returns whether one of its nodes has this address.
    pub(super) fn has(&self, node_address: &NodeAddress) -> bool {
        self.replicas.contains(node_address) || self.slots.serving().contains(&node_address)
    }
}

pub(super) fn slots_command() -> redis::Cmd {
    redis::cmd("CLUSTER").arg("SLOTS").take()
}

/// Parses the answer of the node at `asked`. `address` names the server in errors.
pub(super) fn parse_answer(
    answer: Value,
    asked: &NodeAddress,
    map: &AddressMap,
    address: &Arc<str>,
) -> Result<Topology> {
    let answer = answer.extract_error().map_err(|error| refused(error, address))?;
    let wrong = match Topology::read(&answer, asked, map) {
        Some(topology) if topology.slots.is_empty() => {
            "no slot of its cluster is served; assign each slot to a node"
        }
        Some(topology) => return Ok(topology),
        None => "its answer to CLUSTER SLOTS can't be parsed; check that a Redis server runs at this address",
    };
    Err(Error::new(ErrorKind::Unavailable, wrong).at(address))
}

fn refused(error: RedisError, address: &Arc<str>) -> Error {
    let refused = if error.detail().is_some_and(|text| text.contains("cluster support disabled")) {
        Error::new(
            ErrorKind::Config,
            "this server is not a node of a cluster; pass it to `Locks::builder` directly, without `Master::cluster`",
        )
    } else if redis_error::is_denied(&error) {
        let text = redis_error::answer(&error).unwrap_or_default();
        let message = format!(
            "the node denies this user the query for its topology: {text}; grant it by ACL SETUSER … +cluster|slots"
        );
        Error::new(ErrorKind::Denied, message)
    } else {
        return redis_error::unreachable(error, address);
    };
    refused.at(address).because(error)
}

fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(list) => Some(list),
        _ => None,
    }
}

fn id(node: &Value) -> Option<&str> {
    text(list(node)?.get(2)?)
}

/// Returns the address of a node, or `None` for an entry without a port.
fn node_address(node: &Value, asked: &NodeAddress) -> Option<NodeAddress> {
    let [endpoint, Value::Int(port), more @ ..] = list(node)? else { return None };
    let host = match text(endpoint) {
        // The node is configured to report its hostname, but has none. Its IP address is in the metadata.
        Some("?") => more.get(1).and_then(ip_in),
        host => host,
    };
    let host = host.filter(|host| !host.is_empty()).map_or_else(|| asked.host.clone(), Into::into);
    Some(NodeAddress { host, port: u16::try_from(*port).ok().filter(|port| *port != 0)? })
}

/// Returns the value of `ip` in the metadata of a node, which is a list of pairs, or in RESP3 a map.
fn ip_in(metadata: &Value) -> Option<&str> {
    metadata.as_map_iter()?.find(|(name, _)| text(name) == Some("ip")).and_then(|(_, ip)| text(ip))
}

#[cfg(test)]
mod tests;
