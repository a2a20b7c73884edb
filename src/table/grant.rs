//! Where a level enters a hold, whatever granted it: an answer of the masters, an offer, or the hold of the requester's tree. A nested level
//! with no further effects enters and leaves by a look at its hold, without a place in the queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::meter::Sample;
use crate::base::{Lease, Moment, Spread, Stamp, after, limit};
use crate::error::Loss;
use crate::owner::Owner;
use crate::table::entry::{LockEntry, may_enter};
use crate::table::hold::Hold;
use crate::table::level::{Grant, Level, Polled};
use crate::table::numbers::Numbers;
use crate::table::queue::{Queue, Waiter};
use crate::wire::{Action, Pending};

/// Who is granted a hold.
#[derive(Debug)]
pub(crate) enum Grantee<'a> {
    /// The request with this number, which is in the queue.
    Waiter(u64),
    /// The owner that resumes a claim, which is not in the queue.
    Claimant(&'a Owner),
}

/// The level that a grant makes.
#[derive(Clone, Copy)]
pub(crate) struct NewLevel {
    pub(crate) level: u64,
    pub(crate) lease: Lease,
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    /// Nobody else may get the lock for this long.
    pub(crate) at_least: Option<Duration>,
    /// The token that the masters gave with the grant.
    pub(crate) token: Option<u64>,
}

impl NewLevel {
    /// Returns a level that is renewed, without further options.
    pub(crate) fn watched(level: u64, lease: Lease) -> NewLevel {
        NewLevel { level, lease, fixed: false, max_hold: None, at_least: None, token: None }
    }
}

/// Why a grant does not become a level.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotHeld {
    /// Its lease was over before its answer was looked at.
    Late,
    /// It was given up before, or its hold was taken away.
    Taken,
}

/// Returns the hold, if it is the only one known and adding or removing a renewed level changes nothing but its levels: no request of its
/// tree waits, no branches are known, and no level ends before the hold does. A visit would find nothing to wake, to send, to forget, or
/// to look at sooner.
#[inline]
fn simple<'a>(holds: &'a mut [Hold], queue: &Queue) -> Option<&'a mut Hold> {
    let [hold] = holds else { return None };
    let first = hold.levels.first()?;
    let is_simple = first.watched && hold.limited().is_empty() && !queue.concerns(&first.owner);
    is_simple.then_some(hold)
}

impl LockEntry {
    /// Called when the acquire, or the move of a claim, was granted. A grant that nobody needs any more is undone. Drop the
    /// returned request once nothing is locked.
    pub(crate) fn granted(
        &mut self,
        grantee: &Grantee,
        pending: &Pending,
        new: &NewLevel,
        spread: Spread,
        at: Moment,
    ) -> Result<(Arc<Grant>, Waiter), NotHeld> {
        self.lose_late(pending.hold, at);
        // If a hold that was requested later has the lock, this grant was taken away before it was looked at.
        let newer = |hold: &&Hold| hold.id > pending.hold && hold.has_lock();
        let newer = self.holds.iter().find(newer).map(|hold| hold.id);
        if let Some(hold) = self.hold(pending.hold) {
            hold.may_be_made_late(pending, spread);
        }
        let under_way = |hold: &&mut Hold| hold.id == pending.hold && hold.under_way(pending.command_id);
        let Some(hold) = self.holds.iter_mut().find(under_way) else {
            self.made_late(pending, at.now);
            return Err(self.not_held(grantee, NotHeld::Taken));
        };
        let doubted = hold.finish(pending.command_id, at.now).is_some_and(|command| command.doubted);
        hold.in_line = false;
        let first = hold.levels.is_empty();
        let over =
            if first { new.lease.valid_until(pending.sent, hold.timing.drift) } else { hold.deadline() };
        let taken = hold.loss().is_some() || newer.is_some();
        // It may no longer enter: 1. A child asks to re-enter. 2. Its last scope ends, so the request passes to its parent, and another
        // branch of that parent holds the lock; or the level that it would be nested in ends.
        let may_enter = |request: &Waiter| {
            first || hold.levels_of(&request.owner).next().is_some() && may_enter(request, hold)
        };
        let entered = match *grantee {
            Grantee::Waiter(id) => self.queue.get(id).is_some_and(may_enter),
            Grantee::Claimant(_) => true,
        };
        let in_time = at.now < over && !taken;
        let request = match *grantee {
            _ if !in_time || !entered => None,
            Grantee::Waiter(id) => self.queue.remove(id),
            Grantee::Claimant(owner) => {
                let mut request = Waiter::new(0, owner.register_at(&self.position), true, at.now);
                // It is a branch if its owner has requests under way. Otherwise: 1. A branch of a task asks, and is refused. 2.
                // Another branch of it resumes. 3. The first one looks nested in the second.
                request.branch = self.queue.prove_beside(&request.owner);
                Some(request)
            }
        };
        let Some(request) = request else {
            hold.granted_in_vain(new.lease, at.now);
            let late = entered && !taken;
            // The newer hold is checked: 1. It is released by force. 2. This acquire runs, late.
            if let Some(newer) = newer.and_then(|id| self.hold(id)) {
                newer.withdraw_offer(at.now);
                newer.doubt();
                newer.settle_at_once(at.now);
            }
            return Err(self.not_held(grantee, if late { NotHeld::Late } else { NotHeld::Taken }));
        };
        hold.confirmed(new.lease, pending.sent, at.slept);
        hold.server_count = match pending.call.action {
            Action::Acquire { count, .. } => count,
            _ => 1,
        };
        if first {
            // Not for a nested level whose outer levels have left: it would let the hold pass on for as long again, without end.
            if pending.call.action.begins() {
                hold.offer.begin(at.now);
            }
            if let Some(token) = new.token {
                hold.set_token(token);
            }
            self.out.measure(Sample::Held);
        }
        let granted = hold.grant(new, &request, pending.sent, at.now);
        if doubted {
            // The hold may be gone again: 1. The acquire was granted. 2. The lock was released by force, or the server restarted
            // empty. 3. The grant is looked at.
            hold.settle_at_once(at.now);
        }
        hold.lacked_by(spread.lacking, at.now);
        if let Action::Acquire { count: 1, .. } = pending.call.action {
            if !spread.missing.is_empty() {
                hold.copies.change(|copies| copies.note_absent(spread.missing));
            }
            self.contended = pending.call.line.is_some_and(|line| line.again);
        }
        self.seen.clear(at.now);
        self.outage.ends();
        self.lose_others(pending.hold, at.now);
        self.has_entered(at.now);
        Ok((granted, request))
    }

