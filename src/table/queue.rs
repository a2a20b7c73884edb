//! `Queue`: the waiters of one lock name, the order in which they ask, and which of them are branches of one owner.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::after;
use crate::base::telemetry::{Context, Place};
use crate::error::Loss;
use crate::owner::{Owner, OwnerId};
use crate::table::effects::Out;
use crate::table::level::Polled;

/// How long a woken head may stay unpolled before the next one gets its turn.
pub(crate) const HEAD_PATIENCE: Duration = Duration::from_millis(50);

/// For each request that is passed over, this many others are woken ahead of their turn.
const WOKEN_AHEAD: usize = 8;

/// From this many requests on, they are counted by tree, so that a visit need not look at each of them.
const MANY: usize = if cfg!(test) { 3 } else { 32 };

/// The most unused queues whose memory is kept: about as many locks as are waited for at once.
const MOST_FREE: usize = 64;

/// The state of a request that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaiterState {
    /// It asks as soon as its turn comes.
    Waiting,
    /// Its acquire is under way.
    Asking,
    /// It was refused: it asks again at `until`, or when it is woken.
    Asleep { until: Instant },
    /// It asks again at `until`, and nothing wakes it earlier: after a split vote, or while it lets others go first.
    Pausing { until: Instant },
}

/// A request for the lock, from its first poll until it is ready or dropped. Its size is 128 bytes: anything larger would be moved by a
/// function call.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(super) id: u64,
    pub(super) owner: Owner,
    pub(super) bare: bool,
    /// Whether it is known to be one of several branches of its owner: it can't nest in the owner's other branches.
    pub(super) branch: bool,
    pub(super) phase: WaiterState,
    /// Whether something happened while it asked, so that it must ask once more before it sleeps.
    pub(super) again: bool,
    waker: Option<Waker>,
    /// How it was first polled, if it is bare. Reset to unknown once it is polled in another way.
    pub(crate) first_polled: Polled,
    /// When it entered the queue.
    pub(super) began: Instant,
    /// Whether it was woken, and has not been polled since.
    pub(super) woken: bool,
    /// When it was woken or, if it was not, last polled.
    since: Instant,
    /// Whether it was passed over, since it was not polled when its turn came.
    passed_over: bool,
    /// Whether it may take over a hold that this process offers.
    pub(crate) accepts_handoff: bool,
    pub(super) warned: bool,
    /// What the log reports about its wait. Boxed, since a request rarely has to wait.
    pub(super) wait: Option<Box<Wait>>,
    /// The loss of the hold that it would have entered.
    pub(super) lost: Option<Loss>,
}

/// What the log reports about a request that was refused and is still in the queue.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) location: Place,
    pub(super) context: Option<Arc<Context>>,
    /// When it is reported next.
    pub(super) due: Instant,
}

/// Why a request can't be let in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ambiguous;

/// The requests under way, in order of arrival. The queue of an idle lock is one pointer: its memory goes to the next lock that
/// needs a queue.
#[derive(Debug, Default)]
pub(crate) struct Queue(Option<Box<Waiters>>);

#[derive(Debug, Default)]
struct Waiters {
    requests: VecDeque<Waiter>,
    /// Owners that have asked from two branches at once.
    known_branches: Vec<Owner>,
    /// The number of requests of each tree. Empty while there are few requests.
    per_tree: HashMap<OwnerId, u32>,
    /// The wakers of the futures that wait until no command of the hold is under way.
    command_waiters: Vec<Waker>,
    /// When the log next reports a request, or earlier: the request that this was set for may have left.
    report_at: Option<Instant>,
}

/// Memory of queues that no lock uses now, so that a request need not allocate its own.
#[derive(Debug, Default)]
pub(super) struct FreeQueues(
    #[allow(clippy::vec_box, reason = "a queue takes its room and gives it back as a pointer")]
    Vec<Box<Waiters>>,
);

