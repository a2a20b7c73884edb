//! `Hold`: one tree's hold of one lock, with its levels, its end, and its command under way.
//!
//! The main questions about a hold, in the order of its life:
//!
//! | it | state | levels | what is open |
//! | --- | --- | --- | --- |
//! | `is_beginning` | stands | none | the answer to its first command |
//! | `lives` | stands | some | |
//! | `is_offered` | stands | none | whether the next request of this process takes it over |
//! | `owes_end` | stands or lost | none, or a client that ends the key | whether the server confirms its end |
//! | `is_orphan` | gone | none | its end on a minority of masters |
//! | `is_over` | gone | none | nothing: it is removed |

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Lease, LossSignal, MasterSet, Stamp, after};
use crate::error::Loss;
use crate::owner::Owner;
use crate::table::copies::Copies;
use crate::table::level::{Grant, Level};
use crate::table::offer::Offer;
use crate::table::timing::Timing;
use crate::wire::keys::Keys;
use crate::wire::{Action, Call, Fence, KeyEnd, Pending};

/// The command under way. Each hold has at most one, since two could overtake each other on the wire.
#[derive(Debug)]
pub(crate) struct UnderWay {
    pub(super) command_id: u64,
    pub(super) sent: Instant,
    pub(super) action: Action,
    pub(super) sender: Sender,
    /// Whether something that its answer does not show may have happened to the hold since it was sent.
    pub(super) doubted: bool,
}

/// The sender of a command. A user's future may never be polled again; the background's always run to their end.
#[derive(Debug)]
pub(crate) enum Sender {
    Background,
    /// A request, to be granted.
    Request,
    /// A guard, to renew its hold: for a longer lease of the level `extends`, or to check whether the hold stands.
    Renewal {
        extends: Option<u64>,
    },
    /// A guard, to be released. If the command is given up, the release moves to [`Hold::pending_releases`]: 1. The guard's future is not
    /// polled for long. 2. Its release is given up for a waiter's sake. 3. The background sends it again, and is answered. 4. The future is
    /// polled, and has to learn the result.
    Release(Arc<Grant>),
}

impl Sender {
    pub(super) fn is_background(&self) -> bool {
        matches!(self, Sender::Background)
    }
}

/// The state of a hold. It only moves on to a later state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is requested or held, or its release is on its way. `unsettled`: a command's outcome is unknown, so that the exact count
    /// has to be sent. Only the end, or a repair of the masters that lack the hold, goes before that.
    Stands { unsettled: bool },
    /// Its guards report this loss. `ends_key`: nobody renewed it, so its key would outlive it, and this process ends the key at
    /// once. Otherwise the process ends the key once the guards are gone.
    Lost { loss: Loss, ends_key: bool },
    /// The server confirmed that the field is not there, and no command is left that could bring it back. `loss`: what its guards
    /// report. `frees_nobody`: at most a minority of the masters had it before, so that its end frees no waiter.
    Gone { loss: Option<Loss>, frees_nobody: bool },
}