    /// Lets a request take over the hold that is offered to it, or enter the hold of its tree.
    pub(super) fn take(
        &mut self,
        id: u64,
        hold: u64,
        new: &NewLevel,
        now: Instant,
    ) -> Option<(Arc<Grant>, Waiter)> {
        let hold = self.holds.iter_mut().find(|one| one.id == hold)?;
        let request = self.queue.remove(id)?;
        if hold.levels.is_empty() {
            hold.offer.take();
            self.out.measure(Sample::Held);
        } else {
            self.out.measure(Sample::Nested);
        }
        // The level ends no later than the hold. The masters have counted nothing.
        let granted = hold.grant(new, &request, now, now);
        self.has_entered(now);
        Some((granted, request))
    }

    /// Grants a renewed level to this new owner, which has made no request yet, if [`admit`](LockEntry::admit) would let it enter
    /// the hold of its tree without further effects. `at` returns `None` if nothing may be granted without a command.
    pub(crate) fn nest(
        &mut self,
        owner: &Owner,
        fenced: bool,
        numbers: &Numbers,
        at: impl FnOnce() -> Option<Moment>,
    ) -> Option<Arc<Grant>> {
        let hold = simple(&mut self.holds, &self.queue)?;
        let enters = hold.admits(owner) && (!fenced || hold.fence.is_some());
        if !enters || !self.is_open || !self.outage.is_over() {
            return None;
        }
        let at = at()?;
        // A certain hold is not lost either, and does not end within half a lease.
        if !hold.is_certain(at.now) {
            return None;
        }
        let level = Level {
            owner: owner.clone(),
            bare: false,
            first_polled: Polled::default(),
            branch: false,
            watched: true,
            until: None,
            max_hold: None,
            grant: hold.new_grant(numbers.next()),
        };
        // The masters have counted nothing.
        Some(hold.add_level(level, hold.server_count))
    }

    /// Removes the innermost level from its hold as [`leave`](LockEntry::leave) would, if no command follows. Returns its owner, to be
    /// dropped once nothing is locked; its guard has the rest of the level. Inlined, like `nest`, since a recursion has thousands of
    /// levels.
    #[inline(always)]
    pub(crate) fn unnest(&mut self, grant: &Grant, at: Moment) -> Option<Owner> {
        let hold = simple(&mut self.holds, &self.queue)
            .filter(|hold| hold.id == grant.hold && at.now < hold.valid_until)?;
        // The masters have counted no more levels than are left. That is at least one, so the last level never goes here.
        let is_done = hold.is_in_sync() && hold.server_count < hold.count();
        let left = hold.levels.pop_if(|last| is_done && last.id() == grant.level)?;
        left.unregister_at(&self.position);
        Some(left.owner)
    }

    /// Called when a request has entered a hold.
    fn has_entered(&mut self, now: Instant) {
        self.tree_asks_once_more();
        self.wake_next(now);
    }

    /// Called when the requester does not get what was granted: a request in the queue asks again.
    fn not_held(&mut self, grantee: &Grantee, why: NotHeld) -> NotHeld {
        if let Grantee::Waiter(id) = *grantee {
            self.back_to_waiting(id);
        }
        why
    }

    /// Marks other holds that were believed alive as lost: a fresh grant shows that no other field is in the key.
    pub(super) fn lose_others(&mut self, id: u64, now: Instant) {
        let believed = |hold: &&Hold| hold.id != id && hold.has_lock();
        let others = self.holds.iter().filter(believed).map(|hold| hold.id);
        for other in others.collect::<Vec<_>>() {
            self.lose(other, Loss::Gone, false, now);
        }
    }
}

impl Hold {
    /// Adds the level that a request was granted. `from`: when its time starts. Only an acquire has changed the masters' count.
    fn grant(&mut self, new: &NewLevel, request: &Waiter, from: Instant, now: Instant) -> Arc<Grant> {
        if self.levels.is_empty() {
            self.since = now;
        }
        // Counted from now, since the requester is notified of the grant no earlier.
        new.at_least.into_iter().for_each(|longest| self.keep_until(after(now, longest)));
        let level = Level {
            owner: request.owner.clone(),
            bare: request.bare,
            first_polled: request.first_polled,
            branch: request.branch,
            watched: !new.fixed,
            until: new.fixed.then(|| new.lease.valid_until(from, self.timing.drift).into()),
            max_hold: new.max_hold.and_then(|longest| limit(from, longest)).map(Stamp::from),
            grant: self.new_grant(new.level),
        };
        self.add_level(level, self.server_count)
    }
}
