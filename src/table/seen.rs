//! `Seen`: another process's hold, as the masters reported it. `Owned`: who has a lock.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Stamp, after};
use crate::holder::Holder;

/// Who has a lock.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) holder: Holder,
    /// It is an owner of this process.
    pub(crate) here: bool,
}

/// Who had the lock when the masters refused it to this process last, if the lock did not change hands since.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// With when its lease ends, if it is not renewed.
    last: Option<(Box<Holder>, Stamp)>,
    /// When this process learned last that the lock changed hands.
    changed: Option<Instant>,
}

impl Seen {
    /// By the answer to a command that was sent then. 1. It is sent. 2. The lock is released, and this process is notified. 3. The answer
    /// comes: it names who had the lock before. So it counts only where nothing is known to have changed since it was sent.
    pub(super) fn note(&mut self, holder: Option<Box<Holder>>, sent: Instant) {
        if self.changed.is_none_or(|changed| changed < sent) {
            self.last = holder.map(|holder| {
                let until = after(sent, holder.remaining_lease());
                (holder, until.into())
            });
        }
    }

    /// The lock was released, or granted to this process.
    pub(super) fn clear(&mut self, now: Instant) {
        (self.last, self.changed) = (None, Some(now));
    }

    /// Who has the lock now. `None`: the lease is over, and nobody here knows whether it was renewed.
    pub(super) fn holder(&self, now: Instant) -> Option<Holder> {
        let (holder, until) = self.last.as_ref()?;
        let left = until.at().saturating_duration_since(now);
        (left > Duration::ZERO).then(|| holder.with(holder.count(), left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also what was asked at that very moment: the answer may be about what was before.
    #[test]
    fn what_was_asked_before_the_lock_changed_hands_is_not_noted() {
        let (step, lease) = (Duration::from_millis(1), Duration::from_secs(10));
        let now = Instant::now();
        for (sent, is_noted) in [(now, false), (now + step, false), (now + 2 * step, true)] {
            let mut seen = Seen::default();
            seen.clear(now + step);
            seen.note(Some(Box::new(Holder::new("theirs:1", 1, lease))), sent);
            assert_eq!(seen.holder(now + 2 * step).is_some(), is_noted);
        }
    }
}
