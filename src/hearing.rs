//! Whether this process hears of a lock's releases: for as long as a stranger waits for it.

use crate::deadline::Moment;
use crate::queue::{Phase, Request};
use crate::room::{Hearing, Room};

impl Room {
    pub(crate) fn is_heard(&self) -> bool {
        self.hearing == Hearing::On
    }

    /// Whether the wish to hear of releases has changed: as long as a stranger waits.
    pub(crate) fn hears(&mut self) -> Option<bool> {
        // One that asks is not told to wait yet: most that ask once never are.
        let behind = |front: &Request| self.live().is_some() && front.phase == Phase::Waiting;
        let waits = self.outer_front().is_some_and(|front| front.is_asleep() || behind(front));
        match (self.hearing, waits) {
            (Hearing::Off, true) => {
                self.hearing = Hearing::Asked;
                Some(true)
            }
            (Hearing::Asked | Hearing::On, false) if self.queue.is_empty() => {
                self.hearing = Hearing::Off;
                self.echoes = 0;
                Some(false)
            }
            _ => None,
        }
    }

    /// The subscription was confirmed: what was published before is not heard, so the head asks once more.
    pub(crate) fn hears_now(&mut self, at: Moment) {
        if self.hearing == Hearing::Asked {
            self.hearing = Hearing::On;
            self.freed(at.now);
        }
    }

    /// The subscription is lost or refused: messages may have been missed.
    pub(crate) fn hears_no_more(&mut self, at: Moment) {
        if self.hearing == Hearing::On {
            self.hearing = Hearing::Asked;
            self.echoes = 0;
            self.freed(at.now);
        }
    }
}