/// A hold. It is registered before its acquire is sent, and removed once the server has confirmed its end, or its key has certainly expired,
/// so that the server has no field that nobody knows. A hold that is handed over is removed earlier, since its claim knows the field.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(super) id: u64,
    pub(super) keys: Arc<Keys>,
    pub(crate) field: Arc<str>,
    pub(super) timing: Arc<Timing>,
    /// In the order of their grants: each owner is the one before it or a descendant.
    pub(super) levels: Vec<Level>,
    /// Whether a level of it has, or had, a `max_hold`. If none has, as usual, a thousand levels need not be searched.
    limited: bool,
    pub(super) state: State,
    pub(super) command: Option<UnderWay>,
    /// The count on the server, as far as known.
    pub(super) server_count: u32,
    /// Until then the server certainly keeps the hold, counted from before the send, less drift.
    pub(super) valid_until: Instant,
    /// Until then the server may keep the hold, by a command that had no answer.
    pub(super) maybe_until: Option<Stamp>,
    /// By then the key has expired, whatever happened to the commands that were answered.
    pub(super) gone_by: Instant,
    /// Until then, as far as time is concerned, a level may be granted without a command: half a lease after the server confirmed the
    /// hold, but no later than half a lease before its end, and not after a command of the hold fails.
    pub(super) certain_until: Instant,
    pub(super) renew_at: Instant,
    pub(super) retry_at: Instant,
    /// Whether a release to 0 may have run. If it did, a repeated one is answered "not held".
    pub(super) release_tried: bool,
    pub(super) failures: u32,
    /// How long the machine had slept when the lease was last confirmed.
    pub(super) slept: Duration,
    /// The releases of levels that left while a command was under way. The command that carries them out reports the result. Boxed,
    /// since there are rarely any.
    #[allow(clippy::box_collection, reason = "a vector takes three pointers, used or not")]
    pub(super) pending_releases: Option<Box<Vec<Arc<Grant>>>>,
    pub(super) copies: Copies,
    /// Its fencing token, once it is granted, and the counter that has to remember it.
    pub(super) fence: Option<Arc<Fence>>,
    /// Whether its field is in the line, so that the lock may be handed to it at any time. Such a hold asks again, or leaves the
    /// line by its end.
    pub(super) in_line: bool,
    /// Whether its acquire enters the line.
    pub(super) enters: bool,
    /// Whether it may pass to another owner of this process.
    pub(super) offer: Offer,
    /// Until then nobody else may get the lock: an earlier end of the hold keeps the lock taken.
    kept_until: Option<Stamp>,
    /// When the first level was granted after it last had none: the stay of one tree (see `granted_for`).
    pub(super) since: Instant,
}

impl Hold {
    /// Makes a hold without a command. Whatever is sent for it now, its key expires one lease from now at the latest.
    pub(super) fn new(
        id: u64,
        keys: Arc<Keys>,
        field: Arc<str>,
        timing: impl Into<Arc<Timing>>,
        lease: Lease,
        now: Instant,
    ) -> Hold {
        Hold {
            id,
            keys,
            field,
            timing: timing.into(),
            levels: Vec::with_capacity(1),
            limited: false,
            state: State::Stands { unsettled: false },
            command: None,
            server_count: 0,
            valid_until: now,
            maybe_until: None,
            gone_by: after(now, lease.duration()),
            certain_until: now,
            renew_at: now,
            retry_at: now,
            release_tried: false,
            failures: 0,
            slept: Duration::ZERO,
            pending_releases: None,
            copies: Copies::default(),
            fence: None,
            in_line: false,
            enters: false,
            offer: Offer::default(),
            kept_until: None,
            since: now,
        }
    }

    /// Begins an acquire of its field, for the request that is now the head.
    pub(super) fn ask(
        &mut self,
        lease: Lease,
        fence: Option<Arc<Fence>>,
        command_id: u64,
        now: Instant,
    ) -> Pending {
        // If its field is in the line: of two grants, the one that was requested later counts.
        (self.id, self.fence) = (command_id, fence);
        self.begin(Action::Acquire { count: 1, lease }, Sender::Request, command_id, now)
    }

    /// Returns whether it is held, as far as this process knows.
    pub(super) fn lives(&self) -> bool {
        matches!(self.state, State::Stands { .. }) && !self.levels.is_empty()
    }

    /// Returns whether this process has the lock through it: it lives, or is offered to the next request.
    pub(super) fn has_lock(&self) -> bool {
        self.lives() || self.is_offered()
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        match self.state {
            State::Stands { .. } => None,
            State::Lost { loss, .. } => Some(loss),
            State::Gone { loss, .. } => loss,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone { .. })
    }

    /// Returns whether its end does not concern waiters, since it did not hold the lock.
    pub(super) fn frees_nobody(&self) -> bool {
        matches!(self.state, State::Gone { frees_nobody: true, .. })
    }

    pub(super) fn is_unsettled(&self) -> bool {
        matches!(self.state, State::Stands { unsettled: true })
    }

    /// Notes that the exact count, or the end, has to be sent.
    pub(super) fn unsettle(&mut self) {
        self.settled(true);
    }

    /// Notes that the exact count, or the end, has to be sent at once.
    pub(super) fn settle_at_once(&mut self, now: Instant) {
        self.unsettle();
        self.retry_at = now;
    }

