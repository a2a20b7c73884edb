//! The options of a call.

use std::panic::Location;
use std::time::Duration;

use crate::base::telemetry::Place;
use crate::config::Config;
use crate::error::{Result, rejected};
use crate::owner::Owner;

/// The options of a request for one lock or for several.
#[derive(Clone, Debug)]
pub(super) struct CallOptions {
    pub(super) within: Option<Duration>,
    /// Boxed, since few requests set any, and 100,000 may wait.
    pub(super) times: Option<Box<Times>>,
    pub(super) owner: Option<Owner>,
    /// Whether the request was made without a `run`: its owner may have other requests too.
    pub(super) bare: bool,
    /// Whether the hold needs a fencing token.
    pub(super) fenced: bool,
    /// Whether a request that is not granted ends with an error, and not with `None`.
    pub(super) busy_is_error: bool,
    /// Where in the code the request was made.
    pub(super) location: Place,
}

impl CallOptions {
    /// Returns the options of a bare request, made at the place of this call. With `within`, it ends with `None` when that time is
    /// over.
    #[track_caller]
    pub(super) fn new(within: Option<Duration>, fenced: bool) -> CallOptions {
        let (times, owner, location) = (None, None, Location::caller());
        CallOptions { within, times, owner, bare: true, fenced, busy_is_error: within.is_none(), location }
    }

    /// Returns whether the metrics count it if its time is over.
    pub(super) fn counts_timeout(&self) -> bool {
        self.busy_is_error || self.within != Some(Duration::ZERO)
    }

    pub(super) fn times(&self) -> Times {
        self.times.as_deref().copied().unwrap_or_default()
    }
}

/// The times that a request sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) fixed_lease: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) at_least: Option<Duration>,
}

impl Times {
    /// Checks `at_least`. A hold that ended earlier would free its lock then, or leave it to the lease.
    pub(super) fn check(self, config: &Config) -> Result<()> {
        let Times { fixed_lease, max_hold, at_least } = self;
        let Some(asked) = at_least.filter(|asked| !asked.is_zero()) else { return Ok(()) };
        config.lease("at_least", asked)?;
        for (what, end) in [("fixed_lease", fixed_lease), ("max_hold", max_hold)] {
            if let Some(end) = end.filter(|end| *end < asked) {
                return Err(rejected(format!(
                    "at_least of {asked:?} is more than {what} of {end:?}, which ends the hold earlier; make {what} longer than at_least"
                )));
            }
        }
        Ok(())
    }
}
