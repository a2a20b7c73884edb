use tokio::time::sleep;

use super::*;
use crate::backend::cluster::testing::{at, node, nodes, reports, slots};
use crate::backend::testing::fakes::{FakeServer, usual};
use crate::base::Lease;
use crate::error::ErrorKind;
use crate::wire::{Action, Call};

const SECOND: Duration = Duration::from_secs(1);

/// Starts a seed that hangs when it is queried.
fn hangs(host: &str) -> FakeServer {
    FakeServer::start(host, |words| if words == ["CLUSTER", "SLOTS"] { None } else { usual(words) })
}

fn grants(nodes: &Nodes) -> bool {
    nodes.identity.permit(&Call::of("k", "f", Action::Acquire { count: 1, lease: Lease::DEFAULT })).is_ok()
}

#[tokio::test(start_paused = true)]
async fn seeds_of_two_clusters_are_rejected_also_if_one_of_them_answers_a_little_later() {
    let [_a, _b] = ["a", "b"].map(|host| node(host, slots("a b", "")));
    let _x = node("x", slots("x", ""));
    assert!(nodes(&["a", "b"]).0.first_topology().await.is_ok());
    let error = nodes(&["a", "b", "x"]).0.first_topology().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let late = hangs("late");
    tokio::spawn(async move {
        sleep(GRACE / 2).await;
        late.send(&slots("x", ""));
    });
    let error = nodes(&["a", "late"]).0.first_topology().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_seed_that_is_seen_to_be_of_the_cluster_has_not_to_answer() {
    // Under its other name, the node is in no topology.
    let [_a, _alias] = ["a", "alias"].map(|host| node(host, slots("a b", "r")));
    let [_b, _r, late] = ["b", "r", "late"].map(hangs);
    let (nodes, _events) = nodes(&["a", "alias", "b", "r", "late"]);
    nodes.install(&nodes.first_topology().await.unwrap());
    assert_eq!(nodes.identity.unconfirmed_seeds(), [at("late")]);
    nodes.query_late_seeds().await;
    assert_eq!(nodes.identity.unconfirmed_seeds(), [at("late")]);
    late.answers(reports(slots("a b", "r")));
    nodes.query_late_seeds().await;
    assert_eq!(nodes.identity.unconfirmed_seeds(), []);
    assert!(grants(&nodes));
    nodes.close();
}

#[tokio::test(start_paused = true)]
async fn a_late_seed_of_another_cluster_stops_grants_unless_most_seeds_are_of_this_one() {
    for (seeds, granted) in [(&["a", "late"][..], false), (&["a", "b", "late"], true)] {
        let [_a, _b] = ["a", "b"].map(|host| node(host, slots("a b", "")));
        let late = hangs("late");
        let (nodes, _events) = nodes(seeds);
        let begun = Instant::now();
        nodes.install(&nodes.first_topology().await.unwrap());
        assert!(begun.elapsed() < 2 * SECOND);
        assert!(grants(&nodes));
        late.answers(reports(slots("x", "")));
        nodes.query_late_seeds().await;
        assert_eq!(grants(&nodes), granted, "{seeds:?}");
        late.answers(reports(slots("a b", "")));
        nodes.query_late_seeds().await;
        assert!(grants(&nodes), "it is a node of this cluster now");
        assert_eq!(nodes.identity.unconfirmed_seeds(), []);
        nodes.close();
    }
}

#[tokio::test(start_paused = true)]
async fn grants_go_on_once_most_seeds_are_of_this_cluster_though_one_of_another_answered_before() {
    let _a = node("a", slots("a b", ""));
    let [alias, late] = ["alias", "late"].map(hangs);
    let (nodes, _events) = nodes(&["a", "alias", "late"]);
    nodes.install(&nodes.first_topology().await.unwrap());
    late.answers(reports(slots("x", "")));
    nodes.query_late_seeds().await;
    assert!(!grants(&nodes));
    nodes.query_late_seeds().await;
    assert!(!grants(&nodes), "nothing has changed");
    alias.answers(reports(slots("a b", "")));
    nodes.query_late_seeds().await;
    assert!(grants(&nodes));
    nodes.close();
}
