//! A request's way to its grant: its place in the queue, its turn, and the answers to its attempts.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Moment, after};
use crate::error::Loss;
use crate::owner::Owner;
use crate::table::effects::LogEvent;
use crate::table::entry::{LockEntry, is_of_tree};
use crate::table::grant::NewLevel;
use crate::table::hold::{Hold, Sender};
use crate::table::level::{Grant, Level};
use crate::table::queue::{Ambiguous, Waiter, WaiterState};
use crate::wire::{self, Action, Fence, Line, Pending};

/// What a request has to do now.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Send this acquire.
    Ask(Pending),
    /// Nothing: it took over an offered hold, or entered the hold of its tree, without a command. It has left the queue. Drop the request
    /// once nothing is locked.
    Granted(Arc<Grant>, Waiter),
    /// Others are before it: it waits until woken, at most until the given time. A request that makes a single attempt is over.
    Refused(Option<Instant>),
    /// A command of this process goes before it, and is soon over: it waits until woken, at most until the given time.
    Wait(Option<Instant>),
    /// It enters the hold of its tree in its next poll, and is already woken for that.
    Yield,
    /// The hold that it would enter is lost.
    Lost(Loss),
    /// The hold that it would enter has no fencing token.
    Unfenced,
    /// It may be nested in a level of its owner, or belong to another branch of its owner.
    Ambiguous,
}

impl Admission {
    fn of(taken: Option<(Arc<Grant>, Waiter)>) -> Admission {
        taken.map_or(Admission::Refused(None), |(granted, request)| Admission::Granted(granted, request))
    }
}

/// What [`LockEntry::admit`] needs from the request's options and the session.
#[derive(Clone)]
pub(crate) struct AcquireParams<'a> {
    /// The level that it asks for. Its number is also that of the command, if one is sent.
    pub(crate) new: NewLevel,
    pub(crate) single_attempt: bool,
    pub(crate) uuid: &'a str,
    /// What the grant requires of the fencing counter, if it needs a token. Called only for an attempt, not each time that a
    /// waiter is polled.
    pub(crate) fence: Option<&'a dyn Fn() -> Arc<Fence>>,
    /// Whether it may take over an offered hold and, if it is bare, enter a hold without a command: not in its first poll (see
    /// `Acquire::attempt`), and not in the child of a fork.
    pub(crate) takes_over: bool,
    /// Returns whether it may enter the hold of its tree without a command: the masters have to be connected, and this must not be the
    /// child of a fork. `None`: it may not.
    pub(crate) may_nest_locally: Option<&'a dyn Fn() -> bool>,
    /// Whether it fails if its owner has a bare guard of the lock.
    pub(crate) refuses: bool,
    /// Whether it asks who has the lock, if the lock is busy.
    pub(crate) report_holder: bool,
    /// The line that it enters if the lock is busy.
    pub(crate) line: Option<Line>,
    /// Whether hints are refused to this process, so that a field that waits for them leaves the line.
    pub(crate) hints_refused: bool,
}

/// What determines how long a refused request sleeps.
#[derive(Clone, Copy)]
pub(crate) struct Refusal {
    /// When it asks again if nothing wakes it.
    pub(crate) latest: Instant,
    /// The end of its random pause, when it asks again if it may have missed the message of a release.
    pub(crate) pause: Instant,
    /// Whether the message of a release, or a hint, reaches this process.
    pub(crate) is_notified: bool,
    /// Whether the votes were split.
    pub(crate) split: bool,
}

impl Refusal {
    /// Describes a refusal after which the request sleeps until the given time, or until it is notified.
    pub(crate) fn until(until: Instant) -> Refusal {
        Refusal { latest: until, pause: until, is_notified: true, split: false }
    }
}

#[cfg(test)]
impl AcquireParams<'_> {
    /// Returns the parameters of a plain request in its first poll.
    pub(crate) fn plain(number: u64, lease: crate::base::Lease) -> Self {
        AcquireParams {
            new: NewLevel::watched(number, lease),
            single_attempt: false,
            uuid: "me",
            fence: None,
            takes_over: false,
            may_nest_locally: None,
            refuses: false,
            report_holder: false,
            line: None,
            hints_refused: false,
        }
    }
}

