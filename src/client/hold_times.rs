//! How long a hold lasts, if its request sets that.

use std::time::Duration;

use crate::config::Config;
use crate::error::Result;

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

    pub(super) fn fixed_lease(&self) -> Option<Duration> {
        self.0.as_ref()?.fixed_lease
    }

    /// Returns the times for one of several names. `at_least` begins only once all are granted.
    pub(super) fn without_at_least(&self) -> HoldTimes {
        HoldTimes(self.0.as_ref().map(|times| Box::new(Times { at_least: None, ..**times })))
    }

    /// Checks that `at_least` is possible together with the other times.
    pub(super) fn check(&self, config: &Config) -> Result<()> {
        let Times { fixed_lease, max_hold, at_least } = self.get();
        config.check_at_least(at_least, fixed_lease, max_hold)
    }
}
