//! An entry's place in the fair line, where the processes that wait for a lock stand in order, on the server. Whoever
//! ends a hold makes the first of them the holder for a time, and sends it a hint. That process enters after the answer to one more
//! acquire of the same field.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{MasterSet, Stamp, after};
use crate::table::admission::AcquireParams;
use crate::table::entry::LockEntry;
use crate::table::hold::Hold;
use crate::table::queue::WaiterState;
use crate::wire::{self, Fence, Hint, Line, Pending, Reply};

/// A request that entered the line before messages of releases reached this process asks again by then: a client that does not know
/// the line may have released the lock in between.
pub(super) const UNHEARD: Duration = Duration::from_millis(250);

/// Allowed delay: a key counts as over this long after its time by the server's clock, or after twice its time if that is shorter.
const BEHIND: Duration = Duration::from_millis(10);

/// A request that gets no hint asks again after this part of the time for which the present holder has had the lock. While the lock
/// changes hands quickly, it asks often, and leaves the lock idle for a short time when it is handed to it.
const POLL_PART: u32 = 8;

/// The shortest pause of such a request.
const SHORTEST_POLL: Duration = Duration::from_millis(2);

/// How much later than the first of the line a process asks that has left the lock to others.
const AFTER_THE_FIRST: Duration = Duration::from_millis(2);

/// Returns when something is over that takes this long by the server's clock.
fn past(time: Duration) -> Duration {
    time + time.min(BEHIND)
}

impl LockEntry {
    /// Returns whether this process stands in the fair line.
    pub(super) fn is_in_line(&self) -> bool {
        self.holds.iter().any(|hold| hold.in_line)
    }

    /// Has the head ask by the field that stands in the fair line, whichever request entered it.
    pub(super) fn ask_again_in_line(
        &mut self,
        ask: &AcquireParams,
        fence: Option<Arc<Fence>>,
        now: Instant,
    ) -> Option<Pending> {
        let stands = |hold: &&mut Hold| hold.in_line && hold.command.is_none();
        let hold = self.holds.iter_mut().find(stands).filter(|_| !ask.single_attempt)?;
        if ask.line.is_some_and(|line| line.polls) && !wire::polls(&hold.field) {
            // It entered while hints reached this process, and would be passed over as one that is gone.
            hold.end_in_line(now);
            return None;
        }
        let line = hold.timing.line?;
        let mut pending = hold.ask(ask.new.lease, fence, ask.new.level, now);
        pending.call.line = Some(Line { again: true, ..line });
        pending.call.report_holder = true;
        Some(pending)
    }

    /// Returns for how long a request in the line pauses to which nobody may send a hint: this process may not subscribe, or the one
    /// that has the lock may not publish.
    pub(crate) fn polls_after(&mut self, pending: &Pending, reply: &Reply) -> Option<Duration> {
        let Reply::InLine(_, holder, _) = reply else { return None };
        let hold = self.hold(pending.hold).filter(|hold| hold.in_line)?;
        if !wire::polls(&hold.field) && !wire::polls(holder.hold_id()) {
            return None;
        }
        // The holder is not noted if its field is one of this process, as that of a claim is.
        let waited = pending.sent.saturating_duration_since(hold.since);
        let held = self.seen.holder(pending.sent).map_or(waited, |owned| owned.held);
        // The lock is kept for it for a second or more.
        Some((held / POLL_PART).clamp(SHORTEST_POLL, UNHEARD))
    }

    /// Called when the acquire was answered "busy", and its field stands in the line: the hold is kept, since the server may hand
    /// the lock to it.
    pub(super) fn stands_in_line(&mut self, pending: &Pending, now: Instant) {
        match self.hold(pending.hold).filter(|hold| hold.under_way(pending.command_id)) {
            Some(hold) => {
                hold.finish(pending.command_id, now);
                hold.in_line = true;
            }
            None => self.made_late(pending, now),
        }
        self.wake_next(now);
    }

    /// Called when a field in the line was answered "busy", without a word about the line: it may still be in it, or not. So it
    /// leaves, and the next attempt has a field of its own.
    pub(super) fn leaves_in_doubt(&mut self, pending: &Pending, now: Instant) -> bool {
        let stood = |hold: &&mut Hold| hold.in_line && hold.under_way(pending.command_id);
        let Some(hold) = self.hold(pending.hold).filter(stood) else { return false };
        hold.finish(pending.command_id, now);
        hold.end_in_line(now);
        self.wake_next(now);
        true
    }

    /// Takes this process out of the server's fair line, by an end, if nobody here waits for the lock.
    pub(super) fn leave_fair_line(&mut self, now: Instant) {
        let stands = |hold: &&mut Hold| hold.in_line && hold.command.is_none();
        if !self.is_in_line() || (self.is_open && self.outer_front().is_some()) {
            return;
        }
        self.holds.iter_mut().filter(stands).for_each(|hold| hold.end_in_line(now));
    }

