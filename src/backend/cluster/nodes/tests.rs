use tokio::io::{DuplexStream, duplex};

use super::*;
use crate::backend::cluster::testing;
use crate::backend::connection::Link;
use crate::backend::testing::{ALONE, Event, EventRecorder, commands};

fn nodes() -> (Arc<Nodes>, EventRecorder) {
    let events = EventRecorder::new();
    let seeds = Seeds::new([("127.0.0.1", 1)]);
    let role = Role { node_timeout: Duration::from_millis(1), ..ALONE };
    let nodes = Nodes::new(seeds, role, events.sender(), None, Handle::current());
    (nodes, events)
}

fn node_address(port: u16) -> NodeAddress {
    NodeAddress { host: "127.0.0.1".into(), port }
}

/// Returns a topology whose slots are served by the nodes at these ports, except the last one, a replica.
fn topology(ids: [&str; 2], ports: [u16; 3]) -> Topology {
    let mut topology =
        Topology { slots: Slots::default(), replicas: vec![node_address(ports[2])], ids: Default::default() };
    ids.iter().for_each(|id| topology.ids.add(id));
    topology.slots.assign(0..=99, &node_address(ports[0]));
    topology.slots.assign(100..=16383, &node_address(ports[1]));
    topology
}

fn refuse(node: &Node) {
    let failed = Some(Error::new(ErrorKind::Unavailable, "refused"));
    node.server.slot().state.send_replace(State::Down { attempt: 1, failed });
}

/// Returns a connection without a server, and its other end.
async fn link() -> (Link, DuplexStream) {
    let (ours, theirs) = duplex(1024);
    (crate::backend::testing::link(commands(ours).await, 1), theirs)
}

/// Nobody listens at the ports of the nodes.
#[tokio::test]
async fn a_cluster_is_away_where_no_node_can_be_connected_to() {
    let (nodes, _events) = nodes();
    nodes.install(&topology(["a", "b"], [1, 2, 3]));
    assert_eq!(nodes.wait_connected().await.unwrap().unwrap().kind(), ErrorKind::Unavailable);
    let (link, _theirs) = link().await;
    let [one, two] = [1, 2].map(|port| nodes.at(node_address(port)).unwrap());
    two.server.slot().state.send_replace(State::Up(link));
    assert!(nodes.wait_connected().await.unwrap().is_none());
    one.server.close();
    assert_eq!(nodes.wait_connected().await.unwrap_err().kind(), ErrorKind::Closed);
    nodes.close();
}

#[tokio::test]
async fn a_lock_is_connected_to_with_the_node_of_its_slot_once_all_changes_are_reported() {
    let (nodes, _events) = nodes();
    let (link, _theirs) = link().await;
    nodes.install(&topology(["a", "b"], [1, 2, 3]));
    let serves =
        |slot: &u16, port| nodes.owner(*slot).is_ok_and(|node| node.node_address == node_address(port));
    let [one, two] = [1, 2].map(|port| (0..16_384).find(|slot| serves(slot, port)).unwrap());
    nodes.at(node_address(2)).unwrap().server.slot().state.send_replace(State::Up(link));
    assert!(nodes.is_connected(two) && !nodes.is_connected(one));
    nodes.moved(one, &node_address(2));
    assert!(!nodes.is_connected(two), "what has moved is not reported yet");
    nodes.install(&topology(["a", "b"], [1, 2, 3]));
    assert!(nodes.is_connected(two));
    nodes.close();
}

/// A connection is refused with the error that another cluster uses its address.
#[tokio::test]
async fn a_node_forwards_messages_unless_it_is_refused_while_others_are_not() {
    let (link, _theirs) = link().await;
    // The tasks of the nodes do not run in between: nothing is awaited.
    let (nodes, _events) = nodes();
    nodes.install(&topology(["a", "b"], [1, 2, 3]));
    let forwards = || [1, 2, 3, 4].map(|port| nodes.forwards_messages(&node_address(port)));
    assert_eq!(forwards(), [true, true, true, false]);
    let [one, two] = [1, 2].map(|port| nodes.at(node_address(port)).unwrap());
    refuse(&one);
    assert_eq!(forwards(), [true, true, true, false], "no other one is better");
    two.server.slot().state.send_replace(State::Up(link));
    assert_eq!(forwards(), [false, true, true, false]);
    refuse(&two);
    assert_eq!(forwards(), [true, true, true, false]);
    assert_eq!(nodes.pubsub_node(), None);
    nodes.set_pubsub_node(node_address(2));
    assert_eq!(nodes.pubsub_node(), Some(node_address(2)));
    assert_eq!(nodes.connect_limit(), connect_limit(None, Duration::ZERO));
    nodes.close();
}

