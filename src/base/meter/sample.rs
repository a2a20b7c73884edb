//! `Sample`: one event of one lock that is counted or measured.

use std::time::Duration;

use crate::error::Loss;

/// An event of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sample {
    /// A request was granted a hold, this long after its first poll.
    Waited(Duration),
    /// A hold began.
    Held,
    /// A level was granted inside a hold, without a command.
    Nested,
    /// A hold ended, released or lost, this long after it began.
    Ended(Duration),
    /// A hold ended without a release. `fixed` means that its fixed lease ended, as its request wanted.
    Lost { loss: Loss, fixed: bool },
    /// A request found this many processes in the lock's line, itself included.
    Line(u32),
    /// A request was not granted within its time.
    TimedOut,
    /// A hold was renewed after failed attempts.
    RenewedLate,
    /// Too few masters answered a command.
    Unavailable,
}
