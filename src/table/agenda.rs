//! `Agenda`: when each entry has to be looked at.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// The places of entries, by their next due times. Renewals are due together, at few different times: adding or removing a place
/// costs the same however many share its time.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    due: BTreeMap<Instant, Vec<usize>>,
    /// For each place, its position among those of its time.
    at: Vec<usize>,
}

impl Agenda {
    pub(super) fn first(&self) -> Option<Instant> {
        self.due.first_key_value().map(|(due, _)| *due)
    }

    /// Returns the places that are due: the earliest first, those of one time in no order.
    pub(super) fn until(&self, now: Instant) -> impl Iterator<Item = usize> {
        self.due.range(..=now).flat_map(|(_, places)| places).copied()
    }

    /// Adds a place that is not in it.
    pub(super) fn insert(&mut self, due: Instant, place: usize) {
        let places = self.due.entry(due).or_default();
        if self.at.len() <= place {
            self.at.resize(place + 1, 0);
        }
        self.at[place] = places.len();
        places.push(place);
    }

    /// Removes a place that is in it at this time.
    pub(super) fn remove(&mut self, due: Instant, place: usize) {
        let Some(places) = self.due.get_mut(&due) else { return };
        let Some(at) = self.at.get(place).copied().filter(|at| places.get(*at) == Some(&place)) else {
            return;
        };
        places.swap_remove(at);
        if let Some(moved) = places.get(at) {
            self.at[*moved] = at;
        }
        if places.is_empty() {
            self.due.remove(&due);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compared with an ordered set.
        #[test]
        fn what_is_due_is_what_was_put_in_and_not_taken_out(
            steps in proptest::collection::vec((0..12_usize, proptest::option::of(0..5_u64)), 1..100),
        ) {
            let begin = Instant::now();
            let time = |seconds| begin + Duration::from_secs(seconds);
            let (mut agenda, mut places, mut expected) = (Agenda::default(), [None; 12], BTreeSet::new());
            for (place, due) in steps {
                if let Some(before) = places[place] {
                    agenda.remove(time(before), place);
                    expected.remove(&(before, place));
                }
                if let Some(due) = due {
                    agenda.insert(time(due), place);
                    expected.insert((due, place));
                }
                places[place] = due;
                prop_assert_eq!(agenda.first(), expected.first().map(|(due, _)| time(*due)));
                for now in 0..5 {
                    let mut until: Vec<_> = agenda.until(time(now)).map(|place| (places[place], place)).collect();
                    prop_assert!(until.is_sorted_by_key(|(due, _)| *due));
                    until.sort();
                    let due = expected.iter().filter(|(due, _)| *due <= now);
                    let due: Vec<_> = due.map(|(due, place)| (Some(*due), *place)).collect();
                    prop_assert_eq!(until, due);
                }
            }
        }
    }
}
