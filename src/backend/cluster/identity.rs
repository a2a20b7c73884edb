//! The identity of a cluster: the ids of its nodes, which distinguish it from any other that answers at one of its addresses.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::cluster::slots::NodeAddress;
use crate::base::{Failure, lock};
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

    /// Returns whether the other ids certainly belong to this cluster: they include more than half of this cluster's, which no two
    /// clusters can do at the same time. Exactly half is enough if it includes the master of the first slot and no unknown node: so a
    /// master is still recognized after its only replica has failed and is no longer reported. If these ids are empty, any others are
    /// recognized.
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
}

#[derive(Default)]
struct State {
    /// The ids, or `None` until a node has answered.
    ids: Option<Ids>,
    /// Since when no recognized topology was reported.
    missing: Option<Instant>,
    /// Seeds that are not known to be nodes of this cluster: they have not answered yet, or were nodes of another one, which may have
    /// changed since.
    unconfirmed_seeds: Vec<NodeAddress>,
    /// Addresses that were reported to belong to another cluster.
    reported: BTreeSet<Arc<str>>,
    /// The longest lease that was requested.
    longest: Duration,
    /// While set, no locks are granted, for this reason.
    blocked: Option<Error>,
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

    /// Returns whether ids that are not recognized may still be this cluster's, since all of them are known and nothing points to
    /// another cluster.
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
    /// that it granted. That time ends only when a recognized topology is reported or another one is installed.
    pub(super) fn is_gone(&self) -> bool {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let since = *state.missing.get_or_insert(now);
        now.saturating_duration_since(since) >= state.longest.clamp(GONE_AFTER.0, GONE_AFTER.1)
    }

    pub(super) fn set_unconfirmed_seeds(&self, seeds: Vec<NodeAddress>) {
        lock(&self.state).unconfirmed_seeds = seeds;
    }

    pub(super) fn unconfirmed_seeds(&self) -> Vec<NodeAddress> {
        lock(&self.state).unconfirmed_seeds.clone()
    }

    /// Called when a seed has answered. Returns whether it may be a node of this cluster.
    pub(super) fn seed_answered(&self, seed: &NodeAddress, ids: &Ids) -> bool {
        let mut state = lock(&self.state);
        let ours = state.ids.as_ref().is_none_or(|known| known.may_be_one_cluster(ids));
        if ours {
            state.unconfirmed_seeds.retain(|other| other != seed);
        }
        ours
    }

    /// Returns whether a majority of the seeds are nodes of this cluster, by their answers or by its topology.
    pub(super) fn has_most_seeds(&self, seeds: usize) -> bool {
        2 * lock(&self.state).unconfirmed_seeds.len() < seeds
    }

    /// Reports by `log` that a node of another cluster answers at this address, once for each address.
    pub(super) fn report_stranger(&self, address: &Arc<str>, log: fn(&str)) {
        if lock(&self.state).reported.insert(address.clone()) {
            log(address);
        }
    }

    /// Stops granting locks if there is an error, since it is ambiguous which of two clusters is meant. `None` grants them again.
    pub(super) fn block_grants(&self, error: Option<Error>) {
        lock(&self.state).blocked = error;
    }

    /// Fails if the call must not be sent. Holds are renewed and released in any case.
    pub(super) fn permit(&self, call: &Call) -> Result<(), Failure> {
        let mut state = lock(&self.state);
        if let Some(lease) = call.action.lease() {
            state.longest = state.longest.max(lease.duration());
        }
        match &state.blocked {
            Some(error) if call.action.begins() => Err(Failure::not_run(error.clone())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
