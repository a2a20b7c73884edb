//! The fencing counters of a store. This code does what the Lua files do with them on a server.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use crate::base::after;
use crate::memory::sweep::sweep;
use crate::wire::Fence;

/// The largest value of a counter on a server.
const HIGHEST: u64 = i64::MAX as u64;

#[derive(Default)]
pub(crate) struct Counters {
    all: HashMap<Arc<str>, Counter>,
    /// Once there are this many counters, expired ones are removed.
    sweep_at: usize,
}

#[derive(Clone, Debug)]
struct Counter {
    token: u64,
    /// When it expires unless it is used. `None` means never.
    until: Option<Instant>,
}

impl Counters {
    /// Returns the value of a counter.
    pub(crate) fn stands(&self, key: &str, now: Instant) -> Option<u64> {
        self.found(key, now).map(|counter| counter.token)
    }

    /// Returns whether there is no next token.
    pub(crate) fn is_at_its_end(&self, fence: &Fence, now: Instant) -> bool {
        self.stands(&fence.counter, now) == Some(HIGHEST)
    }

    /// Returns the next token of a counter that is not at its end.
    pub(crate) fn next(&mut self, fence: &Fence, now: Instant) -> u64 {
        let least = fence.least.unwrap_or_default();
        let token = self.stands(&fence.counter, now).map_or(least, |token| least.max(token + 1));
        self.put(fence, token, now);
        token
    }

    /// Raises a counter to at least a token that was handed out.
    pub(crate) fn raise(&mut self, fence: &Fence, now: Instant) {
        let stands = self.stands(&fence.counter, now).unwrap_or_default();
        self.put(fence, fence.least.unwrap_or_default().max(stands), now);
    }

    /// Stores the token. It never shortens the time that a counter is kept. A counter that was found without an expiry gets none.
    fn put(&mut self, fence: &Fence, token: u64, now: Instant) {
        let stays = fence.stays.map(|stays| after(now, stays.duration()));
        let until = match self.found(&fence.counter, now) {
            Some(Counter { until, .. }) => until.zip(stays).map(|(until, stays)| until.max(stays)),
            None => stays,
        };
        sweep(&mut self.all, &mut self.sweep_at, |counter| counter.is_live(now));
        self.all.insert(fence.counter.clone(), Counter { token, until });
    }

    fn found(&self, key: &str, now: Instant) -> Option<&Counter> {
        self.all.get(key).filter(|counter| counter.is_live(now))
    }
}

impl Counter {
    fn is_live(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now <= until)
    }
}

#[cfg(test)]
impl Counters {
    pub(crate) fn seen(&self, key: &str, now: Instant) -> Option<(u64, Option<Instant>)> {
        self.found(key, now).map(|counter| (counter.token, counter.until))
    }

    /// Returns how many counters there are, including expired ones.
    pub(crate) fn size(&self) -> usize {
        self.all.len()
    }

    /// Sets a counter as another client would.
    pub(crate) fn set(&mut self, key: &str, token: u64) {
        self.all.insert(key.into(), Counter { token, until: None });
    }
}
