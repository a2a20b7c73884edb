//! How a released hold passes from owner to owner inside this process, without a command: it is offered to the head of the line, which
//! takes it when it is polled. This is lock cohorting (Dice, Marathe, Shavit: Lock Cohorting, PPoPP 2012), bounded by time.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::meter::Sample;
use crate::base::{Moment, after};
use crate::table::admission::{AcquireParams, NewLevel};
use crate::table::entry::{LockEntry, may_enter};
use crate::table::hold::{Hold, State};
use crate::table::level::Grant;
use crate::table::queue::{HEAD_PATIENCE, Waiter, WaiterState};
use crate::wire::{Pending, Reply};

/// The longest time for which a process lets others go first.
const LONGEST_PAUSE: Duration = HEAD_PATIENCE;

impl LockEntry {
    /// Called when the last level of this hold has left. Returns whether the hold is offered to the head of the line; otherwise it
    /// ends. `passes`: the earlier result of [`Hold::may_pass`].
    pub(super) fn offer(&mut self, id: u64, passes: bool, now: Instant) -> bool {
        let Some(front) = self.outer_front() else { return false };
        // 1. Its own acquire is under way, or it lets others go first. 2. It would not look for a while.
        let comes = matches!(front.phase, WaiterState::Waiting | WaiterState::Asleep { .. });
        let (front, accepts_handoff) = (front.id, front.accepts_handoff && comes);
        let Some(hold) = self.holds.iter_mut().find(|hold| hold.id == id) else { return false };
        if !(passes && accepts_handoff && self.is_open) {
            hold.offer.end(hold.timing.handoff, now);
            return false;
        }
        hold.offer.make(hold.timing.handoff, now);
        if let Some(request) = self.queue.get_mut(front) {
            request.asks_once_more();
        }
        true
    }

    /// Returns the hold that this request may take over. If the request is the head and may not, the hold ends.
    pub(super) fn offered_to(&mut self, id: u64, ask: &AcquireParams, now: Instant) -> Option<u64> {
        let offered = self.holds.iter().find(|hold| hold.is_offered())?;
        let (hold, good) = (offered.id, offered.may_pass(now));
        let front_accepts = self.outer_front().filter(|front| front.id == id)?.accepts_handoff;
        if good && ask.accepts_handoff && front_accepts && self.is_open {
            return Some(hold);
        }
        self.withdraw(now);
        None
    }

    /// Has a request take over the hold that was offered to it, or enter the hold of its tree. Drop the returned request once
    /// nothing is locked.
    pub(crate) fn take(&mut self, id: u64, hold: u64, new: &NewLevel, at: Moment) -> Option<(Grant, Waiter)> {
        let request = self.queue.get(id)?;
        let enters = |one: &Hold| one.is_offered() || one.lives() && may_enter(request, one);
        let hold = self.holds.iter_mut().find(|one| one.id == hold && enters(one))?;
        let request = self.queue.leave(id)?;
        // The masters have counted nothing.
        let (first, stands) = (hold.levels.is_empty(), hold.stands);
        // The level ends no later than the hold.
        let ends = new.lease.valid_until(at.now, hold.timing.drift);
        hold.enter(new.level(&request, ends, at.now), stands);
        new.at_least.into_iter().for_each(|longest| hold.keep_until(after(at.now, longest)));
        if first {
            hold.offer.take();
            hold.since = at.now;
        }
        let sample = if first { Sample::Held } else { Sample::Nested };
        self.out.measure(sample);
        let granted = hold.granted(new.level, new.signal.clone());
        self.waits_no_more(id);
        self.tree_asks_once_more();
        self.wake_next(at.now);
        Some((granted, request))
    }

    /// Ends an offered hold: it may be gone, or nobody is to take it.
    pub(crate) fn withdraw(&mut self, now: Instant) {
        if self.timing.line.is_some() {
            self.leave_fair_line(now);
        }
        self.holds.iter_mut().filter(|hold| hold.is_offered()).for_each(|hold| hold.withdraw(now));
    }