impl Waiter {
    pub(crate) fn new(id: u64, owner: Owner, bare: bool, now: Instant) -> Waiter {
        Waiter {
            id,
            owner,
            bare,
            branch: false,
            phase: WaiterState::Waiting,
            again: false,
            waker: None,
            first_polled: Polled::default(),
            began: now,
            woken: false,
            since: now,
            passed_over: false,
            accepts_handoff: false,
            warned: false,
            wait: None,
            lost: None,
        }
    }

    /// Sets whether it may take over a hold that this process offers.
    #[cfg(test)]
    pub(crate) fn taking(self, accepts_handoff: bool) -> Waiter {
        Waiter { accepts_handoff, ..self }
    }

    /// Returns how long ago it entered the queue.
    pub(super) fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    /// Called when it is polled: it gets its turn again, even if it was passed over. Drop the returned value once nothing is locked.
    #[must_use]
    pub(super) fn polled(&mut self, waker: &Waker, now: Instant) -> Option<Waker> {
        (self.woken, self.since) = (false, now);
        if std::mem::take(&mut self.passed_over) {
            // Other requests were woken for what happened while this one was passed over, so it asks once before it sleeps.
            match self.phase {
                WaiterState::Asking => self.again = true,
                WaiterState::Waiting | WaiterState::Asleep { .. } => self.phase = WaiterState::Waiting,
                WaiterState::Pausing { .. } => {}
            }
        }
        match &self.waker {
            Some(known) if known.will_wake(waker) => None,
            Some(_) => {
                // It was moved since its first poll, or is polled through different wakers.
                self.first_polled = Polled::default();
                self.waker.replace(waker.clone())
            }
            None => self.waker.replace(waker.clone()),
        }
    }

    pub(crate) fn is_asleep(&self) -> bool {
        matches!(self.phase, WaiterState::Asleep { .. } | WaiterState::Pausing { .. })
    }

    /// Returns whether it neither asks nor pauses.
    pub(super) fn can_be_woken(&self) -> bool {
        matches!(self.phase, WaiterState::Waiting | WaiterState::Asleep { .. })
    }

    pub(super) fn sleeps_until(&self, now: Instant) -> Option<Instant> {
        match self.phase {
            WaiterState::Asleep { until } | WaiterState::Pausing { until } if now < until => Some(until),
            _ => None,
        }
    }

    /// Returns until when nothing wakes it.
    pub(super) fn pauses_until(&self, now: Instant) -> Option<Instant> {
        self.sleeps_until(now).filter(|_| matches!(self.phase, WaiterState::Pausing { .. }))
    }

    /// Notes that its last answer, or the one on its way, is out of date: it asks once more before it sleeps.
    pub(super) fn asks_once_more(&mut self) {
        match self.phase {
            WaiterState::Asleep { .. } => self.phase = WaiterState::Waiting,
            WaiterState::Pausing { .. } => {}
            _ => self.again = true,
        }
    }

    /// Returns whether it was woken and was not polled in time.
    fn stays_away(&self, now: Instant) -> bool {
        self.woken && self.since + HEAD_PATIENCE <= now
    }

    /// Takes the waker out to be woken, once for each poll.
    pub(super) fn wake(&mut self, now: Instant) -> Option<Waker> {
        if self.woken {
            return None;
        }
        (self.woken, self.since) = (true, now);
        self.waker.clone()
    }

    /// Returns when a head in this state counts as late. Never if it waits for a hold of this process, since then it need not be polled.
    fn late_at(&self) -> Option<Instant> {
        let since = match self.phase {
            _ if self.woken => self.since,
            // A request that was polled after `until` waits for something that goes before it. If it counted as late all that
            // time, it and the watchdog would keep waking each other.
            WaiterState::Asleep { until } | WaiterState::Pausing { until } => until.max(self.since),
            WaiterState::Asking => self.since,
            WaiterState::Waiting => return None,
        };
        Some(since + HEAD_PATIENCE)
    }
}

