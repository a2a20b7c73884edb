//! `Offer`: whether a hold that nobody has any more waits for its next owner in this process, and for how long it may.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Stamp, after};
use crate::table::queue::HEAD_PATIENCE;

/// How far a hold has passed on without a command.
#[derive(Debug, Default)]
pub(super) struct Offer {
    /// When the grant by the server was processed.
    granted: Option<Instant>,
    /// It is offered until then.
    until: Option<Stamp>,
    /// It has passed on.
    passed: bool,
    /// Its end lets other processes go first.
    yields: bool,
}

impl Offer {
    /// The server has granted the hold.
    pub(super) fn begin(&mut self, now: Instant) {
        self.granted = Some(now);
    }

    pub(super) fn granted(&self) -> Option<Instant> {
        self.granted
    }

    fn ends(&self, longest: Duration) -> Option<Instant> {
        self.granted.map(|granted| after(granted, longest))
    }

    /// Whether the hold may still pass on, by its time alone. `longest`: for how long after its grant it may.
    pub(super) fn is_in_time(&self, longest: Duration, now: Instant) -> bool {
        self.ends(longest).is_some_and(|end| now < end)
    }

    /// The hold is offered to the next owner, who has to come soon.
    pub(super) fn make(&mut self, longest: Duration, now: Instant) {
        self.until = self.ends(longest).map(|end| end.min(after(now, HEAD_PATIENCE)).into());
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.until.map(Stamp::at)
    }

    /// The next owner has it.
    pub(super) fn take(&mut self) {
        (self.until, self.passed) = (None, true);
    }

    /// It is not offered any more. Whether it was.
    pub(super) fn withdraw(&mut self) -> bool {
        self.until.take().is_some()
    }

    /// The last owner leaves while others of this process wait. Where the hold has passed on for as long as it may, they let other
    /// processes go first.
    pub(super) fn end(&mut self, longest: Duration, now: Instant) {
        self.yields = self.passed && !self.is_in_time(longest, now);
    }

    /// The hold is not there any more. Returns whether it was there until now: its end may be sent more than once, and a hold that was never
    /// granted has one too.
    pub(super) fn turn_ends(&mut self) -> bool {
        self.granted.take().is_some()
    }

    /// Whether others go first. Once: the next end of the hold is a repetition.
    pub(super) fn yields(&mut self) -> bool {
        std::mem::take(&mut self.yields)
    }
}
