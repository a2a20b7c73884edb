//! An entry's place in the line: the processes that wait for a lock, in order, on the server. The script that ends a hold makes the
//! first of them the holder for a time, and sends it a hint. That process enters after the answer to one more acquire of the same
//! field.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{MasterSet, Stamp, after};
use crate::table::admission::AcquireParams;
use crate::table::entry::LockEntry;
use crate::table::hold::Hold;
use crate::table::queue::WaiterState;
use crate::wire::{self, Fence, Hint, Line, Pending, Reply};

/// The longest that a request in the line sleeps if it entered before messages of releases reached this process: a client that does
/// not know the line may have released the lock in between.
pub(super) const LONGEST_POLL: Duration = Duration::from_millis(250);

/// Allowed delay of the server: a key counts as expired this long after its TTL, or after twice its TTL if that is shorter.
const SERVER_DELAY: Duration = Duration::from_millis(10);

/// A request that gets no hints asks again after this fraction of the time for which the present holder has had the lock. So while
/// the lock changes hands quickly, the request asks often, and a lock that is handed to it is idle only briefly.
const POLL_PART: u32 = 8;

/// The shortest pause of a request that gets no hints.
const SHORTEST_POLL: Duration = Duration::from_millis(2);

/// A process that has left the lock to others asks this much later than the first process in the line.
const AFTER_THE_FIRST: Duration = Duration::from_millis(2);

/// Returns after how long this TTL is certainly over on the server.
fn certainly_over(time: Duration) -> Duration {
    time + time.min(SERVER_DELAY)
}

impl LockEntry {
    /// Returns whether this process is in the line.
    pub(super) fn is_in_line(&self) -> bool {
        self.holds.iter().any(|hold| hold.in_line)
    }

    /// Makes the head ask with the field that is in the line, whichever request put it there.
    pub(super) fn ask_again_in_line(
        &mut self,
        ask: &AcquireParams,
        fence: Option<Arc<Fence>>,
        now: Instant,
    ) -> Option<Pending> {
        let stands = |hold: &&mut Hold| hold.in_line && hold.command.is_none();
        let hold = self.holds.iter_mut().find(stands).filter(|_| !ask.single_attempt)?;
        if (ask.hints_refused || ask.line.is_some_and(|line| line.polls)) && !wire::polls(&hold.field) {
            // The field entered while hints reached this process. Now it would be passed over as that of a process that is gone.
            hold.end_place_in_line(now);
            return None;
        }
        let line = hold.timing.line?;
        let mut pending = hold.ask(ask.new.lease, fence, ask.new.level, now);
        pending.call.line = Some(Line { again: true, ..line });
        pending.call.report_holder = true;
        Some(pending)
    }

    /// Returns how long a request in the line pauses if it gets no hints: this process may not subscribe, or the holder may not publish.
    pub(crate) fn polls_after(&mut self, pending: &Pending, reply: &Reply) -> Option<Duration> {
        let Reply::InLine(_, holder, _) = reply else { return None };
        let hold = self.hold(pending.hold).filter(|hold| hold.in_line)?;
        if !wire::polls(&hold.field) && !wire::polls(holder.hold_id()) {
            return None;
        }
        // The holder is not noted if its field is one of this process's, as a claim's may be.
        let waited = pending.sent.saturating_duration_since(hold.since);
        let held = self.seen.holder(pending.sent).map_or(waited, |owned| owned.held);
        // A lock that is handed to it is kept for it for a second or more.
        Some((held / POLL_PART).clamp(SHORTEST_POLL, LONGEST_POLL))
    }

    /// Called when the acquire was answered "busy" and its field is now in the line: the hold is kept, since the server may hand
    /// the lock to it.
    pub(super) fn keep_in_line(&mut self, pending: &Pending, now: Instant) {
        match self.hold(pending.hold).filter(|hold| hold.under_way(pending.command_id)) {
            Some(hold) => {
                hold.finish(pending.command_id, now);
                hold.in_line = true;
            }
            None => self.made_late(pending, now),
        }
        self.wake_next(now);
    }

    /// Called when a field in the line was answered "busy", without a mention of the line: it may or may not still be in it. So
    /// the field leaves, and the next attempt has a fresh one.
    pub(super) fn leave_line_in_doubt(&mut self, pending: &Pending, now: Instant) -> bool {
        let stood = |hold: &&mut Hold| hold.in_line && hold.under_way(pending.command_id);
        let Some(hold) = self.hold(pending.hold).filter(stood) else { return false };
        hold.finish(pending.command_id, now);
        hold.end_place_in_line(now);
        self.wake_next(now);
        true
    }

    /// Takes this process out of the line, by an end of its hold, if nobody here waits for the lock.
    pub(super) fn leave_line(&mut self, now: Instant) {
        let stands = |hold: &&mut Hold| hold.in_line && hold.command.is_none();
        if self.timing.line.is_none() || !self.is_in_line() || (self.is_open && self.outer_front().is_some())
        {
            return;
        }
        self.holds.iter_mut().filter(stands).for_each(|hold| hold.end_place_in_line(now));
    }

