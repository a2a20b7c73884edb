//! `HandedOver`: the holds of an entry that go on in other processes.

use std::collections::VecDeque;

/// The last holds that were handed over, by their ids. A late answer to one of them undoes nothing, since the field is that of the
/// claim. Mostly there are none, so this takes one pointer.
#[derive(Debug, Default)]
pub(super) struct HandedOver(Option<Box<Last>>);

#[derive(Debug, Default)]
struct Last(VecDeque<u64>);

impl HandedOver {
    /// An answer is late by a node timeout or so. After that many hand-overs of one lock it would undo the field of a claim on a minority
    /// of the masters, which the claim can do without.
    const MOST: usize = 16;

    pub(super) fn note(&mut self, hold: u64) {
        let Last(holds) = &mut **self.0.get_or_insert_default();
        if holds.len() == Self::MOST {
            holds.pop_front();
        }
        holds.push_back(hold);
    }

    pub(super) fn has(&self, hold: u64) -> bool {
        self.0.as_ref().is_some_and(|last| last.0.contains(&hold))
    }
}

#[cfg(test)]
mod tests;
