//! The pause before the next attempt to connect.

use std::time::Duration;

use tokio::time::Instant;

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(500);

/// After a connection that lasted this long, the next attempt is made at once.
const STABLE: Duration = Duration::from_secs(1);

/// Pauses between attempts: none before the first, then from 10 ms doubling to 500 ms.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    pause: Duration,
}

impl Backoff {
    /// Returns the pause before the next attempt. It is shortened at random by up to a half, so that the clients of a restarted server do
    /// not connect all at once.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).clamp(SHORTEST, LONGEST);
        pause.mul_f64(0.5 + share() / 2.0)
    }

    /// Called when a connection that was made at `since` has ended. A connection that was accepted and dropped at once is no
    /// success: without a pause, a server that always does this would be connected to in a tight loop.
    pub(crate) fn lost(&mut self, since: Instant) {
        if since.elapsed() >= STABLE {
            self.pause = Duration::ZERO;
        }
    }
}

/// Returns a random number from 0 up to 1.
fn share() -> f64 {
    #[cfg(test)]
    if let Some(drawn) = crate::base::testing::simulation::chance() {
        return (drawn >> 11) as f64 / (1u64 << 53) as f64;
    }
    rand::random()
}

#[cfg(test)]
mod tests;