    /// Called when hints begin to reach this process, or are refused to it. The head asks once more, since it may have been refused outside
    /// the line, have missed a hint, or wait in the line for one that will not come.
    pub(crate) fn hints_change(&mut self, now: Instant) {
        if self.outer_front().is_some_and(|front| front.is_asleep() || front.phase == WaiterState::Asking) {
            self.head_asks_once_more(now);
        }
    }

    /// Called when hints about this lock, which have a channel of their own, begin or cease to reach this process. The channel of
    /// the lock's releases is confirmed later, and then the head asks.
    pub(crate) fn hints_of_lock(&mut self, on: bool, now: Instant) {
        let Some(subscription) = &mut self.subscription else { return };
        if std::mem::replace(&mut subscription.hints, on) != on && !subscription.confirmed.is_empty() {
            self.hints_change(now);
        }
    }

    /// Returns whether hints about this lock, which have a channel of their own, reach this process.
    pub(crate) fn gets_hints(&self) -> bool {
        self.subscription.as_ref().is_some_and(|subscription| subscription.hints)
    }

    /// Called when a [`Hint`] arrives. It only makes this process ask or look. Returns whether its field is known here.
    pub(crate) fn hinted(&mut self, hint: Hint, now: Instant) -> bool {
        // The hold is found by its field, which stays the same.
        let number =
            |hold: &&mut Hold| hold.field.rsplit_once(':').and_then(|(_, number)| number.parse().ok());
        let Some(hold) = self.holds.iter_mut().find(|hold| number(hold) == Some(hint.number)) else {
            // The waiters here have to ask when it has expired.
            let at = hint.wait.map_or(now, |wait| after(now, certainly_over(wait)));
            self.ask_by(at, now);
            return false;
        };
        let (waits, is_held) = (hold.in_line || hold.is_beginning(), hold.has_lock());
        match hint.wait {
            Some(wait) if waits => self.ask_by(after(now, certainly_over(wait)), now),
            None if waits => {
                // The server hands the lock to a field that waits only if nobody has it, so another hold of this process may be gone.
                if self.holds.iter().any(Hold::has_lock) {
                    self.doubt_all(now);
                }
                self.head_asks_once_more(now);
            }
            // The lock was freed by force, so this process asks whether it still has it. Or the hint came late, after a request
            // that asked by itself was granted the hold.
            None if is_held => self.doubt_all(now),
            // The field needs another end: 1. A request asks, and is dropped. 2. Its end runs, and then its acquire, which enters the
            // line. 3. The lock is handed to that field. 4. The hint overtakes the answer to the end.
            None => hold.remains_at(MasterSet::one(0), now),
            Some(_) => {}
        }
        true
    }

    /// Called when the end of a hold of this process was answered: the lock is left to clients that do not know the line for this
    /// time. Otherwise the next request of this process would always ask before them. The request also lets the first process in
    /// the line go first, which asks at the end of that time.
    pub(super) fn leave_to_others(&mut self, time: Duration, now: Instant) {
        self.left_until = Some(after(now, certainly_over(time) + AFTER_THE_FIRST).into());
    }

    /// Returns until when a request of this process leaves the lock to others.
    pub(super) fn left_to_others_until(&mut self, now: Instant) -> Option<Instant> {
        self.left_until.take_if(|until| until.at() <= now);
        self.left_until.map(Stamp::at).filter(|_| !self.is_in_line())
    }

    /// Called for a message on the lock's channel that only concerns clients that do not know the line.
    pub(crate) fn left_to_others(&mut self, master: usize, now: Instant) {
        if !self.is_in_line() {
            return self.message(master, now);
        }
        // The first process in the line gets a hint when to ask, and the second one when to ask if the first is gone.
        self.expect_no_echo_of(MasterSet::one(master));
        self.doubt_all(now);
        self.seen.clear(now);
    }

    /// Makes the head ask at `at` at the latest, even if nothing wakes it.
    pub(super) fn ask_by(&mut self, at: Instant, now: Instant) {
        let Some(front) = self.outer_front().map(|front| front.id) else { return };
        let Some(request) = self.queue.get_mut(front) else { return };
        match &mut request.phase {
            WaiterState::Asleep { until } if at < *until => {
                *until = at;
                // The request has to set its timer again.
                let woken = request.wake(now);
                self.out.wake(woken);
            }
            // The answer on its way may be older.
            WaiterState::Asking => request.asks_once_more(),
            _ => {}
        }
    }
}

impl Hold {
    /// Makes the end due that takes the hold's field out of the line.
    fn end_place_in_line(&mut self, now: Instant) {
        (self.failures, self.retry_at) = (0, now);
        self.stop_waiting_in_line(now);
    }

    /// Notes that the hold no longer waits in the line. Its field may stay there for longer than the lease of the last acquire.
    pub(super) fn stop_waiting_in_line(&mut self, now: Instant) {
        self.in_line = false;
        let stays = self.timing.line.map_or(Duration::ZERO, |line| line.stays.duration());
        self.gone_by = self.gone_by.max(after(now, stays));
    }
}
