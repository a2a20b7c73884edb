//! `Offer`: whether a released hold is kept for its next owner in this process, and for how long.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Stamp, after};
use crate::table::queue::HEAD_PATIENCE;

/// How far a hold has been passed on without a command.
#[derive(Debug, Default)]
pub(super) struct Offer {
    /// When the server's grant was processed.
    granted: Option<Instant>,
    /// The hold is offered until then.
    until: Option<Stamp>,
    /// Whether it has been passed on.
    passed: bool,
    /// Whether its end lets other processes go first.
    yields: bool,
}

impl Offer {
    /// Called when the server has granted the hold.
    pub(super) fn begin(&mut self, now: Instant) {
        self.granted = Some(now);
    }

    pub(super) fn granted(&self) -> Option<Instant> {
        self.granted
    }

    fn ends(&self, longest: Duration) -> Option<Instant> {
        self.granted.map(|granted| after(granted, longest))
    }

    /// Returns whether the hold was granted less than `longest` ago, so that it may still pass on.
    pub(super) fn is_in_time(&self, longest: Duration, now: Instant) -> bool {
        self.ends(longest).is_some_and(|end| now < end)
    }

    /// Offers the hold to the next owner, who has to take it soon.
    pub(super) fn make(&mut self, longest: Duration, now: Instant) {
        self.until = self.ends(longest).map(|end| end.min(after(now, HEAD_PATIENCE)).into());
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.until.map(Stamp::at)
    }

    /// Called when the next owner takes it.
    pub(super) fn take(&mut self) {
        (self.until, self.passed) = (None, true);
    }

    /// Ends the offer, but not the hold. Returns whether it was offered.
    pub(super) fn withdraw(&mut self) -> bool {
        self.until.take().is_some()
    }

    /// Notes that the hold ends while requests of this process wait. If the hold was passed on for as long as it may be, they let
    /// other processes go first.
    pub(super) fn note_end(&mut self, longest: Duration, now: Instant) {
        self.yields = self.passed && !self.is_in_time(longest, now);
    }

    /// Returns whether other processes go first. Returns true only once, since any further end of the hold is a repetition.
    pub(super) fn yields(&mut self) -> bool {
        std::mem::take(&mut self.yields)
    }
}
