//! Who has the lock, as far as this is known without asking, and who waits for it.

use std::time::Duration;

use crate::base::Moment;
use crate::base::meter::Sample;
use crate::holder::Holder;
use crate::table::entry::{LockEntry, is_of_tree};
use crate::table::hold::Hold;
use crate::table::seen::Owned;
use crate::wire::{Pending, Reply};

/// How this process uses a lock: what it holds, and what it waits for.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    /// The number of levels of its hold, or 0 if it has none.
    pub(crate) hold_count: usize,
    /// How long ago its hold was granted.
    pub(crate) held_for: Option<Duration>,
    /// How long its hold is still good.
    pub(crate) remaining_lease: Option<Duration>,
    pub(crate) waiting: usize,
    /// How long the first of these requests has waited.
    pub(crate) waiting_for: Option<Duration>,
    /// The holder that these requests wait for, if it is another process.
    pub(crate) holder: Option<Holder>,
}

impl LockEntry {
    /// Notes the holder when the masters have refused the lock to a request of this process: all later requests wait for the same
    /// holder.
    pub(super) fn note_holder(&mut self, pending: &Pending, reply: &Reply) {
        if let Reply::InLine(_, _, length) = reply {
            self.out.measure(Sample::Line(*length));
        }
        let holder = match reply {
            Reply::Busy(_, holder) if pending.call.report_holder => holder.as_deref(),
            Reply::InLine(_, holder, _) => Some(&**holder),
            _ => None,
        };
        if let Some(holder) = holder {
            // A hold of this process is not noted, since the process knows it without an answer, and may have ended it in the meantime.
            let ours = holds_of(&pending.call.field);
            let is_theirs = holds_of(holder.hold_id()) != ours;
            self.seen.note(is_theirs.then(|| holder.clone()), pending.sent);
        }
    }

    /// Returns who has the lock now: an owner of this process, or the holder that the masters reported last. `None` if nobody has
    /// it, or it is unknown.
    pub(crate) fn holder(&self, at: Moment) -> Option<Owned> {
        if let Some(hold) = self.held(at) {
            let left = hold.deadline().saturating_duration_since(at.now);
            let holder = Holder::new(hold.field.clone(), hold.count() as usize, left);
            return Some(Owned { holder, here: true, held: at.now.saturating_duration_since(hold.since) });
        }
        self.seen.holder(at.now)
    }

    /// Returns whether the lock is held by an owner of this process that is not related to the owner of this request.
    pub(crate) fn is_held_by_another(&self, asks: u64) -> bool {
        let asks = self.queue.get(asks);
        self.live().zip(asks).is_some_and(|(hold, asks)| !is_of_tree(asks, hold))
    }

    /// Returns what this process holds and what it waits for, or `None` if there is neither.
    pub(crate) fn usage(&self, at: Moment) -> Option<Usage> {
        let (held, first) = (self.held(at), self.queue.first());
        (held.is_some() || first.is_some()).then(|| Usage {
            hold_count: held.map_or(0, |hold| hold.count() as usize),
            held_for: held.map(|hold| hold.granted_for(at.now)),
            remaining_lease: held.map(|hold| hold.deadline().saturating_duration_since(at.now)),
            waiting: self.queue.len(),
            waiting_for: first.map(|first| first.waited(at.now)),
            holder: self.holder(at).filter(|owned| !owned.here).map(|owned| owned.holder),
        })
    }

    fn held(&self, at: Moment) -> Option<&Hold> {
        self.live().filter(|hold| at.now < hold.deadline())
    }
}

/// Returns the prefix of the fields of all holds of a session.
fn holds_of(field: &str) -> Option<&str> {
    field.rsplit_once(':').map(|(session, _)| session)
}
