//! What time does to holds: ends, losses, and work that becomes due; and the events after which all waiters and holds are checked again.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::meter::Sample;
use crate::base::{Lease, MasterSet, Moment, Spread, after, earlier};
use crate::error::Loss;
use crate::owner::Owner;
use crate::table::effects::LogEvent;
use crate::table::entry::{LockEntry, is_of_tree};
use crate::table::hold::{Hold, Sender, UnderWay};
use crate::table::numbers::Numbers;
use crate::wire::{Action, Pending};

impl LockEntry {
    /// Marks a hold as lost, and reports that. Requests that would have entered it fail with the same loss. `ends_key`: this
    /// client ends the key.
    pub(super) fn lose(&mut self, id: u64, loss: Loss, ends_key: bool, now: Instant) {
        let Some(hold) = self.holds.iter_mut().find(|hold| hold.id == id) else { return };
        if !hold.levels.is_empty() {
            for request in self.queue.iter_mut().filter(|request| is_of_tree(request, hold)) {
                request.lost.get_or_insert(loss);
                self.out.wake(request.wake(now));
            }
            // Levels that have left wait for a command that is not sent any more.
            self.out.resolve(hold.resolve_pending_releases(Err(loss)));
            if hold.loss().is_none() {
                self.out.measure(Sample::Ended(now.saturating_duration_since(hold.since)));
            }
        }
        // The watchdog did not renew any level of it, so its end was expected.
        let fixed = hold.levels.iter().all(|level| !level.watched);
        let signals = hold.lose(loss, ends_key, now);
        // Logged once: the server may answer later that the hold is gone.
        if !signals.is_empty() {
            let field = hold.field.clone();
            self.out.log(LogEvent::Lost { field, loss });
            self.out.measure(Sample::Lost { loss, fixed: fixed && loss == Loss::Expired });
        }
        self.out.resolve(signals);
        self.head_asks_once_more(now);
    }

    /// Wakes every request: what they wait for will not come.
    pub(crate) fn wake_requests(&mut self, now: Instant) {
        let woken = self.queue.iter_mut().filter_map(|request| request.wake(now));
        self.out.wake(woken);
    }

    /// Wakes everything that waits for this entry, so that each future looks again and finds out what has changed.
    pub(crate) fn wake_everyone(&mut self, now: Instant) {
        self.wake_requests(now);
        self.wake_command_waiters();
        let levels = self.holds.iter().flat_map(|hold| &hold.levels).map(|level| level.grant.clone());
        let leaving =
            self.holds.iter().filter_map(|hold| hold.pending_releases.as_deref()).flatten().cloned();
        self.out.resolve(levels.chain(leaving));
    }

    /// Gives up the commands of a background task that does not run: nobody may ever look at their answers.
    pub(crate) fn give_up_background(&mut self, now: Instant) {
        let mut ended = false;
        let ids: Vec<u64> = self.holds.iter().map(|hold| hold.id).chain(self.orphans.ids()).collect();
        for id in ids {
            let Some(hold) = self.hold(id) else { continue };
            let of_background = hold.command.as_ref().filter(|command| command.sender.is_background());
            if let Some(command_id) = of_background.map(|command| command.command_id) {
                ended |= hold.end_is_under_way();
                hold.unknown(command_id, now);
                hold.retry_at = now;
            }
        }
        if ended {
            // A release that was never sent has no echo.
            self.expect_no_echo_of(MasterSet::ALL);
        }
        self.wake_next(now);
    }

    /// Has all holds checked with the server at once, since something may have happened to them.
    pub(crate) fn doubt_all(&mut self, now: Instant) {
        self.withdraw_offer(now);
        for hold in &mut self.holds {
            hold.doubt();
            if hold.lives() {
                hold.settle_at_once(now);
            } else if hold.owes_end() || hold.is_gone() {
                hold.retry_at = now;
            }
        }
    }

    /// Called when this owner's last scope has ended: its levels and requests pass to its nearest living ancestor.
    pub(crate) fn owner_ended(&mut self, owner: &Owner, now: Instant) {
        for level in self.holds.iter_mut().flat_map(|hold| &mut hold.levels) {
            if level.owner == *owner {
                level.owner = owner.register_at(&self.position);
            }
        }
        let position = &self.position;
        self.queue.pass_on(owner, || owner.register_at(position));
        self.forget_proofs();
        self.tree_asks_once_more();
        self.wake_next(now);
    }

    /// Does what is due, and returns what has to be sent. `away`: masters that can't be asked now; commands for them alone are put off.
    pub(crate) fn check(&mut self, at: Moment, away: MasterSet, numbers: &Numbers) -> Vec<Pending> {
        self.end_overdue(at);
        let mut commands = Vec::new();
        for hold in &mut self.holds {
            commands.extend(hold.due_command(at.now, self.is_open, numbers));
        }
        commands.extend(self.orphans.check(at.now, away, numbers));
        commands.iter().for_each(|pending| self.expect_echoes(pending));
        self.check_heads(at.now);
        self.report_waits(at);
        self.sweep(at.now);
        commands
    }

