//! `MasterSet`: a set of masters.

use std::iter;

/// Masters by their index, in the order in which they were configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MasterSet(u64);

impl MasterSet {
    pub(crate) const NONE: MasterSet = MasterSet(0);
    pub(crate) const ALL: MasterSet = MasterSet(u64::MAX);
    /// The largest number of masters. Far fewer are useful, since each command goes to all of them.
    pub(crate) const MOST: usize = 63;

    pub(crate) fn first(count: usize) -> MasterSet {
        MasterSet((1 << count.min(MasterSet::MOST)) - 1)
    }

    pub(crate) fn one(master: usize) -> MasterSet {
        MasterSet(1 << master.min(MasterSet::MOST))
    }

    pub(crate) fn insert(&mut self, master: usize) {
        *self = self.union(MasterSet::one(master));
    }

    pub(crate) fn remove(&mut self, master: usize) {
        *self = self.without(MasterSet::one(master));
    }

    pub(crate) fn contains(self, master: usize) -> bool {
        self.0 & MasterSet::one(master).0 != 0
    }

    #[must_use]
    pub(crate) fn union(self, others: MasterSet) -> MasterSet {
        MasterSet(self.0 | others.0)
    }

    /// Returns the intersection.
    #[must_use]
    pub(crate) fn within(self, others: MasterSet) -> MasterSet {
        MasterSet(self.0 & others.0)
    }

    /// Returns the difference.
    #[must_use]
    pub(crate) fn without(self, others: MasterSet) -> MasterSet {
        MasterSet(self.0 & !others.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        // Runs for each release: a loop over all 64 bits would cost more than everything else here.
        iter::from_fn(move || {
            let master = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            Some(master)
        })
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// How the masters differ after a command of a hold. If there is a single master, it can be only in `remains`, `missing` and `given_up`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Masters that lack the field of a live hold: it has to be written to them.
    pub(crate) lacking: MasterSet,
    /// Masters that may have the field of a hold that is over: it has to be removed from them.
    pub(crate) remains: MasterSet,
    /// Masters that had not answered when the verdict was certain.
    pub(crate) unanswered: MasterSet,
    /// Masters that certainly do not have the field. After a fresh grant: those where it did not run. After the end of a hold: those that
    /// answered so. If no majority has confirmed a hold: old masters that lack it.
    pub(crate) missing: MasterSet,
    /// Masters that were given up before the verdict: the command may still run there.
    pub(crate) given_up: MasterSet,
}

impl Spread {
    /// No difference: all masters have answered, and alike.
    pub(crate) const NONE: Spread = Spread {
        lacking: MasterSet::NONE,
        remains: MasterSet::NONE,
        unanswered: MasterSet::NONE,
        missing: MasterSet::NONE,
        given_up: MasterSet::NONE,
    };
}

#[cfg(test)]
mod tests;