    /// Called when a settle was answered. `again`: something may have happened since it was sent.
    pub(super) fn settled(&mut self, again: bool) {
        if let State::Stands { unsettled } = &mut self.state {
            *unsettled = again;
        }
    }

    /// Called when the hold is certainly not on the server: the server said so, or the lease is over. `frees_nobody`: a majority
    /// never had the hold, or its end was counted before.
    pub(super) fn mark_gone(&mut self, frees_nobody: bool) {
        let frees_nobody = frees_nobody || self.frees_nobody();
        self.state = State::Gone { loss: self.loss(), frees_nobody };
    }

    /// Notes that the command under way may have run before the latest event.
    pub(super) fn doubt(&mut self) {
        if let Some(command) = &mut self.command {
            command.doubted = true;
        }
    }

    /// Returns whether nobody holds it any more, and the server has not confirmed its end.
    pub(super) fn owes_end(&self) -> bool {
        match self.state {
            State::Stands { .. } | State::Lost { ends_key: false, .. } => {
                self.levels.is_empty() && !self.is_beginning() && !self.is_offered() && !self.in_line
            }
            State::Lost { ends_key: true, .. } => true,
            State::Gone { .. } => false,
        }
    }

    /// Returns whether its end goes before requests of this process, which it does only once: until it fails.
    pub(super) fn end_goes_first(&self) -> bool {
        self.owes_end() && self.failures == 0
    }

    /// Returns whether nothing is left to do or to report.
    pub(super) fn is_over(&self) -> bool {
        self.levels.is_empty() && self.is_gone() && !self.has_remains()
    }

    /// Returns whether some masters may still have it.
    pub(super) fn has_remains(&self) -> bool {
        !self.copies.left().is_empty()
    }

