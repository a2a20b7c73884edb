use tokio::io::duplex;
use tokio::time::{Instant, advance};

use super::*;
use crate::backend::cluster::slots::Slots;
use crate::backend::cluster::testing;
use crate::backend::connection::State;
use crate::backend::server::Role;
use crate::backend::testing::fakes::FakeServer;
use crate::backend::testing::{ALONE, EventRecorder, commands, link};
use crate::base::telemetry::testing::Recorder;
use crate::config::Seeds;

const HOST: &str = "127.0.0.1";

fn nodes(seeds: &[u16]) -> Arc<Nodes> {
    let (seeds, events) = (Seeds::new(seeds.iter().map(|port| (HOST, *port))), EventRecorder::new());
    let runtime = tokio::runtime::Handle::current();
    let role = Role { node_timeout: Duration::from_secs(1), ..ALONE };
    Nodes::new(seeds, role, events.sender(), None, runtime)
}

fn node_address(port: u16) -> NodeAddress {
    NodeAddress { host: HOST.into(), port }
}

fn ids(all: &str) -> Ids {
    let mut ids = Ids::default();
    all.split(' ').filter(|id| !id.is_empty()).for_each(|id| ids.add(id));
    ids
}

/// Returns the report of the node at this port, which serves all slots.
fn report(port: u16, all: &str) -> NodeReport {
    let mut topology = Topology { slots: Slots::default(), replicas: Vec::new(), ids: ids(all) };
    topology.slots.assign(0..=16383, &node_address(port));
    NodeReport { topology, node_address: node_address(port), address: HOST.into(), slot: None }
}

/// The successor is the cluster that most seeds belong to now, or the rest of the old one.
#[tokio::test(start_paused = true)]
async fn what_comes_after_a_cluster_that_is_gone() {
    let seeds = [1, 2, 3, 4, 5];
    for (seeds, reports, successor) in [
        (&seeds[..], &[(1, "x y"), (2, "y z"), (3, "x y z")][..], Some("x y")),
        (&seeds[..4], &[(9, "x"), (1, "x y"), (2, "y z"), (3, "x y z")], Some("x y")),
        (&seeds[..4], &[(1, "x y"), (2, "x y")], None),
        (&seeds[..4], &[(1, "x y"), (2, "x y"), (9, "x y")], None),
        (&seeds[..4], &[(1, "x"), (2, "y"), (3, "z")], None),
        (&seeds[..4], &[(1, "a"), (2, "b c"), (9, "x")], Some("b c")),
        (&seeds[..4], &[(1, "a x"), (2, "b x")], None),
        (&seeds[..4], &[(9, "")], None),
        (&seeds[..4], &[(1, "a"), (2, "x"), (3, "x"), (4, "x")], Some("x")),
    ] {
        let nodes = nodes(seeds);
        let known = ids("a b c");
        nodes.identity.install(&known);
        let found = || {
            let all = reports.iter().map(|(port, all)| report(*port, all)).collect();
            nodes.successor(&known, all).map(|topology| topology.ids)
        };
        let log = Recorder::start();
        assert_eq!(found(), None, "it may come back");
        advance(Duration::from_secs(60)).await;
        assert_eq!(found(), successor.map(ids), "{seeds:?} {reports:?}");
        // The rest of the old cluster is not another cluster.
        let is_other = successor.is_some_and(|all| known.shared(&ids(all)) == 0);
        assert_eq!(
            log.count("no node of the cluster is left"),
            usize::from(is_other),
            "{seeds:?} {reports:?}"
        );
        nodes.close();
    }
}

