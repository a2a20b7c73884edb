//! Which cluster it is: the ids of its nodes tell it from any other that answers at one of its addresses.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::cluster::slots::NodeAddress;
use crate::base::{Failure, Outcome, lock};
use crate::error::Error;
use crate::wire::Call;

/// A cluster that nobody answers for is taken for gone after the longest lease that was asked for, within these bounds.
const GONE_AFTER: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// The ids of a cluster's nodes, as one of them gives them.
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

    /// The master of the first slot that is served.
    pub(super) fn set_first(&mut self, id: &str) {
        self.first = Some(id.into());
    }

    /// How many nodes both know.
    pub(super) fn shared(&self, other: &Ids) -> usize {
        self.all.intersection(&other.all).count()
    }

    /// Whether another view is certainly one of this cluster: it knows more than half of these nodes, which no view of
    /// another cluster does beside it. Or exactly half, with the master of the first slot and nobody else: so a master whose
    /// only replica has failed, which it does not name any more, goes on. A server that gives no ids can't be told from any other.
    pub(super) fn vouch_for(&self, other: &Ids) -> bool {
        let (twice, count) = (2 * self.shared(other), self.all.len());
        let has_first = || self.first.as_ref().is_some_and(|first| other.all.contains(first));
        count == 0 || twice > count || twice == count && has_first() && self.includes(other)
    }

    /// Whether the other one has no node that this one lacks.
    pub(super) fn includes(&self, other: &Ids) -> bool {
        other.all.is_subset(&self.all)
    }

    /// Whether both may be of one cluster.
    pub(super) fn meet(&self, other: &Ids) -> bool {
        self.all.is_empty() || other.all.is_empty() || self.shared(other) > 0
    }
}

/// What is known of the cluster's identity.
#[derive(Default)]
pub(super) struct Identity {
    state: Mutex<State>,
    /// The longest lease that was asked for, in milliseconds.
    longest: AtomicU64,
    /// Why nothing is granted any more.
    contested: OnceLock<Error>,
}

#[derive(Default)]
struct State {
    /// `None` until a node has answered.
    ids: Option<Ids>,
    /// Since when no view has vouched for it.
    missing: Option<Instant>,
    /// Seeds that have not answered yet.
    unheard: Vec<NodeAddress>,
    /// How many answered as nodes of another cluster.
    foreign: usize,
    /// Addresses that were reported to be another cluster's.
    reported: BTreeSet<Arc<str>>,
}

impl Identity {
    pub(super) fn ids(&self) -> Option<Ids> {
        lock(&self.state).ids.clone()
    }

    /// Whether a connection to a node that knows these may be used.
    pub(super) fn admits(&self, ids: &Ids) -> bool {
        let mut state = lock(&self.state);
        let admits = state.ids.as_ref().is_none_or(|known| known.vouch_for(ids));
        if admits {
            state.missing = None;
        }
        admits
    }

    /// Its nodes are these from now on. Whether it may be another cluster than before.
    pub(super) fn install(&self, ids: &Ids) -> bool {
        let mut state = lock(&self.state);
        let other = state.ids.as_ref().is_some_and(|known| !known.vouch_for(ids));
        state.ids = Some(ids.clone());
        state.missing = None;
        other
    }

    /// No view vouches for it. Whether that has been so for as long as one of its nodes may keep a lock that it granted.
    /// Only a view that vouches ends that time, or one that was taken at its end.
    pub(super) fn is_gone(&self) -> bool {
        let now = Instant::now();
        let since = *lock(&self.state).missing.get_or_insert(now);
        let longest = Duration::from_millis(self.longest.load(Ordering::Relaxed));
        now.saturating_duration_since(since) >= longest.clamp(GONE_AFTER.0, GONE_AFTER.1)
    }

    pub(super) fn set_unheard(&self, seeds: Vec<NodeAddress>) {
        lock(&self.state).unheard = seeds;
    }

    pub(super) fn unheard(&self) -> Vec<NodeAddress> {
        lock(&self.state).unheard.clone()
    }

