//! `LockEntry`: one lock name in this process, with its holds and its waiters. Decides whose turn it is.

use std::sync::Arc;
use std::task::Waker;

use tokio::time::Instant;

use crate::base::Stamp;
use crate::owner::{Owner, Position};
use crate::table::effects::Out;
use crate::table::hold::Hold;
use crate::table::level::Level;
use crate::table::orphans::Orphans;
use crate::table::outage::Outage;
use crate::table::queue::{Queue, Waiter, WaiterState};
use crate::table::seen::Seen;
use crate::table::subscription::Subscription;
use crate::table::timing::Timing;
use crate::wire::keys::Keys;

/// The number of hand-overs of one lock that are remembered. That is enough, since an answer is late by about a node timeout. If one
/// came later still, it would undo the claim's field on a minority of the masters, and the claim does not need those.
pub(super) const LAST_HANDED_OVER: usize = 16;

/// The state of one lock. Changes only while the table is locked.
#[derive(Debug)]
pub(crate) struct LockEntry {
    pub(crate) keys: Arc<Keys>,
    pub(super) position: Position,
    pub(super) timing: Arc<Timing>,
    pub(crate) holds: Vec<Hold>,
    pub(crate) orphans: Orphans,
    pub(super) queue: Queue,
    /// `None` if there is no subscription. Boxed, since usually nobody waits.
    pub(super) subscription: Option<Box<Subscription>>,
    /// The number of clients that were notified of this process's last release and, as far as it knows, have not had the lock since.
    /// Set only by a release that lets others go first.
    pub(super) others_due: u32,
    /// Whether the last request that asked the server outside the line, or entered it, found the lock busy: if so, the next one
    /// enters the line at once. An empty entry keeps this, for a process that takes the lock again and again.
    pub(super) contended: bool,
    /// Until then the lock is left to clients that don't know the line. An empty entry keeps this.
    pub(super) left_until: Option<Stamp>,
    /// Who had the lock when the masters last refused it.
    pub(super) seen: Seen,
    /// The ids of the last holds that were handed over to other processes. Boxed, since there are rarely any.
    pub(super) handed_over: Option<Box<[u64; LAST_HANDED_OVER]>>,
    pub(crate) outage: Outage,
    /// Whether the session is open: holds are renewed, and offered holds can be ended.
    pub(super) is_open: bool,
    pub(super) out: Out,
    /// When the table looks at this entry next.
    pub(super) scheduled: Option<Instant>,
    /// Whether the entry was empty after the last visit.
    pub(super) was_empty: bool,
}

impl LockEntry {
    pub(super) fn new(keys: Arc<Keys>, position: Position, timing: impl Into<Arc<Timing>>) -> LockEntry {
        LockEntry {
            keys,
            position,
            timing: timing.into(),
            // There is usually one hold, and a vector that grows by itself begins with room for four.
            holds: Vec::with_capacity(1),
            orphans: Orphans::default(),
            queue: Queue::default(),
            subscription: None,
            others_due: 0,
            contended: false,
            left_until: None,
            seen: Seen::default(),
            handed_over: None,
            outage: Outage::default(),
            is_open: true,
            out: Out::default(),
            scheduled: None,
            was_empty: true,
        }
    }

    /// Resets an empty entry, so that the next visit finds it as new, except for `contended`, `left_until` and `handed_over`.
    pub(super) fn reset(&mut self) {
        self.others_due = 0;
        self.seen = Seen::default();
        self.outage.ends();
        self.orphans = Orphans::default();
        self.queue.reset();
        self.wake_command_waiters();
    }

