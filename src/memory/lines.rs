//! The lines of a store: who waits for its locks, in order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Lease, after};
use crate::holder::WaitingProcess;
use crate::memory::sweep::sweep;
use crate::wire::keys::Keys;

/// The lines by their keys, which may have several prefixes.
#[derive(Default)]
pub(crate) struct Lines {
    all: HashMap<Box<str>, StoredLine>,
    /// Once there are this many lines, expired ones are removed.
    sweep_at: usize,
}

/// The line of one lock. It is never empty.
struct StoredLine {
    places: VecDeque<Place>,
    until: Instant,
}

struct Place {
    field: Arc<str>,
    score: u64,
    since: Instant,
    /// Whether it has let clients that do not know the line go first, which it does once.
    gave_way: bool,
}

impl Lines {
    /// Enters a waiter after all others, unless it is in the line already and keeps its place. Never shortens the time that the
    /// line stays. Returns how many entries there are.
    pub(super) fn enter(&mut self, keys: &Keys, field: &Arc<str>, stays: Lease, now: Instant) -> u32 {
        let (key, until) = (&keys.line().line, after(now, stays.duration()));
        sweep(&mut self.all, &mut self.sweep_at, |line| line.is_live(now));
        let empty = || StoredLine { places: VecDeque::new(), until };
        let line = self.all.entry(key.clone()).or_insert_with(empty);
        if !line.is_live(now) {
            *line = empty();
        }
        if !line.places.iter().any(|known| known.field == *field) {
            let score = line.places.back().map_or(0, |last| last.score) + 1;
            line.places.push_back(Place { field: field.clone(), score, since: now, gave_way: false });
        }
        line.until = line.until.max(until);
        u32::try_from(line.places.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn first(&self, key: &str, now: Instant) -> Option<Arc<str>> {
        self.get(key, 0, now)
    }

    pub(super) fn get(&self, key: &str, place: usize, now: Instant) -> Option<Arc<str>> {
        let line = self.all.get(key).filter(|line| line.is_live(now))?;
        line.places.get(place).map(|place| place.field.clone())
    }

    /// Returns whether the first waiter lets clients that do not know the line go first, which it does at most once. `others` of
    /// these clients wait.
    pub(super) fn gives_way(&mut self, key: &str, others: usize, now: Instant) -> bool {
        let Some(line) = self.all.get_mut(key).filter(|line| line.is_live(now)) else { return false };
        let every = line.places.len().div_ceil(others).next_power_of_two() as u64;
        let first =
            line.places.front_mut().filter(|first| !first.gave_way && first.score.is_multiple_of(every));
        first.map(|first| first.gave_way = true).is_some()
    }

    /// Removes an entry. Returns whether it was there.
    pub(super) fn remove(&mut self, key: &str, field: &str, now: Instant) -> bool {
        let Some(line) = self.all.get_mut(key).filter(|line| line.is_live(now)) else { return false };
        let at = line.places.iter().position(|known| *known.field == *field);
        at.map(|at| line.places.remove(at));
        if line.places.is_empty() {
            self.all.remove(key);
        }
        at.is_some()
    }

    /// Returns the waiting processes, in order.
    pub(super) fn waiters(&self, key: &str, now: Instant) -> Vec<WaitingProcess> {
        let line = self.all.get(key).filter(|line| line.is_live(now));
        let places = line.into_iter().flat_map(|line| &line.places);
        // Given in whole seconds, as a server reports it.
        let waits = |place: &Place| Duration::from_secs(now.saturating_duration_since(place.since).as_secs());
        places.map(|place| WaitingProcess::new(place.field.clone(), waits(place))).collect()
    }
}

impl StoredLine {
    fn is_live(&self, now: Instant) -> bool {
        now <= self.until
    }
}

#[cfg(test)]
impl Lines {
    /// Returns the fields in the line, in order, and until when the line stays.
    pub(crate) fn seen(&self, key: &str, now: Instant) -> Option<(Vec<Arc<str>>, Instant)> {
        let line = self.all.get(key).filter(|line| line.is_live(now))?;
        Some((line.places.iter().map(|place| place.field.clone()).collect(), line.until))
    }
}
