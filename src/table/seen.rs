//! `Seen`: another process's hold, as the masters reported it. `Owned`: who has a lock.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Stamp, after};
use crate::holder::Holder;

/// Who has a lock.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) holder: Holder,
    /// Whether it is an owner of this process.
    pub(crate) here: bool,
    /// How long it has had the lock; another process has had it at least that long.
    pub(crate) held: Duration,
}

/// Who had the lock when the masters last refused it to this process, if the lock is not known to have changed hands since.
#[derive(Debug, Default)]
pub(super) struct Seen {
    last: Option<Box<Last>>,
    /// When this process last learned that the lock changed hands.
    changed: Option<Stamp>,
}

/// Another process's hold, as it was last reported.
#[derive(Debug)]
struct Last {
    holder: Holder,
    /// When its lease ends, if it is not renewed.
    until: Stamp,
    /// Since when the hold is known to exist.
    since: Instant,
}

impl Seen {
    /// Notes the holder named in the answer to a command that was sent at `sent`, unless something is known to have changed since.
    /// Otherwise: 1. The command is sent. 2. The lock is released, and this process is notified. 3. The answer arrives, and the
    /// previous holder is noted.
    pub(super) fn note(&mut self, holder: Option<Holder>, sent: Instant) {
        if self.changed.is_none_or(|changed| changed < sent.into()) {
            let before = self.last.take();
            self.last = holder.map(|holder| {
                let same = before.filter(|last| last.holder.hold_id() == holder.hold_id());
                let until = after(sent, holder.remaining_lease()).into();
                Box::new(Last { holder, until, since: same.map_or(sent, |last| last.since) })
            });
        }
    }

    /// Called when the lock was released, or granted to this process.
    pub(super) fn clear(&mut self, now: Instant) {
        (self.last, self.changed) = (None, Some(now.into()));
    }

    /// Returns who has the lock now, or `None` if the lease known here is over: the hold may have been renewed since.
    pub(super) fn holder(&self, now: Instant) -> Option<Owned> {
        let Last { holder, until, since } = &**self.last.as_ref()?;
        let left = until.at().saturating_duration_since(now);
        let held = now.saturating_duration_since(*since);
        (left > Duration::ZERO).then(|| Owned {
            holder: holder.with(holder.count(), left),
            here: false,
            held,
        })
    }
}

#[cfg(test)]
mod tests;
