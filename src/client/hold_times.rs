//! How long a hold lasts, if its request sets that.

use std::time::Duration;

use crate::config::Config;
use crate::error::{Result, rejected};

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
                    "at_least of {asked:?} is more than {what} of {end:?}, which ends the hold earlier; make {what} at least as long"
                )));
            }
        }
        Ok(())
    }
}
