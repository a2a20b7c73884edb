//! `Agenda`: when each entry has to be looked at.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// The slots of entries, by their next due times. Many renewals are due at the same time, so adding or removing a slot costs the
/// same however many share its time.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    due: BTreeMap<Instant, Vec<usize>>,
    /// For each slot, its position among those with the same due time.
    at: Vec<usize>,
}

impl Agenda {
    pub(super) fn first(&self) -> Option<Instant> {
        self.due.first_key_value().map(|(due, _)| *due)
    }

    /// Returns the slots that are due: the earliest first, in no particular order within one time.
    pub(super) fn until(&self, now: Instant) -> impl Iterator<Item = usize> {
        self.due.range(..=now).flat_map(|(_, same_time)| same_time).copied()
    }

    /// Adds a slot that is not in the agenda.
    pub(super) fn insert(&mut self, due: Instant, slot: usize) {
        let same_time = self.due.entry(due).or_default();
        if self.at.len() <= slot {
            self.at.resize(slot + 1, 0);
        }
        self.at[slot] = same_time.len();
        same_time.push(slot);
    }

    /// Removes a slot that is in the agenda at this time.
    pub(super) fn remove(&mut self, due: Instant, slot: usize) {
        let Some(same_time) = self.due.get_mut(&due) else { return };
        let Some(at) = self.at.get(slot).copied().filter(|at| same_time.get(*at) == Some(&slot)) else {
            return;
        };
        same_time.swap_remove(at);
        if let Some(moved) = same_time.get(at) {
            self.at[*moved] = at;
        }
        if same_time.is_empty() {
            self.due.remove(&due);
        }
    }
}

#[cfg(test)]
mod tests;
