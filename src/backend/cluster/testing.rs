//! Clusters in memory, for tests with a paused clock.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::cluster::topology::{Topology, parse_answer};
use crate::backend::server::Role;
use crate::backend::testing::fakes::{FakeServer, usual};
use crate::backend::testing::{ALONE, EventRecorder};
use crate::config::{AddressMap, Seeds};

/// Returns the nodes of a client of a cluster with these seeds, each the only server at its host.
pub(super) fn nodes(seeds: &[&str]) -> (Arc<Nodes>, EventRecorder) {
    let (seeds, events) = (Seeds::new(seeds.iter().map(|host| (*host, 1))), EventRecorder::new());
    let role = Role { node_timeout: Duration::from_secs(1), ..ALONE };
    let nodes = Nodes::new(seeds, role, events.sender(), None, Handle::current());
    (nodes, events)
}

pub(super) fn at(host: &str) -> NodeAddress {
    NodeAddress { host: host.into(), port: 1 }
}

/// Returns a node's answer to the query for its topology. Masters and replicas are named by their hosts, which are also their ids. The
/// first master serves all slots but one for each of the others.
pub(super) fn slots(masters: &str, replicas: &str) -> String {
    let node = |host: &str| format!("*3\r\n${0}\r\n{host}\r\n:1\r\n${0}\r\n{host}\r\n", host.len());
    let masters: Vec<_> = masters.split(' ').collect();
    let replicas: Vec<_> = replicas.split(' ').filter(|host| !host.is_empty()).map(node).collect();
    let ranges = masters.iter().enumerate().map(|(at, master)| match at {
        0 => {
            let (last, nodes) = (16_384 - masters.len(), 3 + replicas.len());
            format!("*{nodes}\r\n:0\r\n:{last}\r\n{}{}", node(master), replicas.concat())
        }
        _ => format!("*3\r\n:{0}\r\n:{0}\r\n{1}", 16_383 - masters.len() + 1 + at, node(master)),
    });
    format!("*{}\r\n{}", masters.len(), ranges.collect::<String>())
}

pub(super) fn topology(masters: &str, replicas: &str) -> Topology {
    let answer = redis::parse_redis_value(slots(masters, replicas).as_bytes()).unwrap();
    parse_answer(answer, &at("asked"), &AddressMap::NONE, &"asked:1".into()).unwrap()
}

/// Starts a node that reports this topology.
pub(super) fn node(host: &str, reported: String) -> FakeServer {
    FakeServer::start(host, reports(reported))
}

/// Returns the answers of a node that reports this topology.
pub(super) fn reports(topology: String) -> impl FnMut(&[&str]) -> Option<String> + Send + 'static {
    move |words| if words == ["CLUSTER", "SLOTS"] { Some(topology.clone()) } else { usual(words) }
}
