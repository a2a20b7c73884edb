//! A set of masters.

use std::iter;

/// Masters by their places, in the order in which they were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes(u64);

impl Nodes {
    pub(crate) const NONE: Nodes = Nodes(0);
    pub(crate) const ALL: Nodes = Nodes(u64::MAX);
    /// So many masters can be told apart. Each of them is asked each time: far fewer are of use.
    pub(crate) const MOST: usize = 63;

    pub(crate) fn first(count: usize) -> Nodes {
        Nodes((1 << count.min(Nodes::MOST)) - 1)
    }

    pub(crate) fn one(node: usize) -> Nodes {
        Nodes(1 << node.min(Nodes::MOST))
    }

    pub(crate) fn insert(&mut self, node: usize) {
        *self = self.and(Nodes::one(node));
    }

    pub(crate) fn remove(&mut self, node: usize) {
        *self = self.without(Nodes::one(node));
    }

    pub(crate) fn contains(self, node: usize) -> bool {
        self.0 & Nodes::one(node).0 != 0
    }

    #[must_use]
    pub(crate) fn and(self, others: Nodes) -> Nodes {
        Nodes(self.0 | others.0)
    }

    #[must_use]
    pub(crate) fn within(self, others: Nodes) -> Nodes {
        Nodes(self.0 & others.0)
    }

    #[must_use]
    pub(crate) fn without(self, others: Nodes) -> Nodes {
        Nodes(self.0 & !others.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        // Each release asks who hears of it: a look at all 64 places costs more than the rest of that.
        iter::from_fn(move || {
            let node = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            Some(node)
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
    pub(crate) lacking: Nodes,
    /// Masters where a field may stand that is no hold: to be ended there.
    pub(crate) remains: Nodes,
    /// Masters whose answers were not waited for.
    pub(crate) unheard: Nodes,
    /// Masters where the field certainly is not, of a fresh grant: its end is no matter of theirs.
    pub(crate) absent: Nodes,
    /// Masters that were asked to end the field, and had none.
    pub(crate) missing: Nodes,
}

/// Masters that certainly do not have a hold's field: nothing of its end is owed to them. 1. A master is away for long. 2. Each
/// lock that is taken and released meanwhile would be ended there too, for a lease, and all of them again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Absence {
    absent: Nodes,
    /// They were asked to have it after all.
    repaired: Nodes,
}

impl Absence {
    /// The acquire did nothing there.
    pub(crate) fn note(&mut self, nodes: Nodes) {
        self.absent = self.absent.and(nodes.without(self.repaired));
    }

    pub(crate) fn repair(&mut self, nodes: Nodes) {
        self.repaired = self.repaired.and(nodes);
        self.absent = self.absent.without(nodes);
    }

    pub(crate) fn nodes(self) -> Nodes {
        self.absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_are_told_in_their_order() {
        let told = |nodes: Nodes| nodes.iter().collect::<Vec<_>>();
        assert_eq!(told(Nodes::NONE), []);
        assert_eq!(told(Nodes::one(63).and(Nodes::one(0)).and(Nodes::one(2))), [0, 2, 63]);
        assert_eq!(told(Nodes::ALL), (0..=Nodes::MOST).collect::<Vec<_>>());
    }
}
