//! Of an entry: who has the lock, as far as this process knows without asking, and who waits for it.

use std::time::Duration;

use crate::base::Moment;
use crate::holder::Holder;
use crate::table::entry::LockEntry;
use crate::table::hold::Hold;
use crate::table::seen::Seen;
use crate::wire::{Pending, Reply};

/// Who has a lock.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) holder: Holder,
    /// It is an owner of this process.
    pub(crate) here: bool,
}

/// What this process has of a lock, and what it waits for.
#[derive(Debug)]
pub(crate) struct Usage {
    /// The levels of its hold, how long ago that was granted, and how long it is good for yet.
    pub(crate) held: Option<(usize, Duration, Duration)>,
    pub(crate) waiting: usize,
    /// How long the first of them has waited.
    pub(crate) longest: Duration,
    /// Whose hold is waited for, where it is not this process's.
    pub(crate) holder: Option<Holder>,
}

impl LockEntry {
    /// The masters refused the lock to a request of this process: whoever waits behind it has the same holder before it.
    pub(super) fn note_holder(&mut self, pending: &Pending, reply: &Reply) {
        if let (Reply::Busy(_, holder), true) = (reply, pending.call.names) {
            // Not a hold of this process, which may have ended meanwhile.
            let theirs =
                holder.clone().filter(|holder| self.holds.iter().all(|hold| *hold.field != *holder.field()));
            self.seen = theirs.map(|holder| Seen::new(holder, pending.sent));
        }
    }

    /// Who has the lock now: an owner of this process, or who the masters reported last. `None`: nobody, or it is not known.
    pub(crate) fn holder(&self, at: Moment) -> Option<Owned> {
        if let Some(hold) = self.held(at) {
            let left = hold.end().saturating_duration_since(at.now);
            let holder = Holder::new(hold.field.clone(), hold.count() as usize, left);
            return Some(Owned { holder, here: true });
        }
        let holder = self.seen.as_ref()?.holder(at.now)?;
        Some(Owned { holder, here: false })
    }

    /// What this process has of the lock, and what it waits for. `None`: neither.
    pub(crate) fn usage(&self, at: Moment) -> Option<Usage> {
        let held = self.held(at).map(|hold| {
            let since = hold.offer.granted().unwrap_or(at.now);
            let left = hold.end().saturating_duration_since(at.now);
            (hold.count() as usize, at.now.saturating_duration_since(since), left)
        });
        let (waiting, first) = (self.queue.len(), self.queue.first());
        if held.is_none() && waiting == 0 {
            return None;
        }
        let longest = first.map_or(Duration::ZERO, |first| first.waits(self.terms.epoch, at.now));
        let holder = self.holder(at).filter(|owned| !owned.here).map(|owned| owned.holder);
        Some(Usage { held, waiting, longest, holder })
    }

    fn held(&self, at: Moment) -> Option<&Hold> {
        self.live().filter(|hold| at.now < hold.end())
    }
}
