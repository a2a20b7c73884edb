//! What differs from run to run: some runs are calm and only polled late, others have all kinds of trouble at
//! once.

use std::time::Duration;

use super::dice::Dice;
use super::{MILLISECOND, SECOND};

/// What differs from run to run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) masters: usize,
    pub(super) lease: Duration,
    pub(super) node_timeout: Duration,
    /// How late a future that was woken may be polled.
    pub(super) lateness: Duration,
    /// How long a caller stays where it is.
    pub(super) stay: Duration,
    /// Whether masters stall, and commands and answers are lost.
    pub(super) faults: bool,
    /// Whether locks are released by force, or deleted.
    pub(super) forces: bool,
    /// Whether a master comes back empty.
    pub(super) restarts: bool,
    /// Whether a `Locks` is closed.
    pub(super) closes: bool,
    /// Whether the runtime is blocked now and then.
    pub(super) blocks: bool,
    pub(super) rounds: usize,
}

impl Plan {
    pub(super) fn draw(dice: &Dice) -> Plan {
        let node_timeout = dice.pick(&[100, 500, 500, 2000]) * MILLISECOND;
        let lease = dice.pick(&[5, 30, 1800, 1800]) * SECOND;
        Plan {
            masters: dice.pick(&[1, 3]),
            lease,
            node_timeout,
            lateness: dice.pick(&[50 * MILLISECOND, 3 * node_timeout, 10 * node_timeout]),
            stay: dice.pick(&[20 * MILLISECOND, 5 * SECOND, 60 * SECOND]),
            faults: dice.one_in(2),
            forces: dice.one_in(4),
            restarts: dice.one_in(3),
            closes: dice.one_in(4),
            blocks: dice.one_in(3),
            rounds: 1 + dice.roll(3),
        }
    }

    /// Long enough for commands to be given up, and for short leases to end.
    pub(super) fn longest_stall(&self) -> Duration {
        (3 * self.node_timeout).max(self.lease.min(30 * SECOND) * 3 / 2)
    }

    /// Returns how long it takes at most until the locks are free and nothing is left of them, once all is
    /// well and every caller lets go.
    pub(super) fn patience(&self) -> Duration {
        10 * SECOND + 10 * self.node_timeout
    }
}
