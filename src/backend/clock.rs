//! tokio's clock, also where tokio's own thread-locals are gone.

use tokio::runtime::Handle;
use tokio::time::Instant;

/// Whether tokio's own thread-locals are still alive on this thread.
struct TokioAlive(bool);

impl Drop for TokioAlive {
    // Empty, but it makes std destroy this thread-local, and std destroys the one that was made last first.
    fn drop(&mut self) {}
}

thread_local! {
    /// Made after tokio's thread-local, since it looks at tokio's handle, and so destroyed before it.
    static TOKIO_ALIVE: TokioAlive = TokioAlive(!Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()));
}

/// Returns the time of tokio's clock, also for a guard that another thread-local drops when its thread ends. If a clock was ever paused in the
/// process, tokio's `now` panics there, which would end the process.
pub(crate) fn tokio_now() -> Instant {
    match TOKIO_ALIVE.try_with(|alive| alive.0) {
        Ok(true) => Instant::now(),
        _ => Instant::from_std(std::time::Instant::now()),
    }
}
