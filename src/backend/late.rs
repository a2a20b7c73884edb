//! Explains timeouts for which neither the server nor the network is to blame.

use std::time::Duration;

use tokio::time::Instant;

/// A timer is later than this only if something kept the process, or one of its threads, from running.
const LATE: Duration = Duration::from_millis(100);

/// Returns why nothing arrived before the deadline, which has passed, if the reason is visible in this process.
pub(crate) fn why_late(deadline: Instant) -> Option<String> {
    if clock_is_changed() {
        return Some(CLOCK.to_owned());
    }
    let late = Instant::now().saturating_duration_since(deadline);
    // Rounded, for people to read.
    let late = Duration::from_millis(u64::try_from(late.as_millis()).unwrap_or(u64::MAX));
    (late >= LATE).then(|| {
        format!(
            "this was noticed {late:?} late, so the process had no CPU, a task blocked its thread, or this future was not polled: \
             check that first, then the server and the network"
        )
    })
}

/// Returns the reason if tokio's clock was changed. It needs no deadline.
pub(super) fn changed_clock() -> Option<&'static str> {
    clock_is_changed().then_some(CLOCK)
}

/// Returns whether tokio's clock was paused, or set forward by `advance`. Otherwise it equals the machine's, to the nanosecond.
fn clock_is_changed() -> bool {
    let before = std::time::Instant::now();
    let by_tokio = Instant::now().into_std();
    !(before..=std::time::Instant::now()).contains(&by_tokio)
}

const CLOCK: &str = "tokio's clock was paused, so this time may not have passed, and a server answers in real time: do not pause it \
     beside a server, or use `Locks::in_memory`";

#[cfg(test)]
mod tests;