impl LockEntry {
    /// Puts a request into the queue at its first poll.
    #[cfg(test)]
    pub(crate) fn enter_alone(&mut self, request: Waiter) -> Result<(), Ambiguous> {
        self.enter(request, u64::MAX)
    }

    /// Puts a request into the queue that belongs to a call which began at the number `began`. A level that its owner was granted
    /// since is not above the request: two branches of the owner ask, and they queue. They need not have been in the queue
    /// together: 1. The first one leaves the queue, since it waits for another name. 2. The second one is granted. 3. The first one
    /// asks again.
    pub(crate) fn enter(&mut self, mut request: Waiter, began: u64) -> Result<(), Ambiguous> {
        // The owner of a `run` ends after its request and its level, so it leaves nothing to an heir.
        if request.bare {
            request.owner = request.owner.register_at(&self.position);
        }
        let owner = request.owner.clone();
        // Only bare requests prove branches. A level counts even if its hold is lost: 1. Two branches of an owner ask at once. 2. The
        // first one gets the lock, and its hold is lost. 3. It asks once more, while it has the guard. If this request counted as a
        // new branch, it would be granted the lock again without learning of the loss.
        let mut owner_has_guard = false;
        if request.bare {
            for hold in &mut self.holds {
                // The newest comes first.
                for level in hold.levels.iter_mut().rev().filter(|level| level.owner == owner) {
                    if level.id() <= began {
                        owner_has_guard = true;
                        break;
                    }
                    level.branch = true;
                    self.queue.note_branch(&owner);
                }
            }
        }
        self.queue.enter(request, owner_has_guard).inspect_err(|_| owner.unregister_at(&self.position))
    }

    /// Notes that a request is being polled: from now on `waker` is woken for it. Drop the returned value once nothing is locked: a
    /// waker may be the last reference to its task, whose drop may drop guards.
    #[must_use]
    pub(crate) fn polled(&mut self, id: u64, waker: &Waker, now: Instant) -> Option<Waker> {
        self.queue.get_mut(id)?.polled(waker, now)
    }

    /// Removes from the queue a request that is ready, refused or dropped, and wakes the one after it. The request's drop calls this
    /// at once: a request that lingered would prove branches that do not exist.
    ///
    /// Drop the returned value once nothing is locked: a waker may be the last reference to its task, whose drop may drop guards.
    #[must_use]
    pub(crate) fn leave_queue(&mut self, id: u64, now: Instant) -> Option<Waiter> {
        let head = self.outer_front().is_some_and(|front| front.id == id);
        let request = self.queue.remove(id);
        if let Some(request) = request.as_ref().filter(|request| request.bare) {
            request.owner.unregister_at(&self.position);
        }
        self.forget_proofs();
        // A new head always asks. Otherwise: 1. A message wakes the head. 2. The head leaves without having asked. 3. The next
        // request, which may have asked and gone to sleep when it was the head before, sleeps on though the lock is free.
        if head {
            self.head_asks_once_more(now)
        } else {
            self.wake_next(now)
        }
        request
    }

    /// Returns what this request has to do. Called in its poll.
    pub(crate) fn admit(&mut self, id: u64, ask: AcquireParams, at: Moment) -> Admission {
        // A loss that nobody has noted yet is noted first. Otherwise: 1. The outer level's `max_hold` is over, and the background has
        // not looked yet. 2. Its owner asks to re-enter. 3. The grant, below a level that is over, lives on.
        if let Some(live) = self.live().map(|hold| hold.id) {
            self.lose_late(live, at);
        }
        let now = at.now;
        if ask.single_attempt && self.queue.len() > 1 {
            // The background looks at a late head only while another request is in the queue, and this one is there only for a
            // moment. Without this look, a lock that nobody holds would be refused for as long as the head is not polled.
            self.end_overdue(at);
            self.pass_over_late(now);
            if self.holds.iter().any(Hold::is_over) {
                self.sweep(now);
            }
        }
        let Some(request) = self.queue.get(id) else { return Admission::Refused(None) };
        // A noted loss is checked first. Otherwise: 1. A nested request waits. 2. The hold is lost. 3. The task that awaits the loss
        // drops the guard. 4. The request is polled, and is granted the lock again, without learning of the loss.
        if let Some(loss) = request.lost.or_else(|| self.lost_above(request)) {
            return Admission::Lost(loss);
        }
        match self.live().filter(|hold| is_of_tree(request, hold)) {
            Some(_) => self.admit_nested(id, ask, now),
            None => self.admit_outermost(id, ask, now),
        }
    }