impl Queue {
    #[inline]
    fn waiters(&mut self) -> &mut Waiters {
        // There is usually one request, and a deque that grows by itself begins with room for four.
        let one = || Box::new(Waiters { requests: VecDeque::with_capacity(1), ..Waiters::default() });
        self.0.get_or_insert_with(one)
    }

    /// Called before a visit of an empty entry, since the visit may add a request.
    pub(super) fn take_memory(&mut self, free: &mut FreeQueues) {
        if self.0.is_none() {
            self.0 = free.0.pop();
        }
    }

    /// Called after a visit: gives the memory back if the queue is empty.
    #[inline]
    pub(super) fn return_memory(&mut self, free: &mut FreeQueues) {
        if let Some(room) = self.0.take_if(|waiters| waiters.is_reusable())
            // The memory of a queue that has grown for many requests is freed.
            && free.0.len() < MOST_FREE
            && room.requests.capacity() <= MANY
        {
            free.0.push(room);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|waiters| waiters.requests.is_empty())
    }

    /// Forgets all proofs. Called when there is neither a request nor a hold.
    pub(super) fn reset(&mut self) {
        if let Some(waiters) = &mut self.0 {
            waiters.known_branches.clear();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |waiters| waiters.requests.len())
    }

    /// Returns the request that came first.
    pub(super) fn first(&self) -> Option<&Waiter> {
        self.0.as_ref()?.requests.front()
    }

    /// Returns when the log reports a request, or earlier.
    pub(super) fn report_at(&self) -> Option<Instant> {
        self.0.as_ref()?.report_at
    }