#[tokio::test(start_paused = true)]
async fn a_new_owner_of_a_slot_makes_the_cluster_young_and_is_reported() {
    let (nodes, mut events) = nodes();
    let minute = Duration::from_secs(60);
    let known = topology(["a", "b"], [1, 2, 3]);
    let mut expect = |topology: &Topology, is_new: bool| {
        let mut changes = nodes.changes.subscribe();
        changes.mark_unchanged();
        nodes.install(topology);
        assert!(changes.has_changed().unwrap());
        assert_eq!(events.try_next(), is_new.then_some(Event::Moved([true; 2])));
        assert_eq!(nodes.is_younger_than(minute), is_new);
    };
    expect(&known, false);
    expect(&known, false);
    expect(&topology(["a", "b"], [1, 3, 2]), true);
    tokio::time::advance(minute).await;
    expect(&topology(["a", "b"], [1, 3, 2]), false);
    expect(&topology(["a", "b"], [1, 3, 4]), false);
    // The slots are the same, but they are those of another cluster.
    expect(&topology(["x", "y"], [1, 3, 4]), true);
    tokio::time::advance(minute).await;
    let [a, b] = ["a", "b"].map(slot);
    nodes.moved(b, &node_address(3));
    assert!(!nodes.is_younger_than(minute), "the node at port 3 was the owner");
    nodes.moved(b, &node_address(1));
    assert!(nodes.is_younger_than(minute));
    // The change is reported with the next topology, and no lock in another slot is concerned.
    let mut moved = topology(["x", "y"], [1, 3, 4]);
    moved.slots.assign(b..=b, &node_address(1));
    events.expect_none();
    nodes.install(&moved);
    assert_eq!(events.try_next(), Some(Event::Moved([false, true])));
    moved.slots.assign(a..=a, &node_address(1));
    nodes.install(&moved);
    assert_eq!(events.try_next(), Some(Event::Moved([true, false])));
    nodes.close();
    nodes.install(&known);
    assert!(nodes.owner(0).is_err());
    events.expect_none();
}

#[tokio::test]
async fn a_connection_to_a_node_that_is_back_is_reported_and_wakes_calls_that_wait() {
    let (nodes, mut events) = nodes();
    let mut changes = nodes.changes.subscribe();
    nodes.reconnected();
    assert!(changes.has_changed().unwrap());
    assert_eq!(events.try_next(), Some(Event::Reconnected));
    changes.mark_unchanged();
    nodes.close();
    assert!(changes.has_changed().unwrap());
}

/// A replica may have replaced the node.
#[tokio::test(start_paused = true)]
async fn a_lost_connection_to_a_node_and_each_attempt_that_fails_request_the_topology() {
    let a = testing::node("a", testing::slots("a", ""));
    let (nodes, _events) = testing::nodes(&["a"]);
    let requested = async |limit| {
        let requested = nodes.topology_requested.notified();
        tokio::time::timeout(Duration::from_secs(limit), requested).await.is_ok()
    };
    nodes.install(&testing::topology("a", ""));
    assert!(nodes.wait_connected().await.unwrap().is_none());
    assert!(!requested(60).await, "nothing has happened");
    a.hang_up();
    assert!(requested(1).await);
    assert!(nodes.wait_connected().await.unwrap().is_none());
    while requested(60).await {}
    nodes.request_topology();
    assert!(requested(1).await);
    // Nobody listens there.
    nodes.install(&testing::topology("b", ""));
    for _ in 0..3 {
        assert!(requested(1).await);
    }
    // A call to the node fails at once. Only the cluster decides whether it waits.
    assert!(nodes.at(testing::at("b")).unwrap().server.is_away());
    nodes.close();
}