    /// Called when hints begin to reach this process: the head asks once more, since it may have been refused outside the line, or
    /// have missed a hint.
    pub(crate) fn hints_begin(&mut self, now: Instant) {
        if self.outer_front().is_some_and(|front| front.is_asleep() || front.phase == WaiterState::Asking) {
            self.head_asks_once_more(now);
        }
    }

    /// Called when hints about this lock, which have a channel of their own, begin or cease to reach this process. The channel of
    /// the lock's releases is confirmed after it, and the head asks then.
    pub(crate) fn hints_of_lock(&mut self, on: bool, now: Instant) {
        let Some(subscription) = &mut self.subscription else { return };
        if std::mem::replace(&mut subscription.hints, on) != on && !subscription.confirmed.is_empty() {
            self.hints_begin(now);
        }
    }

    /// Returns whether hints about this lock, which have a channel of their own, reach this process.
    pub(crate) fn gets_hints(&self) -> bool {
        self.subscription.as_ref().is_some_and(|subscription| subscription.hints)
    }

    /// Called when a hint came: see [`Hint`]. It decides nothing.
    pub(crate) fn hinted(&mut self, hint: Hint, now: Instant) {
        // Found by the field, which stays the same. 1. It stood in the line, and the lock was handed over to another process since,
        // as a claim. 2. The hint comes late. An end of it here would end that claim: so a field that nobody here knows is left to
        // expire.
        let number =
            |hold: &&mut Hold| hold.field.rsplit_once(':').and_then(|(_, number)| number.parse().ok());
        let Some(hold) = self.holds.iter_mut().find(|hold| number(hold) == Some(hint.number)) else {
            // The waiters here have to know for how long that is.
            let at = hint.wait.map_or(now, |wait| after(now, past(wait)));
            return self.asks_by(at, now);
        };
        let (waits, is_held) = (hold.in_line || hold.is_beginning(), hold.has_lock());
        match hint.wait {
            Some(wait) if waits => self.asks_by(after(now, past(wait)), now),
            None if waits => self.head_asks_once_more(now),
            // The lock was freed by force, so this process asks whether it still has it. Or the hint came late: a request that
            // asked by itself was granted the hold that the hint reports.
            None if is_held => self.doubt_all(now),
            // 1. A request asks, and is dropped. 2. Its end runs, and then its acquire, which enters the line. 3. The lock is handed to it.
            // 4. The hint overtakes the answer to the end.
            None => hold.remains_at(MasterSet::one(0), now),
            Some(_) => {}
        }
    }

    /// Called when the end of a hold of this process was answered: the lock is left to clients that do not know the line for this
    /// time. Otherwise the next request of this process would always be there before them. It also comes after the first of the
    /// line, which asks at the end of that time.
    pub(super) fn leaves_it_to_others(&mut self, time: Duration, now: Instant) {
        self.left_until = Some(after(now, past(time) + AFTER_THE_FIRST).into());
    }

    /// Returns until when a request of this process leaves the lock to others.
    pub(super) fn left_to_others_until(&mut self, now: Instant) -> Option<Instant> {
        self.left_until.take_if(|until| until.at() <= now);
        self.left_until.map(Stamp::at).filter(|_| !self.is_in_line())
    }

    /// Called for a message on the lock's channel that is for clients that do not know the line.
    pub(crate) fn left_to_others(&mut self, master: usize, now: Instant) {
        if !self.is_in_line() {
            return self.message(master, now);
        }
        // The first of the line is notified when to ask, and the second when to ask if the first is gone.
        self.expect_no_echo_of(MasterSet::one(master));
        self.doubt_all(now);
        self.seen.clear(now);
    }

    /// Has the head ask no later than that, even if nothing wakes it.
    pub(super) fn asks_by(&mut self, at: Instant, now: Instant) {
        let Some(front) = self.outer_front().map(|front| front.id) else { return };
        let Some(request) = self.queue.get_mut(front) else { return };
        match &mut request.phase {
            WaiterState::Asleep { until } if at < *until => {
                *until = at;
                // It has to set its timer.
                let woken = request.wake(now);
                self.out.wake(woken);
            }
            // The answer that it is about to get may be older.
            WaiterState::Asking => request.asks_once_more(),
            _ => {}
        }
    }
}

impl Hold {
    /// Makes the end of a hold in the line due.
    fn end_in_line(&mut self, now: Instant) {
        (self.failures, self.retry_at) = (0, now);
        self.stays_in_line(now);
    }

    /// Notes that it waits here no longer, though its field may stay in the line, for longer than the lease of the last acquire.
    pub(super) fn stays_in_line(&mut self, now: Instant) {
        self.in_line = false;
        let stays = self.timing.line.map_or(Duration::ZERO, |line| line.stays.duration());
        self.gone_by = self.gone_by.max(after(now, stays));
    }
}
