//! One clock for all processes of the machine, in nanoseconds.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Returns the current time.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Converts tokio's instant to this clock; the result may be a little too early.
pub(crate) fn of(instant: Instant) -> u64 {
    // The order matters: a pause between the two looks makes the instant seem earlier. A deadline must not seem later than it is.
    let (now, tokios) = (now(), Instant::now());
    match instant.checked_duration_since(tokios) {
        Some(ahead) => now.saturating_add(nanos(ahead)),
        None => now.saturating_sub(nanos(tokios.duration_since(instant))),
    }
}

/// Returns the output of the future, and the time at which its last poll began.
pub(crate) async fn before<F: Future>(future: F) -> (F::Output, u64) {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let began = now();
        future.as_mut().poll(cx).map(|output| (output, began))
    })
    .await
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
