//! The fencing counters of a store: what the Lua files do with them, in this process.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use crate::base::after;
use crate::wire::Fence;

/// Where counters on a server end.
const HIGHEST: u64 = i64::MAX as u64;

#[derive(Default)]
pub(crate) struct Counters {
    all: HashMap<Arc<str>, Counter>,
    /// With so many those that are over are looked for.
    crowded: usize,
}

#[derive(Clone, Debug)]
struct Counter {
    token: u64,
    /// When it goes, should it not be used; `None`: never.
    until: Option<Instant>,
}

impl Counters {
    /// A counter as it stands.
    pub(crate) fn stands(&self, key: &str, now: Instant) -> Option<u64> {
        self.found(key, now).map(|counter| counter.token)
    }

    /// The next token. `None`: the counter is at its end.
    pub(crate) fn next(&mut self, fence: &Fence, now: Instant) -> Option<u64> {
        let least = fence.least.unwrap_or_default();
        let token = match self.stands(&fence.counter, now) {
            Some(HIGHEST) => return None,
            Some(token) => least.max(token + 1),
            None => least,
        };
        self.put(fence, token, now);
        Some(token)
    }

    /// Makes a counter no less than a token that was given out.
    pub(crate) fn raise(&mut self, fence: &Fence, now: Instant) {
        let stands = self.stands(&fence.counter, now).unwrap_or_default();
        self.put(fence, fence.least.unwrap_or_default().max(stands), now);
    }

    /// Its time is never made shorter, and one that was found without an end stays without.
    fn put(&mut self, fence: &Fence, token: u64, now: Instant) {
        let stays = fence.stays.map(|stays| after(now, stays.duration()));
        let until = match self.found(&fence.counter, now) {
            Some(Counter { until, .. }) => until.zip(stays).map(|(until, stays)| until.max(stays)),
            None => stays,
        };
        self.make_room(now);
        self.all.insert(fence.counter.clone(), Counter { token, until });
    }

    fn found(&self, key: &str, now: Instant) -> Option<&Counter> {
        self.all.get(key).filter(|counter| counter.stands(now))
    }

    pub(crate) fn clear(&mut self) {
        self.all.clear();
    }

    fn make_room(&mut self, now: Instant) {
        if self.all.len() >= self.crowded {
            self.all.retain(|_, counter| counter.stands(now));
            self.crowded = (2 * self.all.len()).max(64);
        }
    }

    #[cfg(test)]
    pub(crate) fn seen(&self, key: &str, now: Instant) -> Option<(u64, Option<Instant>)> {
        self.found(key, now).map(|counter| (counter.token, counter.until))
    }

    /// What another client, or another time, has left.
    #[cfg(test)]
    pub(crate) fn set(&mut self, key: &str, token: u64) {
        self.all.insert(key.into(), Counter { token, until: None });
    }
}

impl Counter {
    fn stands(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now <= until)
    }
}