    /// Called when the end of a hold was answered. If the hold had been passed on for as long as it may, the next request of this
    /// process asks only after those of other processes had the time to: 1. It is woken by the answer, they by a message. 2. It
    /// would always come first. Mostly it does not wait if nobody else was notified and nobody else had the lock lately: it would
    /// wait for nobody.
    pub(super) fn lets_others_go_first(&mut self, pending: &Pending, reply: &Reply, now: Instant) {
        if !pending.is_end() {
            return;
        }
        // At each turn, including one that nobody took over.
        let Some(hold) = self.hold(pending.hold) else { return };
        if !hold.offer.turn_ends() {
            return;
        }
        let yields = hold.offer.yields();
        // This process is subscribed, so others may be too, and its own subscription is the only one.
        let counts_us_alone = *reply == Reply::Ended(1) && !self.subscription.confirmed().is_empty();
        let is_alone = counts_us_alone && self.turns.are_ours();
        let longer = self.turns.end(yields);
        if yields && !(is_alone && self.turns.skips_a_pause()) {
            let round_trip = now.saturating_duration_since(pending.sent);
            self.front_pauses(2 * round_trip + longer, now);
        }
    }

    /// Called when another process has released the lock, for those that have waited for longer than this one, if any. Returns
    /// whether the next request of this process lets them go first. It does not if this process has, offers or ends a hold: the
    /// message was late then, and nothing is offered to a request that pauses.
    pub(super) fn lets_longest_waiting_go_first(&mut self, now: Instant) -> bool {
        let pause = self.turns.until_due();
        let stands = |hold: &Hold| hold.lives() || hold.is_offered() || hold.ends();
        let pauses = !pause.is_zero() && !self.holds.iter().any(stands) && self.front_pauses(pause, now);
        if pauses {
            self.turns.waits();
        }
        pauses
    }

    /// Makes the next request of this process ask no earlier than that, unless it asks already: then it is about to get an answer,
    /// which decides. Returns whether a request pauses.
    fn front_pauses(&mut self, pause: Duration, now: Instant) -> bool {
        let comes =
            |front: &&Waiter| matches!(front.phase, WaiterState::Waiting | WaiterState::Asleep { .. });
        let Some(front) = self.outer_front().filter(comes).map(|front| front.id) else { return false };
        // 1. The end is sent, and the machine sleeps for hours, or the answer is looked at late. 2. Nothing wakes a request that
        // pauses.
        self.pauses(front, after(now, pause.min(LONGEST_PAUSE)));
        // It has to set its timer.
        let woken = self.queue.get_mut(front).and_then(|request| request.wake(now));
        self.out.wake(woken);
        true
    }
}

impl Hold {
    /// Returns whether the server certainly has this hold as it had it at its grant, so that another owner may continue it.
    ///
    /// 1. A command of it may have run, or may still run, or its field may be ended: the next owner would get a hold whose state
    ///    its predecessor left open. 2. A crash of the next owner would block others for longer than a lease. 3. A hold that is
    ///    nearly over would be granted, and lost.
    pub(super) fn may_pass(&self, now: Instant) -> bool {
        let lease = self.timing.lease.duration();
        self.state == State::Stands { unsettled: false }
            && self.command.is_none()
            && self.failures == 0
            && !self.release_tried
            && self.pending_releases.is_empty()
            && self.fence.is_none()
            && self.is_kept_for(now).is_none()
            && self.copies.spread.lacking.is_empty()
            && self.stands <= 1
            && self.offer.is_in_time(self.timing.handoff, now)
            && self.is_sure(now)
            && self.valid_until.max(self.maybe_until) <= after(now, lease)
    }

    /// Returns whether it is nobody's and is kept for the next owner in this process.
    pub(super) fn is_offered(&self) -> bool {
        self.offered_until().is_some()
    }

    /// Returns until when it is offered.
    pub(super) fn offered_until(&self) -> Option<Instant> {
        let stands = self.levels.is_empty() && self.state == State::Stands { unsettled: false };
        self.offer.until().filter(|_| stands)
    }

    /// Ends the offer and the hold. The hold's time may have ended while it was offered.
    pub(super) fn withdraw(&mut self, now: Instant) {
        if self.offer.withdraw() {
            self.offer.end(self.timing.handoff, now);
            self.retry_at = now;
        }
    }
}
