//! One clock for all processes of the machine, in nanoseconds.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Now.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Tokio's instant on this clock, or a little earlier.
pub(crate) fn of(instant: Instant) -> u64 {
    // In this order: a pause between the two looks makes the instant seem earlier. A deadline must not seem later
    // than it is.
    let (now, tokios) = (now(), Instant::now());
    match instant.checked_duration_since(tokios) {
        Some(ahead) => now.saturating_add(nanos(ahead)),
        None => now.saturating_sub(nanos(tokios.duration_since(instant))),
    }
}

/// What the future returns, and when the poll began in which it does.
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
