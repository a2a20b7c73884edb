//! The identity of a cluster: the ids of its nodes, which distinguish it from any other that answers at one of its addresses.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::cluster::slots::NodeAddress;
use crate::base::{Failure, Outcome, lock};
use crate::error::Error;
use crate::wire::Call;

/// A cluster counts as gone once none of its nodes has answered for the longest lease that was requested, within these bounds.
const GONE_AFTER: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// The ids of a cluster's nodes, as one of the nodes reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ids {
    all: BTreeSet<Arc<str>>,
    /// The master of the first slot.
    first: Option<Arc<str>>,
}

impl Ids {
    pub(super) fn add(&mut self, id: &str) {
        self.all.insert(id.into());
    }

    /// Sets the master of the first slot that is served.
    pub(super) fn set_first(&mut self, id: &str) {
        self.first = Some(id.into());
    }

    /// Returns how many nodes both know.
    pub(super) fn shared(&self, other: &Ids) -> usize {
        self.all.intersection(&other.all).count()
    }

    /// Returns whether the other ids certainly belong to this cluster: they include more than half of these, which those of another
    /// cluster can't do at the same time. Exactly half is enough if they have the master of the first slot and no unknown node: so a
    /// master is still recognized after its only replica has failed, which it does not report any more. Without ids all clusters look
    /// alike, so any are recognized.
    pub(super) fn recognizes(&self, other: &Ids) -> bool {
        let (twice, count) = (2 * self.shared(other), self.all.len());
        let has_first = || self.first.as_ref().is_some_and(|first| other.all.contains(first));
        count == 0 || twice > count || twice == count && has_first() && self.includes(other)
    }

    /// Returns whether all other ids are among these.
    pub(super) fn includes(&self, other: &Ids) -> bool {
        other.all.is_subset(&self.all)
    }

    /// Returns whether both may be ids of one cluster.
    pub(super) fn may_be_one_cluster(&self, other: &Ids) -> bool {
        self.all.is_empty() || other.all.is_empty() || self.shared(other) > 0
    }
}

/// What is known about the cluster's identity.
#[derive(Default)]
pub(super) struct Identity {
    state: Mutex<State>,
    /// The longest lease that was requested, in milliseconds.
    longest: AtomicU64,
    /// If set, no more locks are granted, for this reason.
    blocked: OnceLock<Error>,
}

#[derive(Default)]
struct State {
    /// The ids, or `None` until a node has answered.
    ids: Option<Ids>,
    /// Since when no recognized topology was reported.
    missing: Option<Instant>,
    /// Seeds that have not answered yet.
    unanswered_seeds: Vec<NodeAddress>,
    /// How many seeds are nodes of another cluster.
    foreign: usize,
    /// Addresses that were reported to belong to another cluster.
    reported: BTreeSet<Arc<str>>,
}

impl Identity {
    pub(super) fn ids(&self) -> Option<Ids> {
        lock(&self.state).ids.clone()
    }

    /// Returns whether a connection to a node that reports these ids may be used.
    pub(super) fn accepts(&self, ids: &Ids) -> bool {
        let mut state = lock(&self.state);
        let accepts = state.ids.as_ref().is_none_or(|known| known.recognizes(ids));
        if accepts {
            state.missing = None;
        }
        accepts
    }

    /// Returns whether ids that are not recognized may still be this cluster's: all of them are known, so nothing points to another
    /// cluster.
    pub(super) fn may_show_few(&self, ids: &Ids) -> bool {
        let state = lock(&self.state);
        state.ids.as_ref().is_some_and(|known| known.shared(ids) > 0 && known.includes(ids))
    }

    /// Replaces the ids. Returns whether they may be those of another cluster than before.
    pub(super) fn install(&self, ids: &Ids) -> bool {
        let mut state = lock(&self.state);
        let other = state.ids.as_ref().is_some_and(|known| !known.recognizes(ids));
        state.ids = Some(ids.clone());
        state.missing = None;
        other
    }

