use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::*;
use crate::backend::cluster::testing::{at, node, nodes, slots, topology};
use crate::backend::connection::State;

const SECOND: Duration = Duration::from_secs(1);

/// Returns the hosts of all nodes that the random choice can return.
fn choices(nodes: &Nodes) -> String {
    let mut hosts: Vec<_> =
        (0..200).filter_map(|_| nodes.another_pubsub_node()).map(|node| node.host).collect();
    hosts.sort();
    hosts.dedup();
    hosts.join(" ")
}

#[tokio::test(start_paused = true)]
async fn another_node_is_chosen_and_of_those_one_that_is_connected_to() {
    let [_a, _b, _c] = ["a", "b", "c"].map(|host| node(host, slots("a b c", "r")));
    for (last, all_up, up_to_b, up_to_a) in
        [(None, "a b c", "a b", "a"), (Some(at("a")), "b c", "b", "b c r")]
    {
        let (nodes, _events) = nodes(&["a"]);
        assert_eq!(nodes.another_pubsub_node(), None);
        nodes.install(&topology("a b c", "r"));
        assert!(nodes.wait_connected().await.unwrap().is_none());
        last.into_iter().for_each(|last| nodes.set_pubsub_node(last));
        assert_eq!(choices(&nodes), all_up);
        // The tasks of the nodes do not run in between: nothing is awaited.
        let down = |host: &str| {
            let node = nodes.at(at(host)).unwrap();
            node.server.slot().state.send_replace(State::Down { attempt: 1, failed: None });
        };
        down("c");
        assert_eq!(choices(&nodes), up_to_b);
        down("b");
        assert_eq!(choices(&nodes), up_to_a);
        nodes.install(&topology("a", ""));
        assert_eq!(choices(&nodes), "a", "there is no other");
        nodes.close();
    }
}

#[tokio::test(start_paused = true)]
async fn the_node_is_left_when_it_fails_or_is_no_part_of_the_cluster_any_more() {
    let [_a, _b] = ["a", "b"].map(|host| node(host, slots("a b", "")));
    let (nodes, _events) = nodes(&["a"]);
    nodes.install(&topology("a b", ""));
    assert!(nodes.wait_connected().await.unwrap().is_none());
    let (target, failures) = (watch::Sender::new(None), watch::Sender::new(0));
    let mut targets = target.subscribe();
    let task = tokio::spawn(choose_pubsub_node(nodes.clone(), target, failures.subscribe()));
    let mut next = async || {
        timeout(SECOND, targets.changed()).await.ok()?.unwrap();
        let address = targets.borrow_and_update().as_ref().unwrap().address.to_string();
        assert_eq!(nodes.pubsub_node().unwrap().to_string(), address);
        Some(address)
    };
    let mut last = next().await.expect("none is chosen");
    for _ in 0..3 {
        let other = if last == "a:1" { "b:1" } else { "a:1" };
        failures.send_modify(|failures| *failures += 1);
        last = next().await.expect("a node that fails was not replaced");
        assert_eq!(last, other);
        // The topology is reported again, with the same nodes.
        nodes.install(&topology("a b", ""));
        assert_eq!(next().await, None);
    }
    let (left, other) = if last == "a:1" { ("b", "b:1") } else { ("a", "a:1") };
    nodes.install(&topology(left, ""));
    assert_eq!(next().await.as_deref(), Some(other));
    drop(failures);
    timeout(SECOND, task).await.expect("it ends with the subscriber").unwrap();
    sleep(SECOND).await;
    nodes.close();
}