    pub(super) fn set_report_at(&mut self, at: Option<Instant>) {
        if let Some(waiters) = &mut self.0 {
            waiters.report_at = at;
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.0.as_mut().map(|waiters| waiters.requests.iter_mut()).unwrap_or_default()
    }

    pub(super) fn get(&self, id: u64) -> Option<&Waiter> {
        let waiters = self.0.as_ref()?;
        waiters.index_of(id).map(|at| &waiters.requests[at])
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Waiter> {
        let waiters = self.0.as_mut()?;
        waiters.index_of(id).map(|at| &mut waiters.requests[at])
    }

    /// Registers a waker with [`command_waiters`](Queue::command_waiters).
    pub(super) fn wake_on_command_end(&mut self, waker: Waker) {
        let waiters = &mut self.waiters().command_waiters;
        // A future that is polled again because another one in its task is ready registers only once.
        if waiters.last().is_none_or(|last| !last.will_wake(&waker)) {
            waiters.push(waker);
        }
    }

    pub(super) fn has_command_waiters(&self) -> bool {
        self.0.as_ref().is_some_and(|waiters| !waiters.command_waiters.is_empty())
    }

    /// Called when no command of the hold is under way any more. Takes the wakers of the futures that wait for this, if there are any.
    pub(super) fn command_waiters(&mut self) -> Option<Vec<Waker>> {
        let command_waiters = &mut self.0.as_mut()?.command_waiters;
        (!command_waiters.is_empty()).then(|| std::mem::take(command_waiters))
    }

    /// Puts a request at the end. `owner_has_guard`: whether the owner itself has a guard of the lock now, lost or not.
    ///
    /// A call chain never has two bare requests of one owner under way at once, so two of them prove branches, which queue. After
    /// that, a bare request of an owner that holds the lock may be nested in that hold, so that it must not wait, or it may be a branch,
    /// so that it must not enter. The two look the same.
    pub(super) fn enter(&mut self, mut request: Waiter, owner_has_guard: bool) -> Result<(), Ambiguous> {
        let waiters = self.waiters();
        if request.bare {
            if waiters.known_branches.contains(&request.owner) {
                if owner_has_guard {
                    return Err(Ambiguous);
                }
                request.branch = true;
            } else if waiters.may_have_kin(&request.owner) && waiters.bare(&request.owner).next().is_some() {
                request.branch = true;
                waiters.note_branch(&request.owner);
            }
        }
        // This count stays right when a request passes to an heir, which is in the same tree.
        if !waiters.per_tree.is_empty() {
            *waiters.per_tree.entry(request.owner.tree()).or_default() += 1;
        }
        waiters.requests.push_back(request);
        if waiters.per_tree.is_empty() && waiters.requests.len() > MANY {
            for request in &waiters.requests {
                *waiters.per_tree.entry(request.owner.tree()).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Returns whether there may be requests of this owner's tree.
    pub(super) fn may_have_kin(&self, owner: &Owner) -> bool {
        self.0.as_ref().is_some_and(|waiters| waiters.may_have_kin(owner))
    }

    /// Returns whether adding or removing a level of this owner's tree may change anything here: one of the tree's requests
    /// waits, or branches are known, which are forgotten with the last level of their owner.
    #[inline]
    pub(super) fn concerns(&self, owner: &Owner) -> bool {
        self.0.as_ref().is_some_and(|waiters| waiters.concern(owner))
    }

    /// Marks the bare requests of this owner as branches.
    pub(super) fn note_branch(&mut self, owner: &Owner) {
        self.waiters().note_branch(owner);
    }

    /// Called when the owner is granted the lock by a call that was never in the queue. If the owner also has bare requests under
    /// way, that proves branches, as two requests do. Returns whether there are any.
    pub(super) fn prove_beside(&mut self, owner: &Owner) -> bool {
        let Some(waiters) = &mut self.0 else { return false };
        let beside = waiters.may_have_kin(owner) && waiters.bare(owner).next().is_some();
        if beside {
            waiters.note_branch(owner);
        }
        beside
    }

    /// Called when an owner has ended: its requests pass to its heir. If this gives the heir two bare requests, they are branches
    /// too: each was begun in a scope of its own, and outlived it.
    pub(super) fn pass_on(&mut self, owner: &Owner, heir: impl Fn() -> Owner) {
        let Some(waiters) = &mut self.0 else { return };
        let mut heirs = Vec::new();
        for request in waiters.requests.iter_mut().filter(|request| request.owner == *owner) {
            request.owner = heir();
            heirs.push(request.owner.clone());
        }
        for heir in heirs {
            if waiters.bare(&heir).nth(1).is_some() {
                waiters.note_branch(&heir);
            }
        }
    }

    /// Removes a request. [`LockEntry::leave_queue`] also wakes the one after it.
    pub(super) fn remove(&mut self, id: u64) -> Option<Waiter> {
        let waiters = self.0.as_mut()?;
        let at = waiters.index_of(id)?;
        let request = waiters.requests.remove(at)?;
        let tree = request.owner.tree();
        if let Some(count) = waiters.per_tree.get_mut(&tree) {
            *count -= 1;
            if *count == 0 {
                waiters.per_tree.remove(&tree);
            }
        }
        if waiters.requests.is_empty() {
            waiters.report_at = None;
        }
        Some(request)
    }

    /// Forgets proofs. A proof is kept until its owner has neither a hold nor a request here.
    pub(super) fn forget_proofs(&mut self, holds: impl Fn(&Owner) -> bool) {
        let Some(waiters) = &mut self.0 else { return };
        if !waiters.known_branches.is_empty() {
            let requests = &waiters.requests;
            waiters
                .known_branches
                .retain(|owner| holds(owner) || requests.iter().any(|one| one.owner == *owner));
        }
    }

    /// Returns the first request that qualifies and has not been passed over.
    pub(super) fn front(&self, qualifies: impl Fn(&Waiter) -> bool) -> Option<&Waiter> {
        self.0.as_ref()?.requests.iter().find(|request| !request.passed_over && qualifies(request))
    }

    /// Returns when the head has to be looked at, if it keeps another request waiting.
    pub(super) fn late_at(&self, head: u64) -> Option<Instant> {
        let head = self.get(head)?;
        head.late_at().filter(|_| self.len() > 1)
    }

    /// Passes over a head that was woken and not polled, or that has not looked at its answer for as long as `patience`. Returns
    /// how many are passed over, including the head.
    pub(super) fn pass_over(&mut self, head: u64, now: Instant, patience: Duration) -> usize {
        let Some(request) = self.get_mut(head) else { return 0 };
        let reads_nothing = !request.woken && request.phase == WaiterState::Asking;
        let late = request.stays_away(now) || reads_nothing && after(request.since, patience) <= now;
        if !late {
            return 0;
        }
        let newly = usize::from(!std::mem::replace(&mut request.passed_over, true));
        newly + self.pass_over_all_late(now)
    }

    /// Passes over all requests that were woken and not polled in time. Returns how many are newly passed over.
    fn pass_over_all_late(&mut self, now: Instant) -> usize {
        let newly = self.iter_mut().filter(|request| !request.passed_over && request.stays_away(now));
        newly.map(|request| request.passed_over = true).count()
    }

    /// Wakes some of the later requests after `passed_over` requests were passed over, so that those that are not polled either
    /// are passed over together. One task may have many requests, as branches, and poll none of them for a while: passed over one
    /// by one, each would keep the others waiting. Not all are woken at once: on a busy machine late requests do get polled, and
    /// waking them all would add to its load.
    pub(super) fn wake_ahead(&mut self, passed_over: usize, now: Instant) -> Vec<Waker> {
        let waits = |request: &&mut Waiter| request.can_be_woken() && !request.passed_over && !request.woken;
        let next = self.iter_mut().filter(waits).take(WOKEN_AHEAD * passed_over);
        next.filter_map(|request| request.wake(now)).collect()
    }

    /// Looks at a late head that keeps others waiting. If it was not woken, it is woken first: what it waits for may be ready
    /// unnoticed. If it was woken and not polled, it is passed over. Returns how many are passed over, including the head.
    pub(super) fn check(&mut self, head: u64, now: Instant, out: &mut Out) -> usize {
        let is_late = self.late_at(head).is_some_and(|late| late <= now);
        let Some(request) = self.get_mut(head).filter(|_| is_late) else { return 0 };
        if request.woken {
            return self.pass_over_all_late(now);
        }
        out.wake(request.wake(now));
        0
    }
}

impl Waiters {
    fn concern(&self, owner: &Owner) -> bool {
        let tree = owner.tree();
        let waits = match self.per_tree.is_empty() {
            true => self.requests.iter().any(|request| request.owner.tree() == tree),
            false => self.per_tree.contains_key(&tree),
        };
        waits || !self.known_branches.is_empty()
    }

    /// Returns whether its memory can be reused.
    fn is_reusable(&self) -> bool {
        self.requests.is_empty() && self.known_branches.is_empty() && self.command_waiters.is_empty()
    }

    /// Finds a request. Requests are in the order of their numbers.
    fn index_of(&self, id: u64) -> Option<usize> {
        // It is usually the first one.
        if self.requests.front().is_some_and(|first| first.id == id) {
            return Some(0);
        }
        self.requests.binary_search_by_key(&id, |request| request.id).ok()
    }

    fn may_have_kin(&self, owner: &Owner) -> bool {
        self.per_tree.is_empty() || self.per_tree.contains_key(&owner.tree())
    }

    fn bare<'a>(&'a mut self, owner: &'a Owner) -> impl Iterator<Item = &'a mut Waiter> {
        self.requests.iter_mut().filter(move |request| request.bare && request.owner == *owner)
    }

    fn note_branch(&mut self, owner: &Owner) {
        self.bare(owner).for_each(|request| request.branch = true);
        if !self.known_branches.contains(owner) {
            self.known_branches.push(owner.clone());
        }
    }
}

#[cfg(test)]
mod tests;
