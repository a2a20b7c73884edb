use super::*;

mod fuzz;

fn read(wire: &str) -> Option<Topology> {
    read_mapped(wire, &AddressMap::NONE)
}

fn read_mapped(wire: &str, map: &AddressMap) -> Option<Topology> {
    let value = redis::parse_redis_value(wire.replace(' ', "\r\n").as_bytes()).unwrap();
    Topology::read(&value, &NodeAddress { host: "asked".into(), port: 1 }, map)
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
    let wire = "*2 *4 :0 :5460 *3 $1 a :7000 $2 id *3 $1 b :7001 $2 ie *3 :5461 :16383 *3 $-1 :7002 $2 if ";
    let reported = read(wire).unwrap();
    let map = AddressMap::new(|host, port| (format!("{host}.mapped"), port + 10));
    let topology = read_mapped(wire, &map).unwrap();
    let masters = owners(&topology, [0, 5460, 5461]).map(Option::unwrap);
    assert_eq!(masters, ["a.mapped:7010", "a.mapped:7010", "asked.mapped:7012"]);
    let replicas: Vec<_> = topology.replicas.iter().map(NodeAddress::to_string).collect();
    assert_eq!(replicas, ["b.mapped:7011"]);
    assert_eq!(topology.ids, reported.ids);
}

#[test]
fn a_replica_is_no_master_if_its_master_reports_no_port() {
    let topology = read("*1 *4 :0 :16383 *3 $1 a :0 $2 id *3 $1 b :7001 $2 ie ").unwrap();
    assert!(topology.slots.is_empty());
    assert_eq!(topology.replicas.iter().map(NodeAddress::to_string).collect::<Vec<_>>(), ["b:7001"]);
}

#[test]
fn all_nodes_are_known_by_their_ids() {
    let topology = read("*2 *4 :0 :1 *3 $1 a :1 $1 x *3 $1 b :2 $1 y *3 :2 :3 *4 $1 c :3 $1 z *0 ").unwrap();
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
        let asked = NodeAddress { host: "asked".into(), port: 1 };
        parse_answer(value, &asked, &AddressMap::NONE, &"asked:1".into())
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
