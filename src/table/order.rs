//! `LockOrder`: which locks were requested under which others, and whether any two were requested in both orders.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::telemetry::Place;
use crate::owner::{Owner, Tree};

/// At least this many pairs are remembered, those that were seen last, and at most twice as many.
const MOST_PAIRS: usize = if cfg!(test) { 4 } else { 1024 };

/// A request under more locks than this is not compared with them: a program that takes a thousand in a loop would pay for half a
/// million pairs, and they would push out all others.
const MOST_HELD: usize = 32;

/// A lock as it is compared with others, which is by its group.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: Arc<str>,
    pub(crate) group: Arc<str>,
    /// Where it was requested.
    pub(crate) location: Place,
}

/// Two locks that were requested in both orders.
#[derive(Debug)]
pub(crate) struct Inversion {
    pub(crate) outer: (Arc<str>, Place),
    pub(crate) inner: (Arc<str>, Place),
    /// Where they were taken in the other order: first the place of the one that is `inner` here, then that of the other one.
    pub(crate) before: (Place, Place),
}

/// The order of locks for all owners of a session. Changes only while it is locked; no table is locked at that time.
#[derive(Debug, Default)]
pub(crate) struct LockOrder {
    held: HashMap<Tree, Vec<Held>>,
    pairs: Pairs,
}

/// One lock that is held.
#[derive(Debug)]
pub(crate) struct Held {
    level: u64,
    owner: Owner,
    named: Named,
}

/// The first group, and the second one, which was requested under it.
type Pair = (Arc<str>, Arc<str>);

/// Where a pair was seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    outer: Place,
    inner: Place,
    reported: bool,
}

/// The pairs that were seen. A pair that is seen again stays; of the others the oldest are dropped. Names with ids in them make new
/// pairs for ever.
#[derive(Debug, Default)]
struct Pairs {
    young: HashMap<Pair, Seen>,
    old: HashMap<Pair, Seen>,
}

impl LockOrder {
    /// Called when an owner requests a lock, and would wait for it. `began` is the number at which the request for several names
    /// began that this one belongs to: locks that were granted since are ordered by design. Returns what has to be reported for the
    /// first time.
    pub(crate) fn asks(&mut self, owner: &Owner, asked: &Named, began: u64) -> Vec<Inversion> {
        let Some(held) = self.held.get(&owner.tree()) else { return Vec::new() };
        let above = |held: &&Held| held.level <= began && owner.is_within(held.owner.living());
        // Checked first, and from the outermost level: in a deep recursion each level has many above it.
        if held.iter().filter(|held| held.named.name == asked.name).any(|held| above(&held)) {
            return Vec::new();
        }
        let held: Vec<_> = held.iter().filter(above).take(MOST_HELD + 1).collect();
        if held.len() > MOST_HELD {
            return Vec::new();
        }
        let others = held.into_iter().filter(|held| held.named.group != asked.group);
        let mut inversions = Vec::new();
        for Held { named: outer, .. } in others {
            let reversed = self.pairs.get(&(asked.group.clone(), outer.group.clone()));
            let before = reversed.as_deref().copied();
            if let Some(reversed) = reversed {
                reversed.reported = true;
            }
            let seen = Seen { outer: outer.location, inner: asked.location, reported: before.is_some() };
            self.pairs.note((outer.group.clone(), asked.group.clone()), seen);
            if let Some(before) = before.filter(|before| !before.reported) {
                inversions.push(Inversion {
                    outer: (outer.group.clone(), outer.location),
                    inner: (asked.group.clone(), asked.location),
                    before: (before.outer, before.inner),
                });
            }
        }
        inversions
    }

    /// Called when a level was granted to this owner. The result is for [`leaves`](LockOrder::leaves).
    pub(crate) fn holds(&mut self, level: u64, owner: Owner, named: Named) -> Tree {
        let tree = owner.tree();
        self.held.entry(tree).or_default().push(Held { level, owner, named });
        tree
    }

    /// Called when the guard of the level is dropped or released. Drop the returned value once nothing is locked.
    #[must_use]
    pub(crate) fn leaves(&mut self, tree: Tree, level: u64) -> Option<Held> {
        let held = self.held.get_mut(&tree)?;
        // Searched from the end: holds are mostly released in the reverse order of their grants.
        let gone = held.iter().rposition(|held| held.level == level).map(|at| held.remove(at));
        if held.is_empty() {
            self.held.remove(&tree);
        }
        gone
    }
}

impl Pairs {
    fn get(&mut self, pair: &Pair) -> Option<&mut Seen> {
        if let Some(seen) = self.old.remove(pair) {
            self.insert(pair.clone(), seen);
        }
        self.young.get_mut(pair)
    }

    /// Notes a pair. Its places stay those of the first time.
    fn note(&mut self, pair: Pair, seen: Seen) {
        match self.get(&pair) {
            Some(known) => known.reported |= seen.reported,
            None => self.insert(pair, seen),
        }
    }

    fn insert(&mut self, pair: Pair, seen: Seen) {
        if self.young.len() >= MOST_PAIRS {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(pair, seen);
    }
}

#[cfg(test)]
mod tests;
