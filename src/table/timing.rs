//! `Timing`: the options that holds need, and how a lease becomes a deadline.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Drift, FAR, Lease, after};
use crate::wire::Line;

/// The values that all holds of a session share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// How many masters there are.
    pub(crate) masters: usize,
    pub(crate) lease: Lease,
    pub(crate) drift: Drift,
    /// A command that is older than this and has no answer is given up, since its future is not polled. A guard's call waits no
    /// longer than this for another command of its hold. Two node timeouts, and more with `replicas` (`Session::new`).
    pub(crate) patience: Duration,
    /// The pause between two attempts of a command in the background.
    pub(crate) retry: Duration,
    /// The origin of the steps to which renewals are rounded, so that holds that are due at nearly the same time are renewed in
    /// one pipeline.
    pub(crate) epoch: Instant,
    /// How long after its grant a hold may pass on to another owner. Zero means never.
    pub(crate) handoff: Duration,
    /// `None` if no wait is reported.
    pub(crate) warn_after: Option<WarnAfter>,
    /// What scripts need to know about the line on the server, or `None` if there is no line.
    pub(crate) line: Option<Line>,
}

/// When the log reports a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarnAfter {
    /// The wait before the first report.
    pub(crate) first: Duration,
    /// The time between two reports.
    pub(crate) again: Duration,
}

impl Timing {
    /// Returns the pause after this many failures. Nobody here waits for the end of an orphan, and there may be thousands of
    /// orphans, so their pause is up to four times as long.
    pub(super) fn pause(&self, failures: u32) -> Duration {
        self.retry * (1 << failures.min(2))
    }

    /// Returns when a lease is renewed: a third of the lease after `sent`, or up to a tenth of that time earlier. If the drift takes so much
    /// of the lease that the hold would not be good for long after that, half of the time that it is good.
    pub(super) fn renew_at(&self, sent: Instant) -> Instant {
        // Computed in 64 bits, which are enough for 584 years, since this runs for each renewal.
        let nanos = |time: Duration| time.as_nanos() as u64;
        let lease = self.lease.duration();
        let pause = (lease / 3).min(lease.saturating_sub(self.drift.of(lease)) / 2);
        // A lease that is longer than any deadline counts as the longest one: otherwise it would always be due at once.
        let step = nanos((pause / 10).min(FAR / 10)).max(1);
        let due = after(sent, pause);
        let ahead = nanos(due.saturating_duration_since(self.epoch)) % step;
        due.checked_sub(Duration::from_nanos(ahead)).unwrap_or(due)
    }
}

#[cfg(test)]
mod tests;