    /// Returns whether its end is under way.
    pub(super) fn end_is_under_way(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command.action.is_end())
    }

    /// Returns whether its first command is under way.
    pub(super) fn is_beginning(&self) -> bool {
        let first = |command: &UnderWay| command.action.begins();
        self.command.as_ref().is_some_and(first)
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.levels.len()).unwrap_or(u32::MAX)
    }

    /// Returns whether some level belongs to the owner or an ancestor. The first level decides, since its owner is an ancestor of all
    /// others. The last level is tried first for speed, since in a deep recursion it belongs to the owner's parent.
    pub(super) fn is_entered_by(&self, owner: &Owner) -> bool {
        self.admits(owner) || self.levels.first().is_some_and(|first| owner.is_within(&first.owner))
    }

    /// The rule: every holder is the owner or one of its ancestors.
    pub(super) fn admits(&self, owner: &Owner) -> bool {
        self.levels.last().is_some_and(|last| owner.is_within(&last.owner))
    }

    /// Returns the live levels of the owner and its ancestors. The innermost comes first.
    pub(crate) fn levels_of<'a>(&'a self, owner: &'a Owner) -> impl Iterator<Item = &'a Level> {
        self.levels.iter().rev().filter(|level| level.loss().is_none() && owner.is_within(&level.owner))
    }

    /// Returns how long ago it was granted to this process. Passing it on inside the process does not restart that time, as it does
    /// `since`.
    pub(super) fn granted_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.offer.granted().unwrap_or(self.since))
    }

    /// Returns the levels that may have a `max_hold`.
    pub(super) fn limited(&self) -> &[Level] {
        if self.limited { &self.levels } else { &[] }
    }

    pub(super) fn is_watched(&self) -> bool {
        self.levels.iter().any(|level| level.watched && level.loss().is_none())
    }

    /// Returns the hold's deadline: the latest of its live levels' ends, and never later than the server is sure to keep it. A watched
    /// level has no end of its own, and one whose `max_hold` is over leaves the key to its lease. A fixed level keeps its end
    /// even then: otherwise it would be good again while a nested level keeps the key alive.
    pub(crate) fn deadline(&self) -> Instant {
        if self.levels.iter().any(|level| level.watched) {
            return self.valid_until;
        }
        let latest = self.levels.iter().filter_map(|level| level.until).max();
        latest.map_or(self.valid_until, |latest| latest.at().min(self.valid_until))
    }

    /// Returns until when the server may still have it.
    pub(super) fn may_stand_until(&self) -> Instant {
        self.maybe_until.map_or(self.valid_until, |until| until.at().max(self.valid_until))
    }

    /// Called when the server granted a level that is not added here. The key may live for that lease, and the server's count is
    /// one too high.
    pub(super) fn granted_in_vain(&mut self, lease: Lease, now: Instant) {
        self.maybe_until = self.maybe_until.max(Some(after(now, lease.duration()).into()));
        self.unsettle();
    }

    /// Finds a level. A binary search, since a thousand nested levels are each looked up at each poll.
    fn index_of(&self, level: u64) -> Option<usize> {
        self.levels.binary_search_by_key(&level, Level::id).ok()
    }

    pub(crate) fn level(&self, id: u64) -> Option<&Level> {
        self.index_of(id).map(|at| &self.levels[at])
    }

    /// Returns until when one level is good.
    pub(crate) fn deadline_of(&self, level: u64) -> Instant {
        let limit = self.level(level).and_then(|level| level.max_hold);
        limit.map_or(self.deadline(), |limit| limit.at().min(self.deadline()))
    }

    /// Called when the server confirmed a lease. Deadlines only move forward, since no script shortens a TTL below that lease.
    pub(super) fn confirmed(&mut self, lease: Lease, sent: Instant, slept: Duration) {
        if self.loss().is_some() {
            return; // A loss is final, whatever is answered later.
        }
        let until = lease.valid_until(sent, self.timing.drift);
        if until > self.valid_until {
            self.valid_until = until;
            self.slept = slept;
        }
        let half = |lease: Lease| lease.duration() / 2;
        let nearly_over = self.valid_until.checked_sub(half(self.timing.lease)).unwrap_or(sent);
        let certain_until = after(sent, half(lease.min(self.timing.lease))).min(nearly_over);
        self.certain_until = self.certain_until.max(certain_until);
        if lease >= self.timing.lease {
            // Not after a shorter lease: 1. One is nested in a renewed hold, and would postpone the renewal. 2. So would the next
            // one, and so on for ever.
            self.renew_at = self.timing.renew_at(sent);
        }
        self.failures = 0;
    }

    /// Called when a renewal found a TTL that is longer than its lease. If no requested lease explains it, the server's clock was
    /// set back, or somebody has set the TTL. After a crash others would wait for all of that time.
    pub(super) fn found_ttl(&mut self, left: Duration, ends: NonZeroU64, now: Instant) {
        let explained = after(self.gone_by, self.timing.patience);
        self.copies.change(|copies| copies.too_long = Some(ends).filter(|_| after(now, left) > explained));
    }

    /// Returns whether the next command may be one that shortens the TTL. `renews`: whether anything is renewed.
    pub(super) fn may_shorten(&self, renews: bool) -> bool {
        renews && self.copies.too_long.is_some() && self.is_renewable() && self.next_action().is_none()
    }

    /// Returns the command that shortens the TTL: to the lease, or to the time that guards may count on if that is longer.
    pub(super) fn shortening(&self, now: Instant) -> Action {
        let left = self.gone_by.saturating_duration_since(now) + Duration::from_millis(1);
        Action::Shorten { lease: Lease::rest(left).max(self.timing.lease) }
    }

    /// Decides what the command does to the end of its key. After a `Shorten`, the hold remembers that the TTL may still become
    /// shorter.
    fn decide_key_end(&mut self, action: Action) -> KeyEnd {
        match (action, self.copies.too_long) {
            (Action::Shorten { .. }, Some(ends)) => {
                self.copies.change(|copies| (copies.too_long, copies.shortens) = (None, true));
                KeyEnd::Is(ends)
            }
            // The end moves, since it is being shortened. Otherwise: 1. A key with an hour left is being shortened to a lease, and the
            // command is delayed. 2. An extension by a minute is confirmed, since the key stays for longer. 3. The command runs, and
            // the key expires under the guard.
            _ if self.copies.shortens && action.lease() > Some(self.timing.lease) => KeyEnd::Moves,
            _ => KeyEnd::Stays,
        }
    }

    /// Called when the server confirmed a longer lease for one level.
    pub(super) fn extended(&mut self, level: u64, lease: Lease, sent: Instant) {
        let until = lease.valid_until(sent, self.timing.drift);
        if let Some(at) = self.index_of(level) {
            self.levels[at].until = self.levels[at].until.max(Some(until.into()));
        }
    }

    /// Makes what the next level and its guard share.
    #[inline(always)]
    pub(super) fn new_grant(&self, level: u64) -> Arc<Grant> {
        Arc::new(Grant {
            keys: self.keys.clone(),
            hold: self.id,
            level,
            depth: self.count() + 1,
            token: self.token(),
            field: self.field.clone(),
            signal: LossSignal::default(),
        })
    }

    /// Adds a level that was granted, and returns what its guard needs. `server_count`: the count on the masters. That may be more
    /// than are held now: a guard can be dropped while a nested acquire is under way, and its release is sent after the acquire.
    #[inline(always)]
    pub(super) fn add_level(&mut self, level: Level, server_count: u32) -> Arc<Grant> {
        self.limited |= level.max_hold.is_some();
        let grant = level.grant.clone();
        self.levels.push(level);
        self.server_count = server_count;
        grant
    }

    /// Called when the outermost level was granted with this token.
    pub(super) fn set_token(&mut self, token: u64) {
        self.fence = self.fence.as_ref().map(|fence| Arc::new(fence.with(token)));
    }

    pub(crate) fn token(&self) -> Option<u64> {
        self.fence.as_ref()?.least
    }

    /// Returns whether, as far as this process knows, every master has the right count, and nothing has to be sent. A renewal under
    /// way does not matter, since it changes only the hold's end.
    pub(super) fn is_in_sync(&self) -> bool {
        // Whatever sets `doubted` for the renewal of a live hold also unsettles the hold.
        let renews = |command: &UnderWay| matches!(command.action, Action::Renew { .. });
        self.state == State::Stands { unsettled: false }
            && self.command.as_ref().is_none_or(renews)
            && self.copies.lacking.is_empty()
            && self.server_count <= self.count()
    }

    /// Returns whether the masters certainly have it, with the right count: it is in sync, and was confirmed recently.
    pub(super) fn is_certain(&self, now: Instant) -> bool {
        now < self.certain_until && self.is_in_sync()
    }

    /// Removes a level, as soon as its guard is dropped or released. The next command, from [`next_action`](Hold::next_action),
    /// reports it to the masters.
    pub(super) fn remove_level(&mut self, id: u64) -> Option<Level> {
        self.index_of(id).map(|at| self.levels.remove(at))
    }

    /// Marks the hold as lost, which is final; its levels stay until their guards go. Returns their signals, to be resolved.
    pub(super) fn lose(&mut self, loss: Loss, ends_key: bool, now: Instant) -> Vec<Arc<Grant>> {
        self.state = match self.state {
            State::Stands { .. } => State::Lost { loss, ends_key },
            State::Gone { loss: None, frees_nobody } => State::Gone { loss: Some(loss), frees_nobody },
            State::Lost { .. } | State::Gone { loss: Some(_), .. } => return Vec::new(),
        };
        // A guard's `valid_until()` must not return a time in the future once the hold is lost.
        self.valid_until = self.valid_until.min(now);
        let sealed = self.levels.iter().filter(|level| level.grant.signal.seal(loss));
        sealed.map(|level| level.grant.clone()).collect()
    }

    /// Keeps the lock from everybody else until then.
    pub(super) fn keep_until(&mut self, until: Instant) {
        self.kept_until = self.kept_until.max(Some(until.into()));
    }

    /// Returns how long its lock has to stay taken if it ends now.
    pub(super) fn kept_for(&self, now: Instant) -> Option<Duration> {
        self.kept_until?.at().checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// Returns the command that ends it now. It is a plain end once the time of `at_least` is over, even if the first attempt was
    /// sent before. A lost hold does not keep its lock, since on a minority that still has the hold, this would block others.
    fn end_action(&self, now: Instant) -> Action {
        let kept = self.kept_for(now).filter(|_| self.loss().is_none());
        // Rounded up to whole milliseconds.
        kept.map_or(Action::END, |left| Action::Keep { lease: Lease::rest(left + Duration::from_millis(1)) })
    }

    /// Returns what must be sent, now or at `retry_at`, to bring the server to the state that is known here.
    pub(super) fn next_action(&self) -> Option<Action> {
        if self.command.is_some() || self.is_offered() || self.in_line {
            return None;
        }
        match self.state {
            State::Gone { .. } => (!self.copies.remains.is_empty()).then_some(Action::END),
            _ if self.levels.is_empty() => Some(Action::END),
            // Otherwise the key, if it exists, is ended when the last guard is dropped.
            State::Lost { ends_key, .. } => ends_key.then_some(Action::END),
            // Sent before anything else, since a majority may depend on it.
            State::Stands { .. } if !self.copies.lacking.is_empty() => {
                // The masters that lack the hold get the count that the others have.
                let count = self.server_count.clamp(1, self.count());
                Some(Action::Repair { count, lease: self.timing.lease })
            }
            State::Stands { unsettled: true } => {
                Some(Action::Settle { count: self.count(), lease: self.timing.lease })
            }
            State::Stands { unsettled: false } => {
                (self.server_count > self.count()).then(|| Action::Release { count: self.count() })
            }
        }
    }

    /// Returns whether an end, or the current count, still has to reach the masters. This includes a hold that is requested: once
    /// the session is closed, its grant is undone.
    pub(super) fn owes(&self) -> bool {
        let owed = |action| !matches!(action, Action::Repair { .. });
        let ends = self.owes_end() || self.is_beginning() || self.is_offered() || self.in_line;
        !self.is_gone() && (ends || self.next_action().is_some_and(owed))
    }

    /// Returns the count that most masters have, if everything is answered and nothing has to be sent. It never exceeds the number
    /// of levels.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn at_rest(&self) -> Option<u32> {
        let rests = self.lives() && self.command.is_none() && self.next_action().is_none();
        rests.then(|| self.server_count.min(self.count()))
    }

    /// Notes that these masters, by their last answers, lack the hold while a majority has it.
    #[inline]
    pub(super) fn lacked_by(&mut self, masters: MasterSet, now: Instant) {
        self.copies.set_lacking(masters);
        self.repair_soon(masters, now);
    }

    /// Called when no majority has confirmed the hold, with the young and the old masters that lack it. It is put on the young ones, which
    /// have voted for nobody else, unless an old one lost it. Otherwise: 1. The lock is released by force on two of three masters. 2. One
    /// of them is young here, and already old for another process, which has the lock for a while. 3. The hold is put there, and the third
    /// master still has it. These two would confirm a hold that was over.
    pub(super) fn lacked_in_doubt(&mut self, young: MasterSet, old: MasterSet, now: Instant) {
        // The acquire may not have been sent to an old one.
        let never_had = self.copies.never_had.union(self.copies.absent);
        let masters = if old.without(never_had).is_empty() { young } else { MasterSet::NONE };
        self.copies.change(|copies| copies.lacking = masters);
        self.repair_soon(masters, now);
    }

    fn repair_soon(&mut self, masters: MasterSet, now: Instant) {
        // Not after a second failure. Otherwise: 1. Young masters lack it, and have a field of another hold that a late command has left.
        // 2. The repair changes nothing. 3. The settle after it finds the same, and so on without a pause.
        if !masters.is_empty() && self.lives() && self.failures <= 1 {
            self.retry_at = now;
        }
    }

    /// Returns the lease that a command sets which only confirms the hold. If nothing renews the hold, that is the rest of its lease, so
    /// that nothing changes. A shorter lease would end the hold early if somebody has persisted the key.
    pub(super) fn lease_left(&self, now: Instant) -> Lease {
        match self.is_watched() {
            true => self.timing.lease,
            false => Lease::rest(self.deadline().saturating_duration_since(now)),
        }
    }

    /// Returns whether the watchdog has to renew it.
    pub(super) fn is_renewable(&self) -> bool {
        self.lives() && self.command.is_none() && !self.is_unsettled() && self.is_watched()
    }

    /// Returns whether a renewal is due, so that no command of a request or a guard begins before it, and no release of the background,
    /// unless the last command failed: then the two take turns (see `due_command`). Otherwise: 1. A hold has 150 levels, which are
    /// released one after the other. 2. Each release begins in the poll that gets the answer to the one before. 3. A renewal, which has
    /// to wait for the command under way, never gets its turn, and the lease ends. `renews`: whether anything is renewed.
    pub(super) fn renews_first(&self, renews: bool, now: Instant) -> bool {
        renews && self.is_renewable() && self.renew_at <= now
    }

    /// Returns whether a request or a guard may begin a command of it: none is under way, and none goes first.
    pub(super) fn is_callers_turn(&self, renews: bool, now: Instant) -> bool {
        self.command.is_none() && self.next_action().is_none() && !self.renews_first(renews, now)
    }

    /// Begins a command, which the caller sends now.
    pub(super) fn begin(
        &mut self,
        mut action: Action,
        sender: Sender,
        command_id: u64,
        now: Instant,
    ) -> Pending {
        if action == Action::END {
            action = self.end_action(now);
        }
        if let Action::Repair { lease, .. } | Action::Settle { lease, .. } = &mut action {
            // What is sent for a hold that nobody renews must not outlast it, since nobody would end the key.
            *lease = self.lease_left(now);
        }
        let end = self.decide_key_end(action);
        self.command = Some(UnderWay { command_id, sent: now, action, sender, doubted: false });
        let masters = match action {
            Action::Repair { .. } => self.copies.lacking,
            _ if self.is_gone() => self.copies.remains,
            _ => MasterSet::ALL,
        };
        let repeated = action.is_end() && self.release_tried;
        let fence = self.fence.as_ref().filter(|_| action.is_counted(self.failures > 0)).cloned();
        let call = Call {
            keys: self.keys.clone(),
            field: self.field.clone(),
            action,
            fence,
            sharded: false,
            report_holder: false,
            from: None,
            end,
            line: self.timing.line.filter(|_| action == Action::END),
        };
        Pending { hold: self.id, command_id, call, masters, repeated, sent: now }
    }

    pub(super) fn under_way(&self, command_id: u64) -> bool {
        self.command.as_ref().is_some_and(|command| command.command_id == command_id)
    }

    /// Removes the command, with or without an answer. Returns `None` if it was given up before, so that its answer is void.
    pub(super) fn finish(&mut self, command_id: u64, now: Instant) -> Option<UnderWay> {
        let command = self.command.take_if(|command| command.command_id == command_id)?;
        if let Some(lease) = command.action.lease() {
            self.gone_by = self.gone_by.max(after(now, lease.duration()));
        }
        Some(command)
    }

    /// Removes the command without a result. The background carries out what a guard has sent.
    pub(super) fn give_up(&mut self, command_id: u64, now: Instant) -> Option<UnderWay> {
        let command = self.finish(command_id, now)?;
        self.certain_until = self.certain_until.min(now);
        if let Sender::Release(left) = &command.sender {
            self.pending_releases.get_or_insert_default().push(left.clone());
        }
        Some(command)
    }

    /// Removes a command that may have run, or may still run.
    pub(super) fn unknown(&mut self, command_id: u64, now: Instant) -> Option<UnderWay> {
        let command = self.give_up(command_id, now)?;
        if let Some(lease) = command.action.lease() {
            self.maybe_until = self.maybe_until.max(Some(after(now, lease.duration()).into()));
        }
        self.release_tried |= command.action.is_end();
        if self.in_line || self.enters && matches!(command.action, Action::Acquire { .. }) {
            self.stop_waiting_in_line(now);
        }
        self.unsettle();
        self.failed(now);
        Some(command)
    }

    pub(super) fn failed(&mut self, now: Instant) {
        if self.maybe_until.is_some() && self.failures <= 1 {
            // If a command had no answer, an end after it is repeated for a lease. One failure may be that command's own. Otherwise: 1. An
            // acquire is given up. 2. The process stops for a lease, and then the acquire runs. 3. The end is sent, is lost on its way, and
            // would be forgotten.
            self.gone_by = self.gone_by.max(after(now, self.timing.lease.duration()));
        }
        self.retry_at = after(now, self.timing.pause(if self.is_gone() { self.failures } else { 0 }));
        self.failures = self.failures.saturating_add(1);
        self.renew_at = self.renew_at.max(self.retry_at);
    }
}

#[cfg(test)]
mod tests;
