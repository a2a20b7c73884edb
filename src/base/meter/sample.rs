//! `Sample`: one thing that is counted or measured.

use std::time::Duration;

use crate::error::Loss;

/// Of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sample {
    /// A request was granted a hold, so long after its first poll.
    Waited(Duration),
    /// A hold began.
    Held,
    /// It ended, released or lost, so long after it began.
    Ended(Duration),
    /// It ended without a release. `fixed`: with its fixed lease, as was asked for.
    Lost { loss: Loss, fixed: bool },
    /// A request was not granted within the time that it had.
    TimedOut,
    /// A hold was renewed after failed attempts.
    RenewedLate,
    /// Too few masters answered a command.
    Unavailable,
}
