//! A set of masters.

use std::iter;

/// Masters by their places, in the order in which they were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MasterSet(u64);

impl MasterSet {
    pub(crate) const NONE: MasterSet = MasterSet(0);
    pub(crate) const ALL: MasterSet = MasterSet(u64::MAX);
    /// So many masters can be told apart. Each of them is asked each time: far fewer are of use.
    pub(crate) const MOST: usize = 63;

    pub(crate) fn first(count: usize) -> MasterSet {
        MasterSet((1 << count.min(MasterSet::MOST)) - 1)
    }

    pub(crate) fn one(master: usize) -> MasterSet {
        MasterSet(1 << master.min(MasterSet::MOST))
    }

    pub(crate) fn insert(&mut self, master: usize) {
        *self = self.and(MasterSet::one(master));
    }

    pub(crate) fn remove(&mut self, master: usize) {
        *self = self.without(MasterSet::one(master));
    }

    pub(crate) fn contains(self, master: usize) -> bool {
        self.0 & MasterSet::one(master).0 != 0
    }

    #[must_use]
    pub(crate) fn and(self, others: MasterSet) -> MasterSet {
        MasterSet(self.0 | others.0)
    }

    #[must_use]
    pub(crate) fn within(self, others: MasterSet) -> MasterSet {
        MasterSet(self.0 & others.0)
    }

    #[must_use]
    pub(crate) fn without(self, others: MasterSet) -> MasterSet {
        MasterSet(self.0 & !others.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        // Each release asks who hears of it: a look at all 64 places costs more than the rest of that.
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

/// Where a command of a hold left the masters unlike each other. Nothing of it where there is one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    /// Masters that lack a hold which stands: to be put there.
    pub(crate) lacking: MasterSet,
    /// Masters where a field may stand that is no hold: to be ended there.
    pub(crate) remains: MasterSet,
    /// Masters whose answers were not waited for.
    pub(crate) unanswered: MasterSet,
    /// Masters where the field certainly is not, of a fresh grant: its end is no matter of theirs.
    pub(crate) absent: MasterSet,
    /// Masters that were asked to end the field, and had none.
    pub(crate) missing: MasterSet,
}

/// Masters that certainly do not have a hold's field: nothing of its end is owed to them. 1. A master is away for long. 2. Each
/// lock that is taken and released meanwhile would be ended there too, for a lease, and all of them again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Absence {
    absent: MasterSet,
    /// They were asked to have it after all.
    repaired: MasterSet,
}

impl Absence {
    /// The acquire did nothing there.
    pub(crate) fn note(&mut self, masters: MasterSet) {
        self.absent = self.absent.and(masters.without(self.repaired));
    }

    pub(crate) fn repair(&mut self, masters: MasterSet) {
        self.repaired = self.repaired.and(masters);
        self.absent = self.absent.without(masters);
    }

    pub(crate) fn masters(self) -> MasterSet {
        self.absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_are_told_in_their_order() {
        let told = |masters: MasterSet| masters.iter().collect::<Vec<_>>();
        assert_eq!(told(MasterSet::NONE), [0; 0]);
        assert_eq!(told(MasterSet::one(63).and(MasterSet::one(0)).and(MasterSet::one(2))), [0, 2, 63]);
        assert_eq!(told(MasterSet::ALL), (0..=MasterSet::MOST).collect::<Vec<_>>());
    }
}