    /// A seed has answered. Whether it is a node of this cluster, as far as can be told.
    pub(super) fn heard(&self, seed: &NodeAddress, ids: &Ids) -> bool {
        let mut state = lock(&self.state);
        state.unheard.retain(|unheard| unheard != seed);
        let ours = state.ids.as_ref().is_none_or(|known| known.meet(ids));
        state.foreign += usize::from(!ours);
        ours
    }

    /// Whether most seeds are nodes of this cluster, by their answer or because it names them.
    pub(super) fn has_most(&self, seeds: usize) -> bool {
        let state = lock(&self.state);
        2 * (state.unheard.len() + state.foreign) < seeds
    }

    /// Whether that is to be reported: once for each address.
    pub(super) fn is_news(&self, address: &Arc<str>) -> bool {
        lock(&self.state).reported.insert(address.clone())
    }

    /// Nobody can tell which of two clusters is meant: nothing is granted from now on, in either.
    pub(super) fn contest(&self, error: Error) {
        let _ = self.contested.set(error);
    }

    /// Whether the call may be sent. What is held is renewed and released in any case.
    pub(super) fn permits(&self, call: &Call) -> Result<(), Failure> {
        if let Call::Acquire { lease, .. } | Call::Renew { lease, .. } | Call::Settle { lease, .. } = call {
            self.longest.fetch_max(lease.millis(), Ordering::Relaxed);
        }
        match self.contested.get() {
            Some(error) if matches!(call, Call::Acquire { count: 1, .. }) => {
                Err(Failure { outcome: Outcome::NotRun, error: error.again() })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(all: &str) -> Ids {
        let mut ids = Ids::default();
        all.split(' ').filter(|id| !id.is_empty()).for_each(|id| ids.add(id));
        ids
    }

    #[test]
    fn a_view_that_knows_most_of_the_nodes_is_one_of_their_cluster() {
        let known = ids("a b c");
        for same in ["a b c", "a b", "b c d e f g"] {
            assert!(known.vouch_for(&ids(same)), "{same}");
        }
        // A node that was taken out and given to another cluster keeps its id.
        for doubtful in ["a", "a x y z"] {
            assert!(!known.vouch_for(&ids(doubtful)) && known.meet(&ids(doubtful)), "{doubtful}");
        }
        for other in ["x", "x y z"] {
            assert!(!known.vouch_for(&ids(other)) && !known.meet(&ids(other)), "{other}");
        }
        // Half of them: one half only, and only where no other cluster can have it.
        let mut pair = ids("m r");
        pair.set_first("m");
        assert!(pair.vouch_for(&ids("m")) && !pair.vouch_for(&ids("r")));
        assert!(!pair.vouch_for(&ids("m x")) && !pair.vouch_for(&ids("r x")));
        // Without any id nothing can be told.
        assert!(ids("").vouch_for(&known) && ids("").meet(&known) && known.meet(&ids("")));
        assert!(!known.vouch_for(&ids("")));
    }

    #[test]
    fn nodes_that_are_replaced_one_after_the_other_are_one_cluster_throughout() {
        let identity = Identity::default();
        assert!(identity.admits(&ids("x")) && !identity.install(&ids("a b c")));
        for next in ["a b d", "b d e", "d e f"] {
            assert!(identity.admits(&ids(next)) && !identity.install(&ids(next)), "{next}");
        }
        assert!(!identity.admits(&ids("a b c")));
        assert!(identity.install(&ids("a b c")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_is_gone_when_nobody_answered_for_the_longest_lease() {
        use crate::base::{Drift, Lease};
        let identity = Identity::default();
        let drift = Drift { factor: 0.0, slack: Duration::ZERO };
        let lease = Lease::new("lease", Duration::from_secs(30), drift).unwrap();
        let call = Call::Acquire { key: "k".into(), field: "f".into(), count: 1, lease, fence: None };
        identity.permits(&call).unwrap();
        identity.install(&ids("a"));
        assert!(!identity.is_gone());
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(!identity.is_gone());
        assert!(!identity.admits(&ids("x")));
        tokio::time::advance(Duration::from_millis(900)).await;
        assert!(!identity.is_gone() && identity.admits(&ids("a")));
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(!identity.is_gone());
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(identity.is_gone());
    }
}
