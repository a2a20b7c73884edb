//! Of a tally: whether a lock is held, and when a majority may be had.

use std::time::Duration;

use super::{Tally, Verdict};
use crate::base::MasterSet;
use crate::wire::Reply;

/// What masters answer for one and the same hold may differ by as much as this: they were not asked in the same instant, and a
/// renewal reaches one before the other.
fn is_same(earliest: Duration, latest: Duration) -> bool {
    const LEAST: Duration = Duration::from_millis(10);
    latest.saturating_sub(earliest) <= LEAST.max(latest / 100)
}

impl Tally {
    /// By a majority alone: how long it stays held is another rule.
    pub(super) fn look(&self) -> Option<Verdict> {
        if self.is_majority(self.free) {
            return Some(self.told(Reply::Free));
        }
        let reply = Reply::Busy(self.latest(self.free).unwrap_or_default());
        if self.is_majority(self.busy) {
            return Some(self.told(reply));
        }
        self.looked(|_| reply)
    }

    /// For how long, once whoever is still to answer can hardly change it: 1. A holds n1 and n2 for 20 s, n3 has a foreign field
    /// for 600 s. 2. n1 and n3 answer first. 3. Told now, it would be 600 s: n2 is waited for.
    pub(super) fn left(&self) -> Option<Verdict> {
        if self.is_majority(self.free) {
            return Some(self.told(Reply::Free));
        }
        match (self.earliest(self.free), self.latest(self.free)) {
            (Some(earliest), Some(latest)) if is_same(earliest, latest) => {
                Some(self.told(Reply::Busy(latest)))
            }
            (_, latest) => self.looked(|_| Reply::Busy(latest.unwrap_or_default())),
        }
    }

    /// When a majority may be had, if whoever is still to answer says that it never may be: one that failed is not counted on
    /// either. `have`: masters that may be had now. `None`: there are not enough others.
    fn latest(&self, have: MasterSet) -> Option<Duration> {
        let mut left = self.left.clone();
        left.sort_unstable();
        match self.majority.saturating_sub(have.len()) {
            0 => Some(Duration::ZERO),
            wanted => left.get(wanted - 1).copied(),
        }
    }

    /// The same, if whoever is still to answer may be had now.
    fn earliest(&self, have: MasterSet) -> Option<Duration> {
        self.latest(have.union(self.pending))
    }

    /// When a refused request does well to ask again. Nobody is waited for to say it: where those who have not answered may
    /// change it, as if they were free. Asked too early it costs a round trip; too late, a free lock stands idle.
    pub(super) fn again(&self) -> Duration {
        match (self.earliest(self.done), self.latest(self.done)) {
            (Some(earliest), Some(latest)) if is_same(earliest, latest) => latest,
            (Some(earliest), _) => earliest,
            // Something else than a lock is in the way on one of them.
            (None, _) => self.left.iter().max().copied().unwrap_or_default(),
        }
    }
}
