//! All arithmetic on leases, drift and waits. `now` and `sent` are arguments: only the origin of [`Stamp`]s is read from a clock.

use std::num::NonZeroU64;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};

/// The longest lease: beyond it Redis's expiry, or a number in its scripts, would no longer be exact.
const LONGEST: Duration = Duration::from_millis((1 << 52) - 1);

/// Stands for "for ever", since an instant can't be that far away.
pub(crate) const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// tokio's `now` plus the time that the machine has slept so far, and that time.
///
/// All deadlines of holds are kept on this timeline. So a sleep of the machine takes its length off every deadline, and nothing has to be
/// corrected when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    pub(crate) slept: Duration,
}

impl Moment {
    /// Converts an instant of this timeline to tokio's clock.
    pub(crate) fn local(self, at: Instant) -> Instant {
        at.checked_sub(self.slept).unwrap_or(at)
    }
}

/// An `Instant` for fields that are usually `None`: an `Option<Stamp>` takes half the space of an `Option<Instant>`. It is exact to
/// the nanosecond within a hundred years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(NonZeroU64);

/// The origin of all stamps; any instant would do. It is not one of tokio's clock: once a test has paused that clock, reading it
/// panics in the destructor of a thread-local.
static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

impl Stamp {
    /// The stamp of [`START`], in nanoseconds: far enough from both ends that no instant before or after it is clamped.
    const MIDDLE: u64 = 1 << 62;

    pub(crate) fn at(self) -> Instant {
        let nanos = self.0.get();
        Instant::from_std(match nanos.checked_sub(Stamp::MIDDLE) {
            Some(later) => *START + Duration::from_nanos(later),
            None => *START - Duration::from_nanos(Stamp::MIDDLE - nanos),
        })
    }
}

impl From<Instant> for Stamp {
    fn from(at: Instant) -> Stamp {
        let nanos = |time: Duration| {
            time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos().into())
        };
        let at = at.into_std();
        let stamp = match at.checked_duration_since(*START) {
            Some(later) => Stamp::MIDDLE.saturating_add(nanos(later)),
            None => Stamp::MIDDLE.saturating_sub(nanos(START.saturating_duration_since(at))),
        };
        Stamp(NonZeroU64::new(stamp).unwrap_or(NonZeroU64::MIN))
    }
}

/// Allowed clock drift per lease: a fraction plus a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Drift {
    pub(crate) factor: f64,
    pub(crate) slack: Duration,
}

impl Drift {
    /// Returns the drift over a lease.
    pub(crate) fn of(self, lease: Duration) -> Duration {
        // Rounds to the nearest nanosecond. A conversion from seconds would take most of the time of computing a deadline.
        let nanos = lease.as_secs_f64() * self.factor * 1e9 + 0.5;
        Duration::from_nanos(nanos as u64).saturating_add(self.slack)
    }
}

/// How long the server keeps a hold that is not renewed: whole milliseconds, and longer than the drift over that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lease(Duration);

impl Lease {
    /// The lease of a command that must not extend a lease.
    pub(crate) const SHORTEST: Lease = Lease(Duration::from_millis(1));

    /// The default lease: how long a crashed holder blocks others.
    pub(crate) const DEFAULT: Lease = Lease(Duration::from_secs(30));

    /// The default time for which a fencing counter is kept.
    pub(crate) const DAY: Lease = Lease(Duration::from_secs(24 * 60 * 60));

    /// Returns the rest of a lease that is not renewed, cut to whole milliseconds; at least [`SHORTEST`](Lease::SHORTEST).
    pub(crate) fn rest(left: Duration) -> Lease {
        Lease(Duration::from_millis(left.min(LONGEST).as_millis() as u64)).max(Lease::SHORTEST)
    }

    /// Checks a lease that a user gave for the option `what`.
    pub(crate) fn new(what: &str, asked: Duration, drift: Drift) -> Result<Lease> {
        let lease = Duration::from_millis(asked.min(LONGEST).as_millis() as u64);
        let over = drift.of(lease);
        let wrong = if asked > LONGEST {
            format!("{what} of {asked:?} is more than Redis can store; the longest is {LONGEST:?}")
        } else if lease <= over {
            format!(
                "{what} of {asked:?} is too short: the clocks may drift by {over:?} over it; give it seconds"
            )
        } else {
            return Ok(Lease(lease));
        };
        Err(Error::new(ErrorKind::Config, wrong))
    }

    pub(crate) fn duration(self) -> Duration {
        self.0
    }

    pub(crate) fn millis(self) -> u64 {
        self.0.as_millis() as u64
    }

    /// Returns until when a hold is certain after a successful command that was sent at `sent`.
    pub(crate) fn valid_until(self, sent: Instant, drift: Drift) -> Instant {
        after(sent, self.0.saturating_sub(drift.of(self.0)))
    }
}

/// Returns the instant `wait` after `now`. A wait that is too long to be added is cut.
pub(crate) fn after(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait.min(FAR)).unwrap_or(now)
}

/// Returns the earlier of two instants.
pub(crate) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Returns the instant `wait` after `now`, or `None` if the wait means for ever, as [`Duration::MAX`] does.
pub(crate) fn limit(now: Instant, wait: Duration) -> Option<Instant> {
    (wait < FAR).then(|| after(now, wait))
}

#[cfg(test)]
mod tests;