    /// Warns about a refused request that waits for an owner in whose scope the request itself runs, since that wait can hardly
    /// end. `surrounds` returns whether an owner is such an owner.
    pub(crate) fn warn_of_self_wait(&mut self, id: u64, surrounds: impl Fn(&Owner) -> bool) {
        let Some(hold) = self.holds.iter().find(|hold| hold.lives()) else { return };
        let Some(request) = self.queue.get_mut(id).filter(|request| !request.warned) else { return };
        let mut strangers = hold.levels.iter().filter(|level| !request.owner.is_within(&level.owner));
        if let Some(level) = strangers.find(|level| surrounds(&level.owner)) {
            request.warned = true;
            let news = LogEvent::SelfWait { asks: request.owner.clone(), holds: level.owner.clone() };
            self.out.log(news);
        }
    }

    /// Returns the loss of a hold that the request's owner, or an ancestor, still has a guard of.
    fn lost_above(&self, request: &Waiter) -> Option<Loss> {
        let entered = self.holds.iter().filter(|hold| !hold.levels.is_empty() && is_of_tree(request, hold));
        entered
            .filter(|hold| hold.levels_of(&request.owner).next().is_none())
            .find_map(|hold| hold.loss().or_else(|| hold.levels.iter().find_map(Level::loss)))
    }

    /// Decides the turn of a request whose owner, or an ancestor, holds the lock.
    fn admit_nested(&mut self, id: u64, ask: AcquireParams, now: Instant) -> Admission {
        // After a failed attempt it pauses like any other request.
        let paused = self.queue.get(id).and_then(|request| request.sleeps_until(now));
        if let (Some(until), false) = (paused, ask.single_attempt) {
            return Admission::Refused(Some(until));
        }
        let renews = self.is_open;
        let Some(request) = self.inner_front().filter(|front| front.id == id) else {
            self.no_longer_asleep(id);
            return Admission::Refused(None);
        };
        let Some(hold) = self.live() else { return Admission::Refused(None) };
        if ask.fence.is_some() && hold.fence.is_none() {
            return Admission::Unfenced;
        }
        let own = |level: &&Level| level.bare && level.owner == request.owner;
        let could_be_a_branch = |level: &Level| {
            ask.refuses || !request.branch && request.first_polled.is_beside(level.first_polled)
        };
        if request.bare && hold.levels.iter().filter(own).any(could_be_a_branch) {
            return Admission::Ambiguous;
        }
        // A fixed lease may have to be longer than the rest of the hold.
        let lasts = !ask.new.fixed || ask.new.lease.valid_until(now, hold.timing.drift) <= hold.valid_until;
        if let Some(connected) = ask.may_nest_locally
            && renews
            && lasts
            && hold.is_certain(now)
            && connected()
        {
            if ask.takes_over || !request.bare {
                let hold = hold.id;
                return Admission::of(self.take(id, hold, &ask.new, now));
            }
            // It enters in its next poll, and may be passed over like any other: 1. It yields, and is not polled again for a
            // while. 2. A sibling asks after it. 3. It is passed over.
            self.no_longer_asleep(id);
            let woken = self.queue.get_mut(id).and_then(|request| request.wake(now));
            self.out.wake(woken);
            return Admission::Yield;
        }
        let Some(hold) = self.holds.iter_mut().find(|hold| hold.lives()) else {
            return Admission::Refused(None);
        };
        if !hold.is_callers_turn(renews, now) {
            let until = hold.overdue_at();
            // Its pause is over. Otherwise: 1. It waits for a settle. 2. The settle is answered, which wakes no request that sleeps.
            // 3. It looks again only when its timer fires, and may find a renewal under way each time.
            self.no_longer_asleep(id);
            return Admission::Wait(until);
        }
        let action = Action::Acquire { count: hold.count() + 1, lease: ask.new.lease };
        let pending = hold.begin(action, Sender::Request, ask.new.level, now);
        self.set_phase(id, WaiterState::Asking);
        Admission::Ask(pending)
    }