#[tokio::test]
async fn nodes_that_are_connected_to_are_asked_first_and_the_one_for_messages_last() {
    let (ours, _theirs) = duplex(1024);
    let link = link(commands(ours).await, 1);
    let nodes = nodes(&[1, 4, 1]);
    assert_eq!(nodes.seed_addresses(), [node_address(1), node_address(4)]);
    let mut topology = report(1, "a b").topology;
    topology.slots.assign(0..=99, &node_address(2));
    topology.replicas.push(node_address(3));
    nodes.install(&topology);
    // The tasks of the nodes do not run in between: nothing is awaited.
    nodes.at(node_address(2)).unwrap().server.slot().state.send_replace(State::Up(link));
    let candidates = || {
        let port = |candidate: Candidate| (candidate.node_address.port, candidate.slot.is_some());
        let mut ports: Vec<_> = nodes.candidates().into_iter().map(port).collect();
        ports[1..].sort();
        ports
    };
    assert_eq!(candidates(), [(2, true), (1, false), (3, false), (4, false)]);
    nodes.set_pubsub_node(node_address(2));
    let last = nodes.candidates().pop().unwrap();
    assert_eq!((nodes.candidates().len(), last.node_address.port, last.slot.is_some()), (4, 2, true));
    nodes.close();
}

#[test]
fn an_error_that_does_not_go_away_by_itself_is_reported_first() {
    let error = |kind| Error::new(kind, "text");
    let (config, away, denied) = (ErrorKind::Config, ErrorKind::Unavailable, ErrorKind::Denied);
    for (known, next, reported) in [
        (Some(config), away, config),
        (Some(away), config, config),
        (Some(config), denied, config),
        (None, away, away),
    ] {
        assert_eq!(more_useful(known.map(error), error(next)).kind(), reported);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_delays_the_answers_of_the_others_by_a_moment() {
    let _a = FakeServer::start("a", |_| None);
    let _b = testing::node("b", testing::slots("b", ""));
    let (nodes, _events) = testing::nodes(&["a"]);
    let candidates = ["a", "b"].map(|host| nodes.candidate(testing::at(host), None));
    let mut query = nodes.query(candidates.into_iter().flatten().collect(), STAGGER);
    let begun = Instant::now();
    assert_eq!(query.next().await.unwrap().node_address, testing::at("b"));
    assert!((STAGGER..Duration::from_secs(1)).contains(&begun.elapsed()));
    assert!(query.next().await.is_none());
    let failure = query.failure();
    assert!(failure.to_string().contains("can't be reached within 1s"), "{failure}");
    let mut none = nodes.query(Vec::new(), STAGGER);
    assert!(none.next().await.is_none());
    assert!(none.failure().to_string().contains("no node of the cluster at a:1"));
}

/// Node `a` is queried first, `b` hangs, and `c` is queried last.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_left_is_disconnected_and_its_topology_is_not_used() {
    let few = "too few of the known nodes";
    for (by_a, by_c, found, is_kept) in [
        // `a` was added to another cluster.
        ("a x", "a b c", Ok("a b c"), false),
        ("x", "a b c", Ok("a b c"), false),
        // `a` is alone, and may be about to come back.
        ("a", "a b c", Ok("a b c"), true),
        ("a b", "a b c", Ok("a b"), true),
        // No recognized topology is reported, since `b` hangs.
        ("a x", "x", Err(few), true),
        ("x", "x", Err("can't be reached"), false),
    ] {
        let [a, b, c] = ["a", "b", "c"].map(|host| testing::node(host, testing::slots("a b c", "")));
        let (nodes, _events) = testing::nodes(&["a"]);
        nodes.install(&testing::topology("a b c", ""));
        assert!(nodes.wait_connected().await.unwrap().is_none());
        nodes.set_pubsub_node(testing::at("c"));
        a.answers(testing::reports(testing::slots(by_a, "")));
        b.answers(|_| None);
        c.answers(testing::reports(testing::slots(by_c, "")));
        let topology = nodes.query_topology().await;
        match found {
            Ok(hosts) => assert_eq!(topology.unwrap(), testing::topology(hosts, "")),
            Err(words) => {
                let error = topology.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                assert!(error.to_string().contains(words), "{by_a}, {by_c}: {error}");
            }
        }
        assert_eq!(nodes.at(testing::at("a")).unwrap().server.slot().is_up(), is_kept, "{by_a}, {by_c}");
        nodes.close();
    }
}
