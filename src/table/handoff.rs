//! How a released hold passes from owner to owner inside this process, without a command: it is offered to the head of the queue,
//! which takes it when it is polled. This is lock cohorting (Dice, Marathe, Shavit: Lock Cohorting, PPoPP 2012), bounded by time.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::after;
use crate::table::admission::AcquireParams;
use crate::table::entry::LockEntry;
use crate::table::hold::{Hold, State};
use crate::table::queue::HEAD_PATIENCE;
use crate::wire::{Notice, Pending, Reply};

/// The longest time for which a process lets other processes go first.
const LONGEST_PAUSE: Duration = HEAD_PATIENCE;

/// How much longer a process waits for each other process that is to go first.
const DUE: Duration = Duration::from_micros(500);

impl LockEntry {
    /// Called when the last level of this hold has left. Returns whether the hold is offered to the head of the queue; otherwise
    /// it ends. `passes`: the earlier result of [`Hold::may_pass`].
    pub(super) fn offer(&mut self, id: u64, passes: bool, now: Instant) -> bool {
        let Some(front) = self.outer_front() else { return false };
        // Not to a head whose own acquire is under way, or that lets others go first: it would not look for a while.
        let (front, accepts_handoff) = (front.id, front.accepts_handoff && front.can_be_woken());
        let Some(hold) = self.holds.iter_mut().find(|hold| hold.id == id) else { return false };
        if !(passes && accepts_handoff && self.is_open) {
            hold.offer.note_end(hold.timing.handoff, now);
            return false;
        }
        hold.offer.make(hold.timing.handoff, now);
        if let Some(request) = self.queue.get_mut(front) {
            request.asks_once_more();
        }
        true
    }

    /// Returns the hold that this request may take over. If the request is the head and may not take it, the hold ends.
    pub(super) fn offered_to(&mut self, id: u64, ask: &AcquireParams, now: Instant) -> Option<u64> {
        let offered = self.holds.iter().find(|hold| hold.is_offered())?;
        let (hold, good) = (offered.id, offered.may_pass(now));
        let front_accepts = self.outer_front().filter(|front| front.id == id)?.accepts_handoff;
        if good && ask.takes_over && front_accepts && self.is_open {
            return Some(hold);
        }
        self.withdraw_offer(now);
        None
    }

    /// Ends the offered hold, if there is one: it may be gone, or nobody is left to take it.
    pub(crate) fn withdraw_offer(&mut self, now: Instant) {
        self.leave_line(now);
        self.holds.iter_mut().filter(|hold| hold.is_offered()).for_each(|hold| hold.withdraw_offer(now));
    }

    /// Called when the end of a hold was answered. If the hold had been passed on for as long as it may be, the next request of
    /// this process gives those of other processes time to ask first. Otherwise this process would always win: the answer wakes its
    /// request, and only a message wakes theirs. The request rarely waits if nobody else was notified. It never waits if the lock
    /// was handed to the first process in the line, or left to clients that do not know the line.
    pub(super) fn lets_others_go_first(&mut self, pending: &Pending, reply: &Reply, now: Instant) {
        // A hold that was never granted has an end too.
        let ended = |hold: &&mut Hold| pending.is_end() && hold.offer.granted().is_some();
        let Some(hold) = self.hold(pending.hold).filter(ended) else { return };
        let yields = hold.offer.yields() && !matches!(reply, Reply::Ended(Notice::LeftToOthers(_)));
        // This process is subscribed too, and was counted with the others.
        let others = match *reply {
            Reply::Ended(Notice::Sent(notified)) if self.is_subscribed() => notified.checked_sub(1),
            _ => None,
        };
        self.others_due = others.filter(|_| yields).unwrap_or_default().try_into().unwrap_or(u32::MAX);
        if yields && (others != Some(0) || is_one_in_four(pending.hold)) {
            let round_trip = now.saturating_duration_since(pending.sent);
            self.front_pauses(2 * round_trip, now);
        }
    }

    /// Called when another process has released the lock. Processes that were notified of this process's last release and have not
    /// had the lock since go first. Otherwise the same few of many processes would always be next, since a server notifies them in a
    /// fixed order. Returns whether the next request of this process lets them go first. It does not if this process has, offers or
    /// ends a hold: then the message was late, and nothing is offered to a request that pauses.
    pub(super) fn lets_those_due_go_first(&mut self, now: Instant) -> bool {
        self.others_due = self.others_due.saturating_sub(1);
        let stands = |hold: &Hold| hold.has_lock() || hold.owes_end();
        self.others_due > 0
            && !self.holds.iter().any(stands)
            && self.front_pauses(DUE.saturating_mul(self.others_due), now)
    }

    /// Makes the next request of this process pause before it asks, unless it is asking already: then the answer decides. Returns
    /// whether a request pauses.
    fn front_pauses(&mut self, pause: Duration, now: Instant) -> bool {
        let front = self.outer_front().filter(|front| front.can_be_woken()).map(|front| front.id);
        let Some(front) = front else { return false };
        // The pause is bounded. Otherwise: 1. The end is sent, and the machine sleeps for hours, or the answer is looked at late.
        // 2. The request pauses for as long, and nothing wakes it.
        self.pause_request(front, after(now, pause.min(LONGEST_PAUSE)));
        // The request has to set its timer again.
        let woken = self.queue.get_mut(front).and_then(|request| request.wake(now));
        self.out.wake(woken);
        true
    }
}

/// Returns whether this process lets others go first after this hold although none are known: a process that only polls, or is
/// subscribed elsewhere, is never known. True for one in four holds, whatever pattern the numbers of holds have.
fn is_one_in_four(hold: u64) -> bool {
    // The multiples of the golden ratio are spread evenly, whatever the step between the numbers.
    hold.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0
}

impl Hold {
    /// Returns whether the server certainly has this hold as it was granted, so that another owner may continue it. Otherwise one of
    /// these could happen:
    ///
    /// - A command of it has run, or still runs, or its field is ended: the next owner gets a hold whose state its predecessor left open.
    /// - A crash of the next owner blocks others for longer than a lease.
    /// - A hold that is nearly over is granted, and lost.
    pub(super) fn may_pass(&self, now: Instant) -> bool {
        let lease = self.timing.lease.duration();
        self.state == State::Stands { unsettled: false }
            && self.command.is_none()
            && self.failures == 0
            && !self.release_tried
            && self.pending_releases.is_none()
            && self.fence.is_none()
            && self.kept_for(now).is_none()
            && self.copies.lacking.is_empty()
            && self.server_count <= 1
            && self.offer.is_in_time(self.timing.handoff, now)
            && now < self.certain_until
            && self.may_stand_until() <= after(now, lease)
    }

    /// Returns whether nobody has the hold and it is kept for the next owner in this process.
    pub(super) fn is_offered(&self) -> bool {
        self.offered_until().is_some()
    }

    /// Returns until when it is offered.
    pub(super) fn offered_until(&self) -> Option<Instant> {
        let stands = self.levels.is_empty() && self.state == State::Stands { unsettled: false };
        self.offer.until().filter(|_| stands)
    }

    /// Ends the offer, if there is one, and with it the hold, whose time may have ended while it was offered.
    pub(super) fn withdraw_offer(&mut self, now: Instant) {
        if self.offer.withdraw() {
            self.offer.note_end(self.timing.handoff, now);
            self.retry_at = now;
        }
    }
}