    /// Decides the turn of a request that does not nest in a live hold: a stranger, or any request while no hold lives.
    ///
    /// In this order: it takes over an offered hold; it pauses; it is not the head; ends of this process go first; a single attempt
    /// finds a head that moves; the head sleeps, or this process has the lock; the lock is left to other processes; it asks by the field
    /// that is in the line; it asks by a fresh field.
    fn admit_outermost(&mut self, id: u64, ask: AcquireParams, now: Instant) -> Admission {
        if let Some(offered) = self.offered_to(id, &ask, now) {
            return Admission::of(self.take(id, offered, &ask.new, now));
        }
        let (busy, front) = (self.live().is_some(), self.outer_front().map(|front| front.id));
        let Some(request) = self.queue.get(id) else { return Admission::Refused(None) };
        // Checked before the ends. Otherwise: 1. The head waits for the end of a hold, and not for its own time. 2. That end is
        // answered, which does not wake a request that pauses. 3. Nothing wakes it for a node timeout.
        if let Some(until) = request.pauses_until(now).filter(|_| front == Some(id) && !ask.single_attempt) {
            return Admission::Refused(Some(until));
        }
        // Only the head waits for the end of a hold of this process, since the answer wakes only the head. Otherwise: 1. Another
        // request waits for that end. 2. Its time runs out during the next end. 3. It would report that the server does not answer.
        if front != Some(id) && !ask.single_attempt {
            self.no_longer_asleep(id);
            return Admission::Refused(None);
        }
        // A release of this process goes first, or a request would find its own process's old hold. It goes first only once: a
        // release that the server does not answer must not keep requests from asking.
        if self.holds.iter().any(Hold::end_goes_first) {
            let until = self.holds.iter().filter_map(Hold::overdue_at).min();
            if request.sleeps_until(now).is_none() {
                // The answer wakes it.
                self.no_longer_asleep(id);
            }
            return Admission::Wait(until);
        }
        if front != Some(id) {
            let head = front.and_then(|front| self.queue.get(front));
            let moves = head.is_some_and(|head| head.phase == WaiterState::Asking || head.woken);
            if moves {
                self.no_longer_asleep(id);
                return Admission::Refused(None);
            }
        } else if !ask.single_attempt {
            // While this process has a hold there is nothing to ask: its end wakes the head, and if its key is deleted unnoticed,
            // its next renewal reveals that.
            let until = request.sleeps_until(now);
            if until.is_some() || (busy && request.phase == WaiterState::Waiting) {
                return Admission::Refused(until);
            }
        }
        if let Some(until) = self.left_to_others_until(now).filter(|_| !ask.single_attempt) {
            self.pause_request(id, until);
            return Admission::Refused(Some(until));
        }
        let (fence, NewLevel { level: command_id, lease, .. }) = (ask.fence.map(|fence| fence()), ask.new);
        if front == Some(id)
            && let Some(pending) = self.ask_again_in_line(&ask, fence.clone(), now)
        {
            self.set_phase(id, WaiterState::Asking);
            return Admission::Ask(pending);
        }
        // A process has one place in the line. A request of a subscribed entry enters, since nothing else would wake it. If nothing
        // shows that the lock is busy, the line is not mentioned, since that would cost requests that never wait: once the request is
        // refused and subscribed, it asks again.
        let has_place = |hold: &Hold| hold.in_line || hold.enters && hold.is_beginning();
        let enters = (self.contended || self.is_subscribed())
            && !ask.single_attempt
            && !self.holds.iter().any(has_place);
        let line = ask.line.filter(|_| enters);
        let field = match ask.line {
            Some(Line { polls: true, .. }) => wire::polling_field(ask.uuid, command_id),
            _ => wire::field(ask.uuid, command_id),
        };
        let (keys, timing) = (self.keys.clone(), self.timing.clone());
        let mut hold = Hold::new(command_id, keys, field, timing, lease, now);
        let mut pending = hold.ask(lease, fence, command_id, now);
        (pending.call.line, hold.enters) = (line, line.is_some());
        // A request that may sleep after the answer also asks who has the lock. One that is not subscribed yet asks again once it is.
        pending.call.report_holder = ask.report_holder || (self.is_subscribed() && !ask.single_attempt);
        self.holds.push(hold);
        self.set_phase(id, WaiterState::Asking);
        Admission::Ask(pending)
    }