    /// Called when no recognized topology was reported. Returns whether that has lasted as long as one of the nodes may keep a lock
    /// that it granted. Only a recognized topology ends that time, or one that was installed after it.
    pub(super) fn is_gone(&self) -> bool {
        let now = Instant::now();
        let since = *lock(&self.state).missing.get_or_insert(now);
        let longest = Duration::from_millis(self.longest.load(Ordering::Relaxed));
        now.saturating_duration_since(since) >= longest.clamp(GONE_AFTER.0, GONE_AFTER.1)
    }

    pub(super) fn set_unanswered_seeds(&self, seeds: Vec<NodeAddress>) {
        lock(&self.state).unanswered_seeds = seeds;
    }

    pub(super) fn unanswered_seeds(&self) -> Vec<NodeAddress> {
        lock(&self.state).unanswered_seeds.clone()
    }

    /// Called when a seed has answered. Returns whether it may be a node of this cluster.
    pub(super) fn seed_answered(&self, seed: &NodeAddress, ids: &Ids) -> bool {
        let mut state = lock(&self.state);
        state.unanswered_seeds.retain(|other| other != seed);
        let ours = state.ids.as_ref().is_none_or(|known| known.may_be_one_cluster(ids));
        state.foreign += usize::from(!ours);
        ours
    }

    /// Returns whether a majority of the seeds are nodes of this cluster, by their answers or by its topology.
    pub(super) fn has_most_seeds(&self, seeds: usize) -> bool {
        let state = lock(&self.state);
        2 * (state.unanswered_seeds.len() + state.foreign) < seeds
    }

    /// Returns true at the first call for each address.
    pub(super) fn report_once(&self, address: &Arc<str>) -> bool {
        lock(&self.state).reported.insert(address.clone())
    }

    /// Stops granting locks: it is ambiguous which of two clusters is meant.
    pub(super) fn block_grants(&self, error: Error) {
        let _ = self.blocked.set(error);
    }

    /// Fails if the call must not be sent. Holds are renewed and released in any case.
    pub(super) fn permit(&self, call: &Call) -> Result<(), Failure> {
        if let Some(lease) = call.action.lease() {
            self.longest.fetch_max(lease.millis(), Ordering::Relaxed);
        }
        match self.blocked.get() {
            Some(error) if call.action.begins() => {
                Err(Failure { outcome: Outcome::NotRun, error: error.again() })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            assert!(
                !known.recognizes(&ids(doubtful)) && known.may_be_one_cluster(&ids(doubtful)),
                "{doubtful}"
            );
        }
        for other in ["x", "x y z"] {
            assert!(!known.recognizes(&ids(other)) && !known.may_be_one_cluster(&ids(other)), "{other}");
        }
        // Half of them suffices only for the half that no other cluster can have at the same time.
        let mut pair = ids("m r");
        pair.set_first("m");
        assert!(pair.recognizes(&ids("m")) && !pair.recognizes(&ids("r")));
        assert!(!pair.recognizes(&ids("m x")) && !pair.recognizes(&ids("r x")));
        // Without ids all clusters look alike.
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
        identity.set_unanswered_seeds(seeds.clone());
        let expect = |missing: usize| {
            for count in 0..12 {
                assert_eq!(identity.has_most_seeds(count), 2 * missing < count, "{missing} {count}");
            }
        };
        expect(5);
        for (answer, ours, missing) in
            [("a b c", true, 4), ("a x", true, 3), ("x y", false, 3), ("", true, 2), ("x", false, 2)]
        {
            assert_eq!(identity.unanswered_seeds(), seeds);
            assert_eq!(identity.seed_answered(&seeds.remove(0), &ids(answer)), ours, "{answer}");
            expect(missing);
        }
        assert_eq!(identity.unanswered_seeds(), []);
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
        identity.block_grants(Error::new(ErrorKind::Config, "of two clusters"));
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
        let identity = Identity::default();
        let [one, two] = ["host:1", "host:2"].map(Arc::from);
        assert_eq!(
            [&one, &two, &one, &two].map(|address| identity.report_once(address)),
            [true, true, false, false]
        );
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
}
