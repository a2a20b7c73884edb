//! The answer to `CLUSTER SLOTS`. No I/O, and no clock.

use std::sync::Arc;

use redis::{RedisError, Value};

use crate::backend::cluster::identity::Ids;
use crate::backend::cluster::slots::{NodeAddress, Slots};
use crate::backend::connection::redis_error;
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
    /// node that does not know its own name, or is configured not to report it.
    pub(super) fn read(answer: &Value, asked: &NodeAddress) -> Option<Topology> {
        let (mut slots, mut replicas, mut ids) = (Slots::new(), Vec::new(), Ids::default());
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
            if let Some(master) = node_address(master, asked) {
                slots.assign(range, &master);
            }
            replicas.extend(others.iter().filter_map(|node| node_address(node, asked)));
        }
        Some(Topology { slots, replicas, ids })
    }

    /// Replaces the addresses that the node has reported by those to connect to.
    pub(super) fn mapped(self, map: &AddressMap) -> Topology {
        let replicas = self.replicas.into_iter().map(|replica| replica.mapped(map)).collect();
        Topology { slots: self.slots.mapped(map), replicas, ids: self.ids }
    }

    /// Returns whether one of its nodes has this address.
    pub(super) fn has(&self, node_address: &NodeAddress) -> bool {
        self.replicas.contains(node_address) || self.slots.serving().contains(&node_address)
    }
}

pub(super) fn slots_command() -> redis::Cmd {
    redis::cmd("CLUSTER").arg("SLOTS").to_owned()
}

/// Parses the answer of the node at `asked`. `address` names the server in errors.
pub(super) fn parse_answer(answer: Value, asked: &NodeAddress, address: &Arc<str>) -> Result<Topology> {
    let answer = answer.extract_error().map_err(|error| refused(error, address))?;
    let wrong = match Topology::read(&answer, asked) {
        Some(topology) if topology.slots.is_empty() => {
            "no slot of its cluster is served; assign each slot to a node"
        }
        Some(topology) => return Ok(topology),
        None => "its answer to CLUSTER SLOTS can't be parsed; check that a Redis server runs at this address",
    };
    Err(Error::new(ErrorKind::Unavailable, wrong).at(address))
}

fn refused(error: RedisError, address: &Arc<str>) -> Error {
    let (kind, message) = if error.detail().is_some_and(|text| text.contains("cluster support disabled")) {
        (
            ErrorKind::Config,
            "the server is no node of a cluster; give it to `Locks::builder` as it is, without `Master::cluster`".to_owned(),
        )
    } else if redis_error::is_denied(&error) {
        let text = redis_error::answer(&error).unwrap_or_default();
        (
            ErrorKind::Denied,
            format!(
                "the node denies this user the query for its topology: {text}; grant it by ACL SETUSER … +cluster|slots"
            ),
        )
    } else {
        return redis_error::unreachable(error, address);
    };
    Error::new(kind, message).at(address).because(error)
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
        // The node is configured to report its name, but that is not set. Its IP address is in the metadata.
        Some("?") => more.get(1).and_then(address),
        host => host,
    };
    let host = host.filter(|host| !host.is_empty()).map_or_else(|| asked.host.clone(), Into::into);
    Some(NodeAddress { host, port: u16::try_from(*port).ok().filter(|port| *port != 0)? })
}