    /// Called when it is not this request's turn: clears the sleep, so that it asks as soon as it is the head. Otherwise: 1. It
    /// fell asleep as the head. 2. An earlier one that had been passed over came back. 3. Its own timer ended in the meantime,
    /// without effect. 4. The earlier one left, and nothing wakes a request that seems asleep.
    fn no_longer_asleep(&mut self, id: u64) {
        if self.queue.get(id).is_some_and(Waiter::is_asleep) {
            self.set_phase(id, WaiterState::Waiting);
        }
    }

    fn set_phase(&mut self, id: u64, phase: WaiterState) {
        if let Some(request) = self.queue.get_mut(id) {
            request.phase = phase;
            request.again = false;
        }
    }

    /// Called when its command is over without success: it asks again as soon as its turn comes. Otherwise: 1. Its command is given
    /// up. 2. An earlier request that had been passed over comes back and is the head. 3. This one still seems to be asking, and
    /// waits for the head. 4. The head leaves, and nothing wakes a request that seems to be asking.
    pub(crate) fn back_to_waiting(&mut self, id: u64) {
        self.set_phase(id, WaiterState::Waiting);
    }

    /// Keeps the lock of this hold from everybody else for this long from now.
    pub(crate) fn keep(&mut self, hold: u64, at_least: Duration, now: Instant) {
        if let Some(hold) = self.hold(hold) {
            hold.keep_until(after(now, at_least));
        }
    }

    /// Puts a request whose acquire was answered "busy" to sleep, unless something happened while it asked. If it may have missed the
    /// message of a release, it sleeps no longer than a pause. After a split vote it sleeps for the whole pause, whatever messages come.
    pub(crate) fn refused(&mut self, id: u64, Refusal { latest, pause, is_notified, split }: Refusal) {
        let missed = self.subscription.as_mut().is_some_and(|subscription| subscription.take_missed());
        match split {
            // Each request that undoes its votes publishes, so all would ask again in step.
            true => self.pause_request(id, pause),
            false if is_notified && !missed => self.put_to_sleep(id, latest),
            false => self.put_to_sleep(id, latest.min(pause)),
        }
    }

    /// Returns whether the votes on the previous attempt were split, which its verdict did not show. Returns true only once.
    pub(crate) fn was_split(&mut self) -> bool {
        self.subscription.as_mut().is_some_and(|subscription| std::mem::take(&mut subscription.split))
    }

    /// Makes the request ask again at `until`, whatever messages come in between.
    pub(crate) fn pause_request(&mut self, id: u64, until: Instant) {
        self.set_phase(id, WaiterState::Pausing { until });
    }

    /// Makes the request ask again at `until`, or at once if something happened while it asked.
    pub(crate) fn put_to_sleep(&mut self, id: u64, until: Instant) {
        if let Some(request) = self.queue.get_mut(id) {
            let again = std::mem::take(&mut request.again);
            request.phase = if again { WaiterState::Waiting } else { WaiterState::Asleep { until } };
        }
    }
}
