//! How long to wait before the next attempt to connect.

use std::time::Duration;

use tokio::time::Instant;

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(500);

/// A connection that lived this long was a good one: the next attempt after it is made at once.
const GOOD: Duration = Duration::from_secs(1);

/// Pauses between attempts: none before the first, then from 10 ms doubling to 500 ms.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    pause: Duration,
}

impl Backoff {
    /// The pause before the coming attempt. Cut by up to a half at random, so that the clients of a server that came back
    /// do not come in step.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).clamp(SHORTEST, LONGEST);
        pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)
    }

    /// A connection that stood since then is gone. One that was accepted and dropped at once is no success: without a
    /// pause, a server that does so to all would be asked in a tight loop.
    pub(crate) fn lost(&mut self, since: Instant) {
        if since.elapsed() >= GOOD {
            self.pause = Duration::ZERO;
        }
    }
}