/// Returns the value of `ip` in the metadata of a node, which is a list of pairs, or in RESP3 a map.
fn address(metadata: &Value) -> Option<&str> {
    match metadata {
        Value::Array(list) => {
            list.chunks_exact(2).find(|pair| text(&pair[0]) == Some("ip")).and_then(|pair| text(&pair[1]))
        }
        Value::Map(map) => map.iter().find(|(name, _)| text(name) == Some("ip")).and_then(|(_, ip)| text(ip)),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    mod fuzz;

    fn read(wire: &str) -> Option<Topology> {
        let value = redis::parse_redis_value(wire.replace(' ', "\r\n").as_bytes()).unwrap();
        Topology::read(&value, &NodeAddress { host: "asked".into(), port: 1 })
    }

    fn owners(topology: &Topology, slots: [u16; 3]) -> [Option<String>; 3] {
        slots.map(|slot| topology.slots.owner(slot).map(NodeAddress::to_string))
    }

    #[test]
    fn ranges_have_a_master_and_replicas() {
        let topology = read(
            "*2 *4 :0 :5460 *3 $1 a :7000 $2 id *3 $1 b :7001 $2 id *3 :5461 :16383 *4 $1 c :7002 $2 id *0 ",
        )
        .unwrap();
        assert_eq!(owners(&topology, [0, 5460, 5461]).map(Option::unwrap), ["a:7000", "a:7000", "c:7002"]);
        assert_eq!(topology.replicas.iter().map(NodeAddress::to_string).collect::<Vec<_>>(), ["b:7001"]);
    }

    #[test]
    fn a_node_without_a_name_has_the_address_that_was_queried() {
        for endpoint in ["$-1", "$0 ", "_", "$1 ?"] {
            let topology = read(&format!("*1 *3 :0 :16383 *3 {endpoint} :7000 $2 id ")).unwrap();
            assert_eq!(topology.slots.owner(3).unwrap().to_string(), "asked:7000", "{endpoint}");
        }
        for more in ["*2 $2 ip $8 10.0.0.1", "%1 $2 ip $8 10.0.0.1"] {
            let topology = read(&format!("*1 *3 :0 :16383 *4 $1 ? :7000 $2 id {more} ")).unwrap();
            assert_eq!(topology.slots.owner(3).unwrap().to_string(), "10.0.0.1:7000", "{more}");
        }
    }

    #[test]
    fn all_addresses_of_a_topology_are_mapped_and_its_ids_stay() {
        let wire =
            "*2 *4 :0 :5460 *3 $1 a :7000 $2 id *3 $1 b :7001 $2 ie *3 :5461 :16383 *3 $-1 :7002 $2 if ";
        let reported = read(wire).unwrap();
        let map = AddressMap::new(|host, port| (format!("{host}.mapped"), port + 10));
        let topology = reported.clone().mapped(&map);
        let masters = owners(&topology, [0, 5460, 5461]).map(Option::unwrap);
        assert_eq!(masters, ["a.mapped:7010", "a.mapped:7010", "asked.mapped:7012"]);
        let replicas: Vec<_> = topology.replicas.iter().map(NodeAddress::to_string).collect();
        assert_eq!(replicas, ["b.mapped:7011"]);
        assert_eq!(topology.ids, reported.ids);
        assert_eq!(reported.clone().mapped(&AddressMap::NONE), reported);
    }

    #[test]
    fn a_replica_is_no_master_if_its_master_reports_no_port() {
        let topology = read("*1 *4 :0 :16383 *3 $1 a :0 $2 id *3 $1 b :7001 $2 ie ").unwrap();
        assert!(topology.slots.is_empty());
        assert_eq!(topology.replicas.iter().map(NodeAddress::to_string).collect::<Vec<_>>(), ["b:7001"]);
    }

    #[test]
    fn all_nodes_are_known_by_their_ids() {
        let topology =
            read("*2 *4 :0 :1 *3 $1 a :1 $1 x *3 $1 b :2 $1 y *3 :2 :3 *4 $1 c :3 $1 z *0 ").unwrap();
        assert_eq!(
            ["x", "y", "z", "q"].map(|id| {
                let mut one = Ids::default();
                one.add(id);
                topology.ids.shared(&one)
            }),
            [1, 1, 1, 0]
        );
    }

    #[test]
    fn the_master_of_the_first_slot_decides_between_halves() {
        let topology = read("*2 *4 :9 :9 *3 $1 a :1 $1 x *3 $1 b :2 $1 y *3 :0 :8 *3 $1 c :3 $1 z ").unwrap();
        let of = |wire| read(wire).unwrap().ids;
        assert!(topology.ids.recognizes(&of("*1 *4 :0 :9 *3 $1 a :1 $1 x *3 $1 c :3 $1 z ")));
        let pair = of("*1 *4 :0 :9 *3 $1 a :1 $1 x *3 $1 b :2 $1 y ");
        assert!(pair.recognizes(&of("*1 *3 :0 :9 *3 $1 a :1 $1 x ")));
        assert!(!pair.recognizes(&of("*1 *3 :0 :9 *3 $1 b :2 $1 y ")));
        assert!(!pair.recognizes(&of("*1 *4 :0 :9 *3 $1 a :1 $1 x *3 $1 q :9 $1 q ")));
    }

    /// The order of the ranges does not matter.
    #[test]
    fn the_first_range_that_names_its_master_is_the_lowest_one() {
        let half = "*1 *3 :0 :9 *3 $1 z :3 $1 z ";
        for ranges in [
            "*2 *4 :0 :8 *3 $1 z :3 $1 z *3 $1 x :1 $1 x *3 :9 :9 *3 $1 x :1 $1 x ",
            "*2 *4 :9 :9 *3 $1 x :1 $1 x *3 $1 z :3 $1 z *3 :0 :8 *3 $1 z :3 $1 z ",
            "*2 *4 :0 :8 *3 $1 z :3 $1 z *3 $1 x :1 $1 x *3 :0 :8 *3 $1 x :1 $1 x ",
        ] {
            assert!(read(ranges).unwrap().ids.recognizes(&read(half).unwrap().ids), "{ranges}");
        }
    }

    #[test]
    fn masters_and_replicas_are_its_nodes() {
        let topology = read("*1 *4 :0 :9 *3 +a :1 $1 x *3 $1 b :2 $1 y ").unwrap();
        let has = |host: &str, port| topology.has(&NodeAddress { host: host.into(), port });
        assert!(has("a", 1) && has("b", 2) && !has("a", 2) && !has("c", 1));
    }

    #[test]
    fn a_cluster_that_serves_no_slot_is_unavailable() {
        let parsed = |wire: &str| {
            let value = redis::parse_redis_value(wire.replace(' ', "\r\n").as_bytes()).unwrap();
            parse_answer(value, &NodeAddress { host: "asked".into(), port: 1 }, &"asked:1".into())
        };
        assert!(parsed("*1 *3 :0 :9 *3 $1 a :1 $1 x ").is_ok());
        for (wire, words) in [("*0 ", "no slot"), ("*1 *2 :0 :9 ", "no slot"), ("+OK ", "can't be parsed")] {
            let error = parsed(wire).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(slots_command().get_packed_command(), b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n");
    }

    #[test]
    fn slots_that_no_node_serves_have_no_owner() {
        assert!(read("*0 ").unwrap().slots.is_empty());
        assert!(read("*1 *2 :0 :16383 ").unwrap().slots.is_empty());
        assert_eq!(owners(&read("*1 *3 :7 :7 *2 $1 a :1 ").unwrap(), [6, 8, 9]), [None, None, None]);
    }

    #[test]
    fn other_answers_are_not_parsed() {
        for wire in ["+OK ", ":1 ", "*1 :1 ", "*1 *2 $1 a :1 ", "*1 *2 :-1 :5 ", "*1 *2 :1 :70000 "] {
            assert!(read(wire).is_none(), "{wire}");
        }
    }
}
