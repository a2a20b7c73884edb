//! How long a hold lasts, if its request sets that.

use std::time::Duration;

use crate::config::Config;
use crate::error::{Result, rejected};

/// The times that a request sets. Boxed, since few requests set any, and 100,000 may wait.
#[derive(Clone, Debug, Default)]
pub(super) struct HoldTimes(Option<Box<Times>>);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) fixed_lease: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) at_least: Option<Duration>,
}

impl HoldTimes {
    pub(super) fn get_mut(&mut self) -> &mut Times {
        self.0.get_or_insert_default()
    }

    pub(super) fn get(&self) -> Times {
        self.0.as_deref().copied().unwrap_or_default()
    }

    /// Returns whether the request sets no times of its own.
    pub(super) fn are_default(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the times for one of several names. `at_least` begins only once all are granted.
    pub(super) fn without_at_least(&self) -> HoldTimes {
        HoldTimes(self.0.as_ref().map(|times| Box::new(Times { at_least: None, ..**times })))
    }

    /// Checks `at_least`. A hold that ended earlier would free its lock then, or leave it to the lease.
    pub(super) fn check(&self, config: &Config) -> Result<()> {
        let Times { fixed_lease, max_hold, at_least } = self.get();
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
