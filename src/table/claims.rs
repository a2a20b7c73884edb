//! How a hold moves from this process to another, and back.

use std::sync::Arc;
use std::task::Waker;

use tokio::time::Instant;

use crate::base::meter::Sample;
use crate::base::{Lease, Moment};
use crate::error::Loss;
use crate::table::entry::{LAST_HANDED_OVER, LockEntry};
use crate::table::hold::{Hold, Sender};
use crate::wire::{self, Action, Pending};

/// Why a hold can't be handed over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// A command of the hold is under way, or due. The hand-over waits for it.
    Command,
    /// The hold has this many levels.
    Nested(u32),
    /// The hold has a fencing token.
    Fenced,
    Lost(Loss),
}

impl LockEntry {
    /// Returns whether the hold was handed over recently. If so, a late answer to one of its commands undoes nothing, since the
    /// field belongs to the claim.
    pub(super) fn was_handed_over(&self, hold: u64) -> bool {
        self.handed_over.as_ref().is_some_and(|last| last.contains(&hold))
    }

    fn note_handed_over(&mut self, hold: u64) {
        let last = self.handed_over.get_or_insert_default();
        last.rotate_left(1);
        last[LAST_HANDED_OVER - 1] = hold;
    }

    /// Returns whether a hold can be handed over now, or why it can't.
    pub(crate) fn may_be_handed_over(&self, id: u64, level: u64) -> Result<(), Obstacle> {
        let Some(hold) = self.hold_of_guard(id) else { return Err(Obstacle::Lost(Loss::Gone)) };
        let lost = hold.level(level).and_then(|level| level.loss()).or_else(|| hold.loss());
        match lost {
            Some(loss) => Err(Obstacle::Lost(loss)),
            None if hold.count() > 1 => Err(Obstacle::Nested(hold.count())),
            None if hold.fence.is_some() => Err(Obstacle::Fenced),
            // A command under way may still change the hold. Otherwise: 1. A re-entry is under way. 2. The hold is resumed
            // elsewhere. 3. The re-entry is granted here, and two
            // processes hold.
            None if hold.command.is_some() || hold.next_action().is_some() => Err(Obstacle::Command),
            None => Ok(()),
        }
    }

    /// Hands the hold over to a claim: from now on this process neither renews nor ends it. If a command is in the way, `waker` is
    /// woken when it is over.
    pub(crate) fn hand_over(
        &mut self,
        id: u64,
        level: u64,
        waker: &Waker,
        at: Moment,
    ) -> Result<(), Obstacle> {
        self.lose_late(id, at);
        let obstacle = self.may_be_handed_over(id, level);
        if obstacle == Err(Obstacle::Command) {
            self.wake_on_command_end(waker);
        }
        obstacle?;
        for mut hold in self.holds.extract_if(.., |hold| hold.id == id) {
            self.out.measure(Sample::Ended(at.now.saturating_duration_since(hold.since)));
            if let Some(left) = hold.remove_level(level) {
                left.unregister_at(&self.position);
            }
        }
        self.note_handed_over(id);
        self.forget_proofs();
        // Requests here that waited for its end now wait for the end of another process's hold.
        self.head_asks_once_more(at.now);
        self.wake_requests(at.now);
        Ok(())
    }

    /// Begins to resume the hold that another process had under the field `from`.
    pub(crate) fn begin_resume(
        &mut self,
        command_id: u64,
        from: Arc<str>,
        uuid: &str,
        lease: Lease,
        now: Instant,
    ) -> Pending {
        // A fresh field, so that a command for the claim's field changes nothing if it runs late, after the claim was resumed and
        // released here.
        let field = wire::field(uuid, command_id);
        let mut hold = Hold::new(command_id, self.keys.clone(), field, self.timing.clone(), lease, now);
        let mut pending = hold.begin(Action::Move { lease }, Sender::Request, command_id, now);
        pending.call.from = Some(from);
        self.holds.push(hold);
        pending
    }
}

#[cfg(test)]
mod tests;