    /// Called when another handle of the same lock uses the entry. An empty entry is kept for the newest handle.
    pub(super) fn switch_handle(&mut self, keys: &Arc<Keys>) {
        if self.was_empty {
            self.keys = keys.clone();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        // A subscription that lingers still has to end, and reports about it arrive until then.
        self.holds.is_empty()
            && self.orphans.is_empty()
            && self.queue.is_empty()
            && self.subscription.is_none()
    }

    pub(crate) fn hold(&mut self, id: u64) -> Option<&mut Hold> {
        let standing = self.holds.iter_mut().find(|hold| hold.id == id);
        standing.or_else(|| self.orphans.get_mut(id))
    }

    /// Returns the hold of a guard. It stays in `holds` while the guard lives, lost or not.
    pub(crate) fn hold_of_guard(&self, id: u64) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.id == id)
    }

    /// Returns the live hold, if any: of all holds that are known here, at most one lives.
    pub(crate) fn live(&self) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.lives())
    }

    /// Forgets which owners have branches, except those that still have a level or a request here.
    pub(super) fn forget_proofs(&mut self) {
        let live = self.holds.iter().find(|hold| hold.lives());
        let holds = |owner: &Owner| live.is_some_and(|hold| hold.levels.iter().any(|l| l.owner == *owner));
        self.queue.forget_proofs(holds);
    }

    /// Returns the first stranger in the queue.
    pub(crate) fn outer_front(&self) -> Option<&Waiter> {
        let live = self.live();
        self.queue.front(|request| !live.is_some_and(|hold| is_of_tree(request, hold)))
    }

    /// Returns whether there may be requests of the tree that holds.
    fn may_have_kin(&self, hold: &Hold) -> bool {
        hold.levels.first().is_some_and(|first| self.queue.may_have_kin(&first.owner))
    }

    /// Returns the first request of the holding tree that may enter now. A request that may not enter is skipped, since it may wait
    /// for a sibling that itself asks again.
    pub(super) fn inner_front(&self) -> Option<&Waiter> {
        let live = self.live().filter(|live| self.may_have_kin(live))?;
        self.queue.front(|request| is_of_tree(request, live) && may_enter(request, live))
    }

    /// Called when the holder has changed. A request that was refused as a stranger asks again if it belongs to the holding tree
    /// now, since the holder may wait for it.
    pub(super) fn tree_asks_once_more(&mut self) {
        let Some(hold) = self.holds.iter().find(|hold| hold.lives()) else { return };
        if self.may_have_kin(hold) {
            self.queue
                .iter_mut()
                .filter(|request| is_of_tree(request, hold))
                .for_each(Waiter::asks_once_more);
        }
    }

    /// Makes the first stranger ask once more, and wakes the next request. Called if the lock may be free, if a message may have been
    /// missed, and if there is a new head.
    pub(crate) fn head_asks_once_more(&mut self, now: Instant) {
        if let Some(front) = self.outer_front().map(|front| front.id)
            && let Some(request) = self.queue.get_mut(front)
        {
            request.asks_once_more();
        }
        self.wake_next(now);
    }

    /// Removes the holds that have nothing left to do or to report, and wakes the next request.
    pub(super) fn sweep(&mut self, now: Instant) {
        // Not for a hold that frees nobody. Otherwise: 1. A refused request leaves an orphan on one master. 2. The orphan's end is
        // confirmed while the request asks again, and is refused again. 3. That end wakes the request, which asks at once, leaves
        // the next orphan, and so on.
        let freed = self.holds.iter().any(|hold| hold.is_over() && !hold.frees_nobody());
        self.holds.retain(|hold| !hold.is_over());
        self.orphans.take_back();
        self.holds.extract_if(.., |hold| hold.is_orphan()).for_each(|hold| self.orphans.take_in(hold));
        self.forget_proofs();
        if freed { self.head_asks_once_more(now) } else { self.wake_next(now) }
    }

    /// Wakes this waker as soon as a command of this process for the lock is over, or a request leaves. This is for requests that
    /// need not be a head, since other events wake only a head.
    pub(crate) fn wake_on_command_end(&mut self, waker: &Waker) {
        self.queue.wake_on_command_end(waker.clone());
    }

    /// Returns whether another call waits until no command of the hold is under way.
    pub(crate) fn others_wait_for_command(&self) -> bool {
        self.queue.has_command_waiters() || self.inner_front().is_some()
    }

    pub(super) fn wake_command_waiters(&mut self) {
        if let Some(command_waiters) = self.queue.command_waiters() {
            self.out.wake(command_waiters);
        }
    }

    /// Wakes the requests that can go on now.
    pub(super) fn wake_next(&mut self, now: Instant) {
        self.wake_command_waiters();
        if self.queue.is_empty() {
            return self.withdraw_offer(now);
        }
        self.leave_line(now);
        let next = match self.live() {
            Some(live) if live.is_callers_turn(self.is_open, now) => self.inner_front(),
            Some(_) => None,
            None if self.holds.iter().any(Hold::end_goes_first) => None,
            None => self.outer_front(),
        };
        let next = next.filter(|request| request.phase == WaiterState::Waiting).map(|request| request.id);
        let woken = next.and_then(|id| self.queue.get_mut(id)).and_then(|request| request.wake(now));
        self.out.wake(woken);
    }
}

/// Returns whether the request belongs to the tree that holds.
pub(super) fn is_of_tree(request: &Waiter, hold: &Hold) -> bool {
    match request.branch {
        false => hold.is_entered_by(&request.owner),
        true => hold.levels.iter().any(|level| is_below(request, level)),
    }
}

/// The rule: every holder is the requester or one of its ancestors. The requester's other branches are neither.
pub(super) fn may_enter(request: &Waiter, hold: &Hold) -> bool {
    match request.branch {
        false => hold.admits(&request.owner),
        true => hold.levels.iter().all(|level| is_below(request, level)),
    }
}

/// Returns whether the request's owner is the level's owner or its descendant. Two branches of one owner are not below each other.
fn is_below(request: &Waiter, level: &Level) -> bool {
    request.owner.is_within(&level.owner) && !(level.branch && level.owner == request.owner)
}

#[cfg(test)]
mod tests;
