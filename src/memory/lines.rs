//! The lines of a store: who waits for its locks, in order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use crate::base::{Lease, after};
use crate::wire::keys::Keys;

/// By the keys of lines, which may be of several prefixes.
#[derive(Default)]
pub(crate) struct Lines {
    all: HashMap<Box<str>, StoredLine>,
    /// At this number of lines expired ones are removed.
    sweep_at: usize,
}

/// Never empty.
struct StoredLine {
    fields: VecDeque<Arc<str>>,
    until: Instant,
}

impl Lines {
    /// Behind all others; one that is there keeps its place. Never shortens the time that the line stays.
    pub(super) fn enter(&mut self, keys: &Keys, field: &Arc<str>, stays: Lease, now: Instant) {
        let (key, until) = (&keys.line().line, after(now, stays.duration()));
        if self.all.len() >= self.sweep_at {
            self.all.retain(|_, line| line.is_live(now));
            self.sweep_at = (2 * self.all.len()).max(64);
        }
        match self.all.get_mut(key).filter(|line| line.is_live(now)) {
            Some(line) => {
                if !line.fields.contains(field) {
                    line.fields.push_back(field.clone());
                }
                line.until = line.until.max(until);
            }
            None => {
                self.all.insert(key.clone(), StoredLine { fields: [field.clone()].into(), until });
            }
        }
    }

    pub(super) fn first(&self, key: &str, now: Instant) -> Option<Arc<str>> {
        let line = self.all.get(key).filter(|line| line.is_live(now))?;
        line.fields.front().cloned()
    }

    pub(super) fn take_first(&mut self, key: &str, now: Instant) -> Option<Arc<str>> {
        let first = self.first(key, now)?;
        self.remove(key, &first, now);
        Some(first)
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, key: &str, field: &str, now: Instant) -> bool {
        let Some(line) = self.all.get_mut(key).filter(|line| line.is_live(now)) else { return false };
        let at = line.fields.iter().position(|known| **known == *field);
        at.map(|at| line.fields.remove(at));
        if line.fields.is_empty() {
            self.all.remove(key);
        }
        at.is_some()
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Who waits there, in order, and until when the line stays.
    #[cfg(test)]
    pub(crate) fn seen(&self, key: &str, now: Instant) -> Option<(Vec<Arc<str>>, Instant)> {
        let line = self.all.get(key).filter(|line| line.is_live(now))?;
        Some((line.fields.iter().cloned().collect(), line.until))
    }
}

impl StoredLine {
    fn is_live(&self, now: Instant) -> bool {
        now <= self.until
    }
}
