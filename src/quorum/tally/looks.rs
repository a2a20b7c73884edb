//! The part of a tally that decides whether a lock is held, by whom, and when a majority may be free.

use std::time::Duration;

use super::{Tally, Verdict};
use crate::base::MasterSet;
use crate::holder::Holder;
use crate::wire::Reply;

/// Returns whether two answers may be about the same hold. They may differ somewhat, since the masters were not asked at the same
/// instant, and a renewal reaches one before the other.
fn is_same(earliest: Duration, latest: Duration) -> bool {
    const LEAST: Duration = Duration::from_millis(10);
    latest.saturating_sub(earliest) <= LEAST.max(latest / 100)
}

impl Tally {
    /// Decides by a majority whether the lock is held. `held_for` decides how long it stays held.
    pub(super) fn is_held(&self) -> Option<Verdict> {
        let reply = Reply::busy(self.latest(self.free).unwrap_or_default());
        if self.is_majority(self.busy) {
            return Some(self.with_reply(reply));
        }
        self.once_all_answered(reply)
    }

    /// Decides for how long the lock is held, once the answers still to come can hardly change it. Without waiting for them: 1. A
    /// holds n1 and n2 for 20 s, and n3 has a foreign field for 600 s. 2. n1 and n3 answer first. 3. 600 s are reported, although n1 and
    /// n2 may be free after 20 s.
    pub(super) fn held_for(&self) -> Option<Verdict> {
        match (self.earliest(self.free), self.latest(self.free)) {
            (Some(earliest), Some(latest)) if is_same(earliest, latest) => {
                Some(self.with_reply(Reply::busy(latest)))
            }
            (_, latest) => self.once_all_answered(Reply::busy(latest.unwrap_or_default())),
        }
    }

    /// Decides whose hold it is. A field on a minority is no hold: if no field has a majority, the lock may be refused to others
    /// although nobody holds it.
    pub(super) fn who(&self) -> Option<Verdict> {
        match self.holder() {
            Some(holder) => Some(self.with_reply(Reply::held_by(holder))),
            None => self.once_all_answered(Reply::Free),
        }
    }

    /// Returns the hold whose field a majority has, with the highest count and the longest lease that a majority of all masters has too.
    pub(super) fn holder(&self) -> Option<Holder> {
        let same =
            |one: &Holder| self.holders.iter().filter(|other| other.hold_id() == one.hold_id()).collect();
        let holders = self.holders.iter().map(|one| -> (_, Vec<&Holder>) { (one, same(one)) });
        let (holder, same) = holders.into_iter().find(|(_, same)| same.len() >= self.majority)?;
        let mut counts: Vec<_> = same.iter().map(|one| one.count()).collect();
        let mut leases: Vec<_> = same.iter().map(|one| one.remaining_lease()).collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        leases.sort_unstable_by(|one, other| other.cmp(one));
        Some(holder.with(*counts.get(self.majority - 1)?, *leases.get(self.majority - 1)?))
    }

    /// Returns when a majority is free at the latest, assuming that no master that is still to answer, or has failed, is free.
    /// `have`: the masters that are free now. Returns `None` if there are not enough others.
    fn latest(&self, have: MasterSet) -> Option<Duration> {
        let mut ttls = self.ttls.clone();
        ttls.sort_unstable();
        match self.majority.saturating_sub(have.len()) {
            0 => Some(Duration::ZERO),
            wanted => ttls.get(wanted - 1).copied(),
        }
    }

    /// Returns when a majority is free at the earliest, assuming that all masters that are still to answer are free now.
    fn earliest(&self, have: MasterSet) -> Option<Duration> {
        self.latest(have.union(self.pending))
    }

    /// Returns when a refused request should ask again. No further answer is waited for: masters that have not answered count as free if
    /// that may change the time. Asking too early costs a round trip; asking too late leaves a free lock idle.
    pub(super) fn again(&self) -> Duration {
        match (self.earliest(self.done), self.latest(self.done)) {
            (Some(earliest), Some(latest)) if is_same(earliest, latest) => latest,
            (Some(earliest), _) => earliest,
            // One of the masters has something other than a lock.
            (None, _) => self.ttls.iter().max().copied().unwrap_or_default(),
        }
    }
}
