//! `Outage`: how long too few masters have carried out the commands for one lock.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::after;
use crate::error::Error;

/// A time in which the commands of one lock fail: they are refused, or not answered. Each lock has its own. Otherwise: 1. A full
/// server refuses one lock. 2. Another lock is held, and requests wait for it. 3. They fail with the error of the first lock.
/// Failed ends of holds do not count, since no request waits for them. Usually `None`, which takes one pointer.
#[derive(Debug, Default)]
pub(crate) struct Outage(Option<Box<Failures>>);

#[derive(Debug)]
pub(crate) struct Failures {
    since: Instant,
    last: Instant,
    error: Error,
}

impl Outage {
    /// Called when a command got one of the expected answers.
    pub(super) fn ends(&mut self) {
        self.0 = None;
    }

    /// Called when a command failed. A last failure that is older than `patience` says nothing about the time since, in which
    /// nobody may have asked.
    pub(crate) fn goes_on(&mut self, error: Error, patience: Duration, now: Instant) {
        let since = self.fresh(patience, now).map_or(now, |failures| failures.since);
        self.0 = Some(Box::new(Failures { since, last: now, error }));
    }

    /// Returns the last failure if it is no older than `age`.
    pub(crate) fn last(&self, age: Duration, now: Instant) -> Option<Error> {
        self.fresh(age, now).map(|failures| failures.error.clone())
    }

    /// Returns whether no command has failed since the last answer.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the outage if its last failure is no older than `age`. An older one proves nothing, since nobody may have asked since.
    pub(crate) fn fresh(&self, age: Duration, now: Instant) -> Option<&Failures> {
        self.0.as_deref().filter(|failures| now <= after(failures.last, age))
    }
}

impl Failures {
    /// Returns the error for a request that began at `began`, if commands have failed for longer than `patience` since.
    pub(crate) fn outlast(&self, patience: Duration, began: Instant, now: Instant) -> Option<Error> {
        (now >= after(self.since.max(began), patience)).then(|| self.error.clone())
    }
}

#[cfg(test)]
mod tests;
