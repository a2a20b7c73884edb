use super::*;
use crate::base::testing::{answers, fuzz, is_bounded};

const ANSWERS: [&str; 4] = [
    "*2\r\n*4\r\n:0\r\n:5460\r\n*3\r\n$1\r\na\r\n:7000\r\n$2\r\nid\r\n\
     *3\r\n$1\r\nb\r\n:7001\r\n$2\r\nie\r\n*3\r\n:5461\r\n:16383\r\n*4\r\n$1\r\nc\r\n:7002\r\n$2\r\nig\r\n*0\r\n",
    "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\n?\r\n:7000\r\n$2\r\nid\r\n*2\r\n$2\r\nip\r\n$8\r\n10.0.0.1\r\n",
    "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$0\r\n\r\n:7000\r\n$2\r\nid\r\n%1\r\n$2\r\nip\r\n$8\r\n10.0.0.1\r\n",
    "-ERR This instance has cluster support disabled\r\n",
];

#[test]
fn whatever_a_node_answers_is_a_topology_or_an_error() {
    let (asked, address) = (NodeAddress { host: "asked".into(), port: 1 }, Arc::from("asked:1"));
    fuzz(answers(&ANSWERS), |answer| {
        match parse_answer(answer.clone(), &asked, &AddressMap::NONE, &address) {
            Ok(topology) => {
                let nodes = [topology.slots.serving(), topology.replicas.iter().collect()].concat();
                assert!(nodes.iter().all(|node| !node.host.is_empty() && node.port > 0));
                is_bounded(&nodes, &answer);
            }
            Err(error) => is_bounded(&error, &answer),
        }
    });
}
