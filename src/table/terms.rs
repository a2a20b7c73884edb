//! How leases become deadlines: what a hold gets of the options.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Drift, FAR, Lease, after};
use crate::wire::Line;

/// The same for all holds of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// How many masters there are.
    pub(crate) masters: usize,
    pub(crate) lease: Lease,
    pub(crate) drift: Drift,
    /// Older than this a command without an answer is given up: its future is not polled.
    pub(crate) patience: Duration,
    /// Pause between two tries of a command in the background.
    pub(crate) retry: Duration,
    /// From here on renewals are counted off in steps, so that holds which are due at nearly the same time are renewed
    /// in one pipeline.
    pub(crate) epoch: Instant,
    /// How long after its grant a hold may pass on to another owner; zero: never.
    pub(crate) handoff: Duration,
    /// `None`: no wait is reported.
    pub(crate) warn_after: Option<WarnAfter>,
    /// What scripts need to know of the line on the server; `None`: there is none.
    pub(crate) line: Option<Line>,
}

/// When the log reports a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarnAfter {
    /// The wait before the first report.
    pub(crate) first: Duration,
    /// From report to report.
    pub(crate) again: Duration,
}

impl Terms {
    /// The pause of what has failed so often before. What is left of an ended hold keeps nobody waiting here, and there may be
    /// thousands: up to four times as long.
    pub(super) fn pause(&self, failures: u32) -> Duration {
        self.retry * (1 << failures.min(2))
    }

    /// A third of the lease after that, or up to a thirtieth earlier.
    pub(super) fn renew_at(&self, sent: Instant) -> Instant {
        // In 64 bits, which are 584 years: this is asked for each renewal.
        let nanos = |time: Duration| time.as_nanos() as u64;
        // Of a lease that is longer than a deadline can be, no more than of the longest one: it would be due at once, for ever.
        let step = nanos((self.lease.duration() / 30).min(FAR / 10)).max(1);
        let third = after(sent, self.lease.duration() / 3);
        let ahead = nanos(third.saturating_duration_since(self.epoch)) % step;
        third.checked_sub(Duration::from_nanos(ahead)).unwrap_or(third)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease may be longer than a deadline can be.
    #[test]
    fn a_renewal_is_not_due_at_once_however_long_the_lease() {
        let (now, drift) = (Instant::now(), Drift { factor: 0.0, slack: Duration::ZERO });
        for years in [1, 100, 1_000, 100_000] {
            let lease = Lease::new("lease", Duration::from_secs(years * 365 * 86_400), drift).unwrap();
            let (second, times) = (Duration::from_secs(1), Duration::from_secs(60));
            let terms = Terms {
                masters: 1,
                lease,
                drift,
                patience: times,
                retry: second,
                epoch: now,
                handoff: Duration::ZERO,
                warn_after: None,
                line: None,
            };
            let sent = now + second;
            let (due, third) = (terms.renew_at(sent) - sent, (lease.duration() / 3).min(FAR));
            assert!(due > third * 9 / 10 - second && due <= third, "{years} years: {due:?}");
        }
    }
}
