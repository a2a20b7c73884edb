//! The clock that also runs while the machine sleeps.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::backend::tokio_now;
use crate::base::{Moment, after};

/// Returns how far the clock that counts sleep is ahead of the one that doesn't, in nanoseconds. In a time namespace it may be behind, by
/// any offset: only the growth counts.
type Gap = fn() -> i64;

/// Reads the time.
pub(crate) struct Clock {
    gap: Gap,
    /// The gap at the start. It is kept in nanoseconds, like all gaps here, since each look subtracts two of them.
    first: i64,
    /// The largest gap so far.
    most: AtomicI64,
}

/// A smaller growth of the gap is due to the time between the two readings, not to sleep.
const NOISE: i64 = 1_000_000;

/// How many times the gap at the start is read.
const FIRST_LOOKS: usize = 3;

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock::with(gap)
    }

    pub(crate) fn with(gap: Gap) -> Clock {
        // The largest of a few gaps, since a pause between the two readings makes a gap look smaller: from the next look on, the
        // difference would count as sleep, and be taken off the deadlines of all earlier holds.
        let first = (0..FIRST_LOOKS).map(|_| gap()).max().unwrap_or_default();
        Clock { gap, first, most: AtomicI64::new(first) }
    }

    pub(super) fn moment(&self) -> Moment {
        let slept = self.slept();
        moment_of(tokio_now(), slept)
    }

    /// Returns the moment for this `now` of tokio's, without checking whether the machine has slept since the last [`moment`](Clock::moment).
    pub(super) fn glance(&self, now: Instant) -> Moment {
        moment_of(now, self.most.load(Relaxed).abs_diff(self.first))
    }

    /// Returns how long the machine has slept since this clock was made, in nanoseconds. It never goes back, since it is compared with
    /// the value that was noted when a lease was confirmed.
    fn slept(&self) -> u64 {
        let (seen, known) = ((self.gap)(), self.most.load(Relaxed));
        let most = match seen < known + NOISE {
            true => known,
            false => self.most.fetch_max(seen, Relaxed).max(seen),
        };
        most.abs_diff(self.first)
    }
}

/// Returns the moment for this `now` of tokio's, if the machine has slept for `slept` nanoseconds.
fn moment_of(now: Instant, slept: u64) -> Moment {
    // Most machines never sleep.
    if slept == 0 {
        return Moment { now, slept: Duration::ZERO };
    }
    let slept = Duration::from_nanos(slept);
    Moment { now: now + slept, slept }
}

/// The longest that [`sleep_until`] sleeps without a look at the clock.
const GLANCE: Duration = Duration::from_secs(1);

/// Sleeps until `end`, a moment on the timeline of holds' deadlines.
///
/// A timer of tokio's is not enough:
///
/// 1. It is set for the end of a lease, an hour away.
/// 2. The machine sleeps for two hours, in which tokio's clock stands still.
/// 3. The timer fires an hour after the machine woke.
///
/// So the sleep is cut into slices, and the end is missed by one slice at most. A slice costs two or three readings of a clock; nothing
/// is locked.
pub(crate) async fn sleep_until(end: Instant, moment: impl Fn() -> Moment) {
    loop {
        let at = moment();
        if end <= at.now {
            return;
        }
        if Handle::try_current().is_err() {
            // Outside a runtime there is no timer, so this never returns: the caller learns of the loss when the background reports it.
            std::future::pending::<()>().await;
        }
        tokio::time::sleep_until(at.nap(end)).await;
    }
}

/// Returns the time of day in microseconds. Fencing tokens restart from it if a counter was lost.
pub(crate) fn time_of_day() -> u64 {
    #[cfg(test)]
    if let Some(time) = crate::base::testing::simulation::time_of_day() {
        return time;
    }
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// `CLOCK_BOOTTIME` counts sleep; `CLOCK_MONOTONIC`, which is tokio's clock, doesn't.
#[cfg(target_os = "linux")]
fn gap() -> i64 {
    use rustix::time::{ClockId, clock_gettime};
    // Read in this order, since a pause between the two readings then makes the gap look smaller, never larger.
    let (boot, other) = (clock_gettime(ClockId::Boottime), clock_gettime(ClockId::Monotonic));
    // 63 bits have room for 292 years.
    (boot.tv_sec - other.tv_sec) * 1_000_000_000 + (boot.tv_nsec - other.tv_nsec)
}

/// Returns no gap: other systems have no such pair of clocks to compare.
#[cfg(not(target_os = "linux"))]
fn gap() -> i64 {
    0
}

impl Moment {
    /// Returns the moment by tokio's clock, as it was read.
    pub(crate) fn by_tokio(self) -> Instant {
        self.local(self.now)
    }

    /// Returns until when a timer of tokio's may sleep before the next look, for a wait for this moment on the timeline of holds.
    pub(crate) fn nap(self, end: Instant) -> Instant {
        self.local(end).min(after(self.by_tokio(), GLANCE))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("slept", &Duration::from_nanos(self.slept())).finish()
    }
}

#[cfg(test)]
mod tests;