    /// Begins every end that is still owed, due or not.
    pub(crate) fn last_ends(&mut self, numbers: &Numbers, now: Instant) -> Vec<Pending> {
        self.withdraw_offer(now);
        let ids: Vec<u64> = self.holds.iter().map(|hold| hold.id).chain(self.orphans.ids()).collect();
        let mut ends = Vec::new();
        for id in ids {
            if let Some(hold) = self.hold(id).filter(|hold| hold.next_action() == Some(Action::END)) {
                ends.push(hold.begin(Action::END, Sender::Background, numbers.next(), now));
            }
        }
        ends
    }

    /// Carries out what time alone decides: gives up commands that have had no answer for too long, ends offers, forgets what has
    /// expired on the masters, and declares losses.
    pub(super) fn end_overdue(&mut self, at: Moment) {
        let waiting = self.kept_waiting();
        let mut ids = Vec::new();
        for hold in &mut self.holds {
            if hold.gives_up_at(waiting, self.is_open).is_some_and(|t| t <= at.now)
                && let Some(command_id) = hold.command.as_ref().map(|command| command.command_id)
            {
                hold.unknown(command_id, at.now);
                hold.retry_at = at.now;
            }
            if hold.offered_until().is_some_and(|until| until <= at.now) {
                hold.withdraw_offer(at.now);
            }
            ids.push(hold.id);
            let is_ended = hold.levels.is_empty() || hold.owes_end();
            let tried = is_ended && hold.command.is_none() && hold.failures > 0;
            if tried && at.now >= hold.gone_by {
                // The key has expired by now, even if its end was never confirmed.
                hold.mark_gone(false);
                self.out.resolve(hold.resolve_pending_releases(Err(Loss::Expired)));
            }
            if hold.is_gone() && at.now >= hold.gone_by {
                // The key has expired by now on every master that still had it.
                hold.copies.set_left(Spread::NONE);
            }
        }
        for id in ids {
            self.lose_late(id, at);
        }
    }

    /// Marks a hold that is past its end as lost, and each level that is past its own.
    pub(crate) fn lose_late(&mut self, id: u64, at: Moment) {
        let Some(hold) = self.holds.iter_mut().find(|hold| hold.id == id) else { return };
        let over = hold.limited().iter().filter(|level| level.max_hold.is_some_and(|end| end.at() <= at.now));
        for level in over.filter(|level| level.grant.signal.seal(Loss::MaxHold)) {
            self.out.resolve([level.grant.clone()]);
            self.out.log(LogEvent::Lost { field: hold.field.clone(), loss: Loss::MaxHold });
            self.out.measure(Sample::Lost { loss: Loss::MaxHold, fixed: false });
            // Children that wait to enter find that nothing is left to enter.
            for request in self.queue.iter_mut().filter(|request| request.owner.is_within(&level.owner)) {
                if hold.levels_of(&request.owner).next().is_none() && is_of_tree(request, hold) {
                    request.lost.get_or_insert(Loss::MaxHold);
                }
                self.out.wake(request.wake(at.now));
            }
        }
        if !hold.lives() || at.now < hold.deadline() {
            return;
        }
        // The key of a renewed hold is about to expire by itself, unless a longer lease was asked for and not confirmed. Such a key, and that
        // of a hold that nobody renews, is ended by this client: otherwise it would live on for that lease, and for the drift.
        let lease = hold.timing.lease;
        let asked = hold.command.as_ref().and_then(|command| command.action.lease());
        let may_stay = asked > Some(lease) || hold.may_stand_until() > after(at.now, lease.duration());
        let ends_key = may_stay || !hold.is_watched();
        hold.retry_at = at.now;
        hold.failures = 0;
        let loss = hold.why_late(at);
        self.lose(id, loss, ends_key, at.now);
    }

    /// Returns both heads: the first stranger, and the first request of the holding tree.
    fn heads(&self) -> impl Iterator<Item = u64> + use<> {
        [self.outer_front(), self.inner_front()].map(|head| head.map(|head| head.id)).into_iter().flatten()
    }

    /// Passes over a head that was not polled in time.
    pub(super) fn pass_over_late(&mut self, now: Instant) {
        for head in self.heads() {
            let count = self.queue.pass_over(head, now, self.timing.patience);
            self.passed_over(count, now);
        }
    }

    fn check_heads(&mut self, now: Instant) {
        for head in self.heads() {
            let count = self.queue.check(head, now, &mut self.out);
            self.passed_over(count, now);
        }
    }

    /// Makes the next request the head, which gets what the late one was woken for. It asks again, since it may have asked and
    /// gone to sleep before.
    fn passed_over(&mut self, count: usize, now: Instant) {
        if count == 0 {
            return;
        }
        self.head_asks_once_more(now);
        let ahead = self.queue.wake_ahead(count, now);
        self.out.wake(ahead);
    }

    /// Returns how many calls a command without an answer may keep waiting: the requests, and one more if others wait for its end.
    /// Otherwise: 1. A `check` is sent, and its future is not polled. 2. Another `check` of the same hold waits for it. 3. It fails,
    /// and so does each one after it until the next renewal, though the server answers.
    fn kept_waiting(&self) -> usize {
        self.queue.len() + usize::from(self.queue.has_command_waiters())
    }

