//! What a node tells of its cluster. No I/O, and no clock.

use redis::Value;

use crate::backend::cluster::identity::Ids;
use crate::backend::cluster::slots::{NodeAddress, Slots};

/// A cluster as one of its nodes sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Topology {
    pub(super) slots: Slots,
    /// Replicas.
    pub(super) others: Vec<NodeAddress>,
    /// Of all these nodes.
    pub(super) ids: Ids,
}

impl Topology {
    /// What `CLUSTER SLOTS` answered: ranges, each with its master and then its replicas. `asked` is where it was asked:
    /// a node that does not know its own name, or is not to tell it, is reached there.
    pub(super) fn read(answer: &Value, asked: &NodeAddress) -> Option<Topology> {
        let (mut slots, mut others, mut ids) = (Slots::new(), Vec::new(), Ids::default());
        let mut lowest = None;
        for range in list(answer)? {
            let [Value::Int(first), Value::Int(last), nodes @ ..] = list(range)? else { return None };
            let range = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
            nodes.iter().filter_map(id).for_each(|id| ids.add(id));
            let [master, replicas @ ..] = nodes else { continue };
            if lowest.is_none_or(|lowest| first < lowest)
                && let Some(id) = id(master)
            {
                ids.set_first(id);
                lowest = Some(first);
            }
            if let Some(master) = place(master, asked) {
                slots.assign(range, &master);
            }
            others.extend(replicas.iter().filter_map(|node| place(node, asked)));
        }
        Some(Topology { slots, others, ids })
    }

    /// Whether a node of it is there.
    pub(super) fn has(&self, place: &NodeAddress) -> bool {
        self.others.contains(place) || self.slots.serving().contains(&place)
    }
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

/// `None`: an entry that tells no port.
fn place(node: &Value, asked: &NodeAddress) -> Option<NodeAddress> {
    let [endpoint, Value::Int(port), more @ ..] = list(node)? else { return None };
    let host = match text(endpoint) {
        // Its name is to be given and is not known; its address stands beside it.
        Some("?") => more.get(1).and_then(address),
        host => host,
    };
    let host = host.filter(|host| !host.is_empty()).map_or_else(|| asked.host.clone(), Into::into);
    Some(NodeAddress { host, port: u16::try_from(*port).ok().filter(|port| *port != 0)? })
}

/// The value of `ip` in what is told of a node besides: pairs, or in RESP3 a map.
fn address(told: &Value) -> Option<&str> {
    match told {
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

    fn read(wire: &str) -> Option<Topology> {
        let value = redis::parse_redis_value(wire.replace(' ', "\r\n").as_bytes()).unwrap();
        Topology::read(&value, &NodeAddress { host: "asked".into(), port: 1 })
    }

    fn owners(view: &Topology, slots: [u16; 3]) -> [Option<String>; 3] {
        slots.map(|slot| view.slots.owner(slot).map(NodeAddress::to_string))
    }

    #[test]
    fn ranges_have_a_master_and_replicas() {
        let view = read(
            "*2 *4 :0 :5460 *3 $1 a :7000 $2 id *3 $1 b :7001 $2 id *3 :5461 :16383 *4 $1 c :7002 $2 id *0 ",
        )
        .unwrap();
        assert_eq!(owners(&view, [0, 5460, 5461]).map(Option::unwrap), ["a:7000", "a:7000", "c:7002"]);
        assert_eq!(view.others.iter().map(NodeAddress::to_string).collect::<Vec<_>>(), ["b:7001"]);
    }

    #[test]
    fn a_node_without_a_name_is_where_it_was_asked() {
        for endpoint in ["$-1", "$0 ", "_", "$1 ?"] {
            let view = read(&format!("*1 *3 :0 :16383 *3 {endpoint} :7000 $2 id ")).unwrap();
            assert_eq!(view.slots.owner(3).unwrap().to_string(), "asked:7000", "{endpoint}");
        }
        for more in ["*2 $2 ip $8 10.0.0.1", "%1 $2 ip $8 10.0.0.1"] {
            let view = read(&format!("*1 *3 :0 :16383 *4 $1 ? :7000 $2 id {more} ")).unwrap();
            assert_eq!(view.slots.owner(3).unwrap().to_string(), "10.0.0.1:7000", "{more}");
        }
    }

    #[test]
    fn a_replica_is_no_master_where_its_master_tells_no_port() {
        let view = read("*1 *4 :0 :16383 *3 $1 a :0 $2 id *3 $1 b :7001 $2 ie ").unwrap();
        assert!(view.slots.is_empty());
        assert_eq!(view.others.iter().map(NodeAddress::to_string).collect::<Vec<_>>(), ["b:7001"]);
    }

    #[test]
    fn all_nodes_are_known_by_their_ids() {
        let view = read("*2 *4 :0 :1 *3 $1 a :1 $1 x *3 $1 b :2 $1 y *3 :2 :3 *4 $1 c :3 $1 z *0 ").unwrap();
        assert_eq!(
            ["x", "y", "z", "q"].map(|id| {
                let mut one = Ids::default();
                one.add(id);
                view.ids.shared(&one)
            }),
            [1, 1, 1, 0]
        );
    }

    #[test]
    fn the_master_of_the_first_slot_decides_between_halves() {
        let view = read("*2 *4 :9 :9 *3 $1 a :1 $1 x *3 $1 b :2 $1 y *3 :0 :8 *3 $1 c :3 $1 z ").unwrap();
        let of = |wire| read(wire).unwrap().ids;
        assert!(view.ids.vouch_for(&of("*1 *4 :0 :9 *3 $1 a :1 $1 x *3 $1 c :3 $1 z ")));
        let pair = of("*1 *4 :0 :9 *3 $1 a :1 $1 x *3 $1 b :2 $1 y ");
        assert!(pair.vouch_for(&of("*1 *3 :0 :9 *3 $1 a :1 $1 x ")));
        assert!(!pair.vouch_for(&of("*1 *3 :0 :9 *3 $1 b :2 $1 y ")));
        assert!(!pair.vouch_for(&of("*1 *4 :0 :9 *3 $1 a :1 $1 x *3 $1 q :9 $1 q ")));
    }

    #[test]
    fn slots_that_nobody_serves_have_no_owner() {
        assert!(read("*0 ").unwrap().slots.is_empty());
        assert!(read("*1 *2 :0 :16383 ").unwrap().slots.is_empty());
        assert_eq!(owners(&read("*1 *3 :7 :7 *2 $1 a :1 ").unwrap(), [6, 8, 9]), [None, None, None]);
    }

    #[test]
    fn what_is_no_such_answer_tells_nothing() {
        for wire in ["+OK ", ":1 ", "*1 :1 ", "*1 *2 $1 a :1 ", "*1 *2 :-1 :5 ", "*1 *2 :1 :70000 "] {
            assert!(read(wire).is_none(), "{wire}");
        }
    }
}
