use super::*;
use crate::base::Outcome;
use crate::base::telemetry::{self, testing::Recorder};
use crate::wire::Action;

fn ids(all: &str) -> Ids {
    let mut ids = Ids::default();
    all.split(' ').filter(|id| !id.is_empty()).for_each(|id| ids.add(id));
    ids
}

#[test]
fn ids_that_include_most_of_the_nodes_are_of_their_cluster() {
    let known = ids("a b c");
    for same in ["a b c", "a b", "b c d e f g"] {
        assert!(known.recognizes(&ids(same)), "{same}");
    }
    // A node that was removed and added to another cluster keeps its id.
    for doubtful in ["a", "a x y z"] {
        assert!(!known.recognizes(&ids(doubtful)) && known.may_be_one_cluster(&ids(doubtful)), "{doubtful}");
    }
    for other in ["x", "x y z"] {
        assert!(!known.recognizes(&ids(other)) && !known.may_be_one_cluster(&ids(other)), "{other}");
    }
    // Half of the ids suffices only if it is the half that no other cluster can have at the same time.
    let mut pair = ids("m r");
    pair.set_first("m");
    assert!(pair.recognizes(&ids("m")) && !pair.recognizes(&ids("r")));
    assert!(!pair.recognizes(&ids("m x")) && !pair.recognizes(&ids("r x")));
    // Without ids, all clusters look alike.
    assert!(
        ids("").recognizes(&known)
            && ids("").may_be_one_cluster(&known)
            && known.may_be_one_cluster(&ids(""))
    );
    assert!(!known.recognizes(&ids("")));
}

#[test]
fn nodes_that_are_replaced_one_after_the_other_are_one_cluster_throughout() {
    let identity = Identity::default();
    assert!(identity.accepts(&ids("x")) && !identity.install(&ids("a b c")));
    for next in ["a b d", "b d e", "d e f"] {
        assert!(identity.accepts(&ids(next)) && !identity.install(&ids(next)), "{next}");
    }
    assert!(!identity.accepts(&ids("a b c")));
    assert!(identity.install(&ids("a b c")));
}

#[test]
fn a_majority_of_the_seeds_has_to_be_of_the_cluster() {
    let (identity, mut seeds) = (Identity::default(), Vec::new());
    seeds.extend((1..=5).map(|port| NodeAddress { host: "host".into(), port }));
    assert_eq!(identity.ids(), None);
    identity.install(&ids("a b c"));
    assert_eq!(identity.ids(), Some(ids("a b c")));
    identity.set_unconfirmed_seeds(seeds.clone());
    let expect = |missing: usize| {
        for count in 0..12 {
            assert_eq!(identity.has_most_seeds(count), 2 * missing < count, "{missing} {count}");
        }
    };
    expect(5);
    let answers = [("a b c", true), ("a x", true), ("x y", false), ("", true), ("x", false)];
    for (seed, (answer, ours)) in seeds.clone().into_iter().zip(answers) {
        assert_eq!(identity.seed_answered(&seed, &ids(answer)), ours, "{answer}");
        seeds.retain(|other| !ours || *other != seed);
        assert_eq!(identity.unconfirmed_seeds(), seeds);
        expect(seeds.len());
    }
    // A seed of another cluster may have moved to this one since.
    assert!(identity.seed_answered(&seeds.remove(0), &ids("a b c")));
    expect(1);
}

#[test]
fn where_two_clusters_may_be_meant_only_what_is_held_goes_on() {
    use crate::base::{Drift, Lease};
    use crate::error::ErrorKind;
    let identity = Identity::default();
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    let lease = Lease::new("lease", Duration::from_secs(30), drift).unwrap();
    let permitted = |action| identity.permit(&Call::of("k", "f", action));
    let acquire = |count| Action::Acquire { count, lease };
    permitted(acquire(1)).unwrap();
    identity.block_grants(Some(Error::new(ErrorKind::Config, "of two clusters")));
    for begins in [acquire(1), Action::Move { lease }] {
        let failure = permitted(begins).unwrap_err();
        assert_eq!((failure.outcome, failure.error.kind()), (Outcome::NotRun, ErrorKind::Config));
    }
    for action in [acquire(2), Action::Renew { lease }, Action::END, Action::Look] {
        permitted(action).unwrap();
    }
}

#[test]
fn an_address_of_another_cluster_is_reported_once() {
    let (log, identity) = (Recorder::start(), Identity::default());
    for (address, logged) in [("host:1", 1), ("host:2", 2), ("host:1", 2), ("host:2", 2)] {
        identity.report_stranger(&address.into(), telemetry::stranger);
        assert_eq!(log.count("a node of another cluster"), logged);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_is_gone_when_no_node_answered_for_the_longest_lease() {
    use crate::base::{Drift, Lease};
    let identity = Identity::default();
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    let lease = Lease::new("lease", Duration::from_secs(30), drift).unwrap();
    let call = Call::of("k", "f", Action::Acquire { count: 1, lease });
    identity.permit(&call).unwrap();
    identity.install(&ids("a"));
    assert!(!identity.is_gone());
    tokio::time::advance(Duration::from_secs(29)).await;
    assert!(!identity.is_gone());
    assert!(!identity.accepts(&ids("x")));
    tokio::time::advance(Duration::from_millis(900)).await;
    assert!(!identity.is_gone() && identity.accepts(&ids("a")));
    tokio::time::advance(Duration::from_secs(29)).await;
    assert!(!identity.is_gone());
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(identity.is_gone());
}
