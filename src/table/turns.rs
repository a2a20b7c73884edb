//! `Turns`: how often other processes have the lock between the turns of this one.

use std::time::Duration;

/// How much longer a process lets others go first for each release of theirs that it missed.
const MISSED: Duration = Duration::from_micros(500);

/// Releases of other processes, as far as their messages arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    since: u32,
    before: u32,
}

impl Turns {
    /// Another process has released the lock.
    pub(super) fn note(&mut self) {
        self.since = self.since.saturating_add(1);
    }

    /// A turn of this process is over. Returns how much longer than usual it would let others go first: where they had fewer turns between
    /// its last two than between the two before, it came too early.
    pub(super) fn end(&mut self) -> Duration {
        let missed = self.before.saturating_sub(self.since);
        (self.since, self.before) = (0, self.since);
        MISSED.saturating_mul(missed)
    }
}