    /// Returns when [`check`](LockEntry::check) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = self.queue.len();
        let kept_waiting = self.kept_waiting();
        let holds = self.holds.iter().map(|hold| hold.due(self.is_open, kept_waiting));
        let ends =
            self.subscription.as_ref().filter(|_| waiting == 0).and_then(|subscription| subscription.ends_at);
        let others = [self.orphans.due(), self.queue.report_at(), ends];
        let due = holds.chain(others).fold(None, earlier);
        // A head that is alone keeps nobody waiting.
        if waiting < 2 {
            return due;
        }
        self.heads().filter_map(|head| self.queue.late_at(head)).chain(due).min()
    }
}

impl Hold {
    /// Returns the loss to report: that the lease expired, or that the machine slept through its end.
    pub(super) fn why_late(&self, at: Moment) -> Loss {
        let slept = at.slept.saturating_sub(self.slept);
        let awake = at.now.checked_sub(slept).unwrap_or(at.now);
        if awake < self.deadline() { Loss::Suspended } else { Loss::Expired }
    }

    /// Returns when a command that the background did not send counts as unanswered for too long.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        let of_a_caller = self.command.as_ref().filter(|command| !command.sender.is_background());
        of_a_caller.map(|command| after(command.sent, self.timing.patience))
    }

    /// Returns when its command is given up, if it keeps somebody waiting. `open`: the session is not closed.
    fn gives_up_at(&self, waiting: usize, open: bool) -> Option<Instant> {
        let overdue = self.overdue_at()?;
        let UnderWay { sent, sender, action, .. } = self.command.as_ref()?;
        // The extension is given up at once. Otherwise: 1. The work of a `run` begins to extend its hold, and stops polling that call.
        // 2. The run ends. 3. The release waits for an answer that nobody reads.
        if self.levels.is_empty() && matches!(sender, Sender::Renewal { .. }) {
            return Some(*sent);
        }
        if !open {
            // `close` waits for this command, and needs the other half of the time to undo it.
            return overdue.checked_sub(self.timing.patience / 2);
        }
        // A request does not wait for its own command. A resume is not in the queue.
        let asks = matches!(sender, Sender::Request) && !matches!(action, Action::Move { .. });
        match waiting > usize::from(asks) || self.pending_releases.is_some() {
            true => Some(overdue),
            false => (!self.is_beginning()).then(|| overdue.max(self.renew_at)),
        }
    }

    pub(super) fn due_command(&mut self, now: Instant, renews: bool, numbers: &Numbers) -> Option<Pending> {
        let due = |at: Instant| at <= now;
        let action = match self.next_action() {
            None if self.renews_first(renews, now) => Some(Action::Renew { lease: self.timing.lease }),
            // A renewal that is due goes before a release. If they fail, they take turns, since the server may refuse one and not the other.
            Some(Action::Release { .. })
                if self.renews_first(renews, now) && self.failures.is_multiple_of(2) =>
            {
                Some(Action::Renew { lease: self.timing.lease })
            }
            None if self.may_shorten(renews) && due(self.retry_at) => Some(self.shortening(now)),
            next => next.filter(|_| due(self.retry_at)),
        }?;
        let command_id = numbers.next();
        let pending = self.begin(action, Sender::Background, command_id, now);
        if let Action::Repair { .. } = pending.call.action {
            self.copies.change(|copies| copies.note_repair(pending.masters));
        }
        Some(pending)
    }

    /// Returns when the next renewal will be due, assuming that the one under way is confirmed.
    pub(super) fn next_renewal(&self) -> Option<Instant> {
        let renews = |command: &&UnderWay| matches!(command.action, Action::Renew { .. });
        self.command.as_ref().filter(renews).map(|command| self.timing.renew_at(command.sent))
    }

    pub(super) fn due(&self, renews: bool, waiting: usize) -> Option<Instant> {
        let mut due = None;
        let mut at = |when: bool, at: Instant| {
            if when {
                due = Some(due.map_or(at, |due: Instant| due.min(at)));
            }
        };
        at(self.next_action().is_some(), self.retry_at);
        at(self.is_gone() && self.has_remains(), self.gone_by);
        if self.lives() {
            at(renews && self.is_renewable(), self.renew_at);
            at(self.may_shorten(renews), self.retry_at);
            at(true, self.deadline());
        }
        for level in self.limited().iter().filter(|level| level.loss().is_none()) {
            level.max_hold.into_iter().for_each(|limit| at(true, limit.at()));
        }
        self.offered_until().into_iter().for_each(|until| at(true, until));
        self.gives_up_at(waiting, renews).into_iter().for_each(|given_up| at(true, given_up));
        due
    }
}

/// Returns the pause before a hold's failed command is tried again: several attempts fit into a lease, and never become a flood.
pub(crate) fn retry_pause(lease: Lease) -> Duration {
    (lease.duration() / 20).clamp(Duration::from_millis(10), Duration::from_millis(500))
}
