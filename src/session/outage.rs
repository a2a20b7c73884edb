//! Since when too few masters answer.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::after;
use crate::error::Error;

/// What is known of the masters' absence. Empty while they answer.
#[derive(Debug, Default)]
pub(super) struct Outage(Option<Seen>);

#[derive(Debug)]
struct Seen {
    since: Instant,
    last: Instant,
    error: Error,
}

impl Outage {
    /// They answered.
    pub(super) fn ends(&mut self) {
        if self.0.is_some() {
            self.0 = None;
        }
    }

    /// They did not.
    pub(super) fn goes_on(&mut self, error: Error, now: Instant) {
        let since = self.0.as_ref().map_or(now, |seen| seen.since);
        self.0 = Some(Seen { since, last: now, error });
    }

    /// The error of a request that began then, if the outage has lasted for longer than that since.
    pub(super) fn outlasts(&self, patience: Duration, began: Instant, now: Instant) -> Option<Error> {
        let seen = self.0.as_ref()?;
        (now >= after(seen.since.max(began), patience)).then(|| seen.error.again())
    }

    /// The last failure, where it is no older than that. An old one proves nothing: nobody may have asked in between.
    pub(super) fn fresh(&self, age: Duration, now: Instant) -> Option<Error> {
        let seen = self.0.as_ref()?;
        (now <= after(seen.last, age)).then(|| seen.error.again())
    }
}
