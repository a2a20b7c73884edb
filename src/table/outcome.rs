//! What the results of commands mean: releases, renewals, settles, and acquires that were not granted. Also begins the commands of guards.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::task::Waker;

use tokio::time::Instant;

use crate::base::meter::Sample;
use crate::base::{Lease, MasterSet, Moment, Outcome, Spread, after};
use crate::error::Loss;
use crate::table::effects::LogEvent;
use crate::table::entry::LockEntry;
use crate::table::hold::{Hold, Sender, UnderWay};
use crate::table::level::Grant;
use crate::wire::{Action, Notice, Pending, Reply};

/// What an answer means to the sender of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Done,
    Lost(Loss),
    /// No answer that counts: the command failed, was refused, was given up before its answer came, or has to wait.
    Void,
}

/// What a master answered after the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateAnswer {
    /// It did as asked, or deferred only the count. If it was asked for an end, the field was there until now.
    Done,
    /// The field is not there.
    Missing,
    /// The command did not run.
    Unsent,
    /// It is unknown which of these applies.
    Unknown,
}

impl LockEntry {
    /// Takes a level out of its hold when its guard is dropped or released, and begins the release. `command_id`: the number of the
    /// release, if the caller sends it. If there is none, or another command goes first, the background sends the release and resolves
    /// the signal. Returns the command to send, or the result if no command is needed.
    pub(crate) fn leave(
        &mut self,
        id: u64,
        level: u64,
        command_id: Option<u64>,
        at: Moment,
    ) -> ControlFlow<Meaning, Pending> {
        self.lose_late(id, at);
        let Some(hold) = self.holds.iter_mut().find(|hold| hold.id == id) else {
            return Break(Meaning::Done);
        };
        let may_pass = !self.queue.is_empty() && hold.may_pass(at.now);
        let is_innermost = hold.levels.last().is_some_and(|last| last.id() == level);
        let Some(left) = hold.remove_level(level) else { return Break(Meaning::Done) };
        left.unregister_at(&self.position);
        let (loss, is_last) = (left.loss(), hold.levels.is_empty());
        // The masters' count is no higher than the number of levels, so nothing has to be sent.
        let is_done = !is_last && hold.is_in_sync();
        if !is_done {
            hold.retry_at = at.now;
            hold.failures = 0;
        }
        if is_last && hold.loss().is_none() {
            self.out.measure(Sample::Ended(at.now.saturating_duration_since(hold.since)));
        }
        if !is_innermost {
            self.out.log(LogEvent::OutOfOrder { field: hold.field.clone() });
        }
        if is_last && self.offer(id, may_pass && left.watched && loss.is_none(), at.now) {
            self.sweep(at.now);
            return Break(Meaning::Done);
        }
        let renews = self.is_open;
        let Some(hold) = self.hold(id) else { return Break(Meaning::Done) };
        let begins = hold.command.is_none() && !hold.is_unsettled() && !hold.renews_first(renews, at.now);
        let step = match (loss, command_id) {
            (Some(loss), _) => Break(Meaning::Lost(loss)),
            (None, _) if is_done => Break(Meaning::Done),
            (None, Some(command_id)) if begins => {
                let action = Action::Release { count: hold.count() };
                let pending = hold.begin(action, Sender::Release(left.grant), command_id, at.now);
                self.expect_echoes(&pending);
                Continue(pending)
            }
            (None, _) => {
                hold.pending_releases.get_or_insert_default().push(left.grant);
                Break(Meaning::Void)
            }
        };
        self.sweep(at.now);
        step
    }

    /// Begins the renewal that a guard requests: for a longer lease of the level in `extends`, or to check whether its hold still
    /// exists. Returns `None` if another command of the hold is under way or goes before it; `waker` is woken when this may have
    /// changed.
    pub(crate) fn begin_renewal(
        &mut self,
        hold: u64,
        extends: Option<(u64, Lease)>,
        command_id: u64,
        waker: &Waker,
        now: Instant,
    ) -> Option<Pending> {
        let renews = self.is_open;
        let Some(hold) = self.hold(hold).filter(|hold| hold.is_callers_turn(renews, now)) else {
            self.wake_on_command_end(waker);
            return None;
        };
        let (extends, lease) =
            extends.map_or((None, hold.lease_left(now)), |(level, lease)| (Some(level), lease));
        Some(hold.begin(Action::Renew { lease }, Sender::Renewal { extends }, command_id, now))
    }

    /// Returns whether something may have ended the hold since the masters were last asked about it.
    pub(crate) fn is_in_doubt(&self, hold: u64) -> bool {
        self.hold_of_guard(hold).is_none_or(Hold::is_unsettled)
    }

    /// Called when the masters have answered, or failed to answer, a command of any sender. Only a grant goes to
    /// [`granted`](LockEntry::granted), and an answer after the verdict to [`straggled`](LockEntry::straggled). `answer`: the
    /// combined result of the answers, or an unknown outcome if the future that waited for them is dropped.
    pub(crate) fn conclude(
        &mut self,
        pending: &Pending,
        answer: Result<&Reply, Outcome>,
        spread: Spread,
        at: Moment,
    ) -> Meaning {
        if let Some(hold) = self.hold(pending.hold) {
            hold.may_be_made_late(pending, spread);
        }
        // Ends do not count, since no request waits for them (see `Outage`).
        if answer.is_ok() && !pending.is_end() {
            self.outage.ends();
        }
        match answer {
            // Only an acquire gets these answers. If the key is no lock, `contended` hardly matters: the next grant resets it.
            Ok(
                reply @ (Reply::InLine(..) | Reply::Busy(..) | Reply::NotALock(_) | Reply::NotACounter(_)),
            ) => {
                self.contended = true;
                self.note_holder(pending, reply);
                if matches!(reply, Reply::InLine(..)) {
                    self.keep_in_line(pending, at.now);
                } else if !self.leave_line_in_doubt(pending, at.now) {
                    self.not_run(pending, spread, at.now);
                }
            }
            Err(Outcome::NotRun) => self.not_run(pending, spread, at.now),
            Ok(reply) => return self.answered(pending, reply, spread, at),
            Err(Outcome::Unknown) => self.unknown(pending, at.now),
        }
        if answer.is_err()
            && let Some(hold) = self.hold(pending.hold).filter(|hold| hold.lives())
        {
            // The answers gave no majority.
            hold.lacked_in_doubt(spread.lacking, spread.missing, at.now);
        }
        Meaning::Void
    }

    fn answered(&mut self, pending: &Pending, reply: &Reply, spread: Spread, at: Moment) -> Meaning {
        // An end that nobody has noted yet is noted first. Otherwise: 1. The process stops for longer than the lease. 2. It
        // continues, and looks at a renewal's answer before it notices that the lease ended meanwhile. 3. Its hold is good again
        // after it was over.
        self.lose_late(pending.hold, at);
        let Some(hold) = self.hold(pending.hold) else { return Meaning::Void };
        let (tried, frees_nobody) = (hold.release_tried, hold.frees_nobody());
        let Some(command) = hold.finish(pending.command_id, at.now) else { return Meaning::Void };
        let meaning = match reply {
            Reply::Gone => self.gone(pending, &command, tried, spread, at),
            // A renewal deferred only the counter, and the next renewal is soon enough for that. If the hold had to be settled
            // until the counter can be written, nobody could re-enter.
            Reply::Deferred(_) if !matches!(pending.call.action, Action::Renew { .. }) => {
                if let Some(lease) = pending.call.action.lease() {
                    // The lease was raised before the part that failed.
                    hold.confirmed(lease, pending.sent, at.slept);
                }
                hold.unsettle();
                hold.failed(at.now);
                self.resolve_pending_releases_of(pending.hold, Ok(()));
                Meaning::Done
            }
            _ => {
                self.done(pending, &command, spread, at);
                if let (&Reply::Longer(left, ends), Some(hold)) = (reply, self.hold(pending.hold)) {
                    hold.found_ttl(left, ends, at.now);
                }
                Meaning::Done
            }
        };
        match *reply {
            // No message reports a free lock, and there is nobody to let go first: the lock was handed to the first process in the line,
            // or this process may not publish.
            Reply::Ended(Notice::Sent(0)) if pending.call.line.is_some() => self.expect_no_echo(pending),
            Reply::Ended(Notice::Denied) => self.expect_no_echo(pending),
            _ => self.lets_others_go_first(pending, reply, at.now),
        }
        if let Reply::Ended(Notice::LeftToOthers(time)) = *reply {
            self.leave_to_others(time, at.now);
        }
        self.sweep(at.now);
        if pending.is_end() && !frees_nobody {
            self.head_asks_once_more(at.now);
        }
        meaning
    }

    fn done(&mut self, pending: &Pending, command: &UnderWay, spread: Spread, at: Moment) {
        let Some(hold) = self.hold(pending.hold) else { return };
        if !matches!(pending.call.action, Action::Repair { .. }) {
            hold.lacked_by(spread.lacking, at.now);
        }
        let late = hold.failures;
        match pending.call.action {
            Action::Renew { lease } => {
                hold.confirmed(lease, pending.sent, at.slept);
                if let Sender::Renewal { extends: Some(level) } = command.sender {
                    hold.extended(level, lease, pending.sent);
                }
            }
            Action::Settle { count, lease } => {
                // The hold may be gone again: 1. The command ran. 2. The lock was released by force, or the server restarted
                // empty. 3. The command's answer arrives.
                hold.settled(command.doubted);
                hold.server_count = count;
                hold.confirmed(lease, pending.sent, at.slept);
            }
            action @ (Action::Release { .. } | Action::Keep { .. }) => {
                let count = if let Action::Release { count } = action { count } else { 0 };
                // The command only lowers the count: levels that were granted without a command may make the masters' count lower
                // than `count`.
                hold.server_count = hold.server_count.min(count);
                if !hold.is_gone() {
                    // The masters answered, so earlier failures no longer count.
                    hold.failures = 0;
                }
                if count == 0 {
                    hold.confirmed_gone(pending, command.doubted, spread, at.now);
                }
            }
            _ => {}
        }
        let (field, settled) = (hold.field.clone(), matches!(pending.call.action, Action::Settle { .. }));
        // A renewal without an answer is followed by a settle, which renews as well.
        let renews = settled && hold.is_watched() || matches!(pending.call.action, Action::Renew { .. });
        if hold.server_count <= hold.count() {
            self.resolve_pending_releases_of(pending.hold, Ok(()));
        }
        if pending.is_end() {
            // If there was nothing to remove, nothing is published.
            self.expect_no_echo_of(spread.remains.union(spread.missing));
        }
        if settled {
            self.out.log(LogEvent::Settled { field: field.clone() });
        }
        if late > 0 && renews {
            self.out.log(LogEvent::RenewedLate { field, failures: late });
        }
    }

    /// Called when the server answered that the field is not there.
    fn gone(
        &mut self,
        pending: &Pending,
        command: &UnderWay,
        tried: bool,
        spread: Spread,
        at: Moment,
    ) -> Meaning {
        let Some(hold) = self.hold(pending.hold) else { return Meaning::Void };
        hold.confirmed_gone(pending, command.doubted, spread, at.now);
        self.expect_no_echo(pending);
        let Some(hold) = self.hold(pending.hold) else { return Meaning::Void };
        // The first of two releases may have run, and then the second one gets this answer.
        let in_time = at.now < hold.valid_until;
        if pending.is_end() && tried && in_time {
            self.resolve_pending_releases_of(pending.hold, Ok(()));
            return Meaning::Done;
        }
        // A key that is missing after the end of the lease has expired. Otherwise: 1. A release is sent shortly before that end. 2. It
        // runs after the key has expired. 3. The hold would be reported as deleted or released by force.
        let loss = hold.loss().unwrap_or_else(|| if in_time { Loss::Gone } else { hold.why_late(at) });
        // Its last guard has left, and its release reports the loss.
        let found = matches!(command.sender, Sender::Release(_)) || hold.pending_releases.is_some();
        if found && hold.levels.is_empty() && hold.loss().is_none() {
            self.out.measure(Sample::Lost { loss, fixed: false });
        }
        self.resolve_pending_releases_of(pending.hold, Err(loss));
        self.lose(pending.hold, loss, false, at.now);
        Meaning::Lost(loss)
    }

    /// Handles a master's answer that the verdict did not wait for.
    pub(crate) fn straggled(&mut self, pending: &Pending, master: usize, answer: LateAnswer, now: Instant) {
        let (action, one) = (pending.call.action, MasterSet::one(master));
        let left = action.creates() && matches!(answer, LateAnswer::Done | LateAnswer::Unknown);
        let Some(hold) = self.hold(pending.hold) else {
            if left && !self.was_handed_over(pending.hold) {
                // Nobody else would end this field: 1. An acquire is sent again, with the text of its script or to another node.
                // 2. The end of the hold overtakes it. 3. The end is confirmed there, by "not held". 4. The acquire runs.
                let mut left = Hold::left_behind(pending, one, self.timing.clone(), now);
                // Then one end may not be enough: 1. The command waits in a connection that is replaced. 2. This end finds
                // nothing. 3. The command runs.
                if answer == LateAnswer::Unknown {
                    left.copies.change(|copies| copies.open.insert(master));
                }
                self.orphans.take_in(left);
            }
            return;
        };
        let (acquired, ended) = (action.begins(), action.is_end());
        if acquired || ended {
            // This master has answered. Otherwise: 1. Neither a renewal nor the end after it is answered there. 2. The renewal is
            // given up first. 3. The end is forgotten.
            hold.copies.change(|copies| copies.unanswered.remove(master));
        }
        if acquired && matches!(answer, LateAnswer::Missing | LateAnswer::Unsent) {
            hold.copies.change(|copies| copies.note_absent(one));
        }
        let in_vain = acquired && answer == LateAnswer::Done && hold.frees_nobody();
        let is_lacking = answer == LateAnswer::Missing && !ended;
        if left {
            hold.copies.change(|copies| copies.never_had.remove(master));
            hold.made_late_at(master, answer, now);
        } else if ended && hold.is_gone() {
            hold.ended_late_at(master, answer, now);
        } else if is_lacking && matches!(action, Action::Repair { .. }) {
            // Somebody else has the key there: the next renewal shows whether that is still so.
            hold.copies.change(|copies| copies.never_had.insert(master));
        } else if is_lacking && hold.has_lock() && !hold.is_unsettled() {
            // Not while the hold is in doubt: it may be over, and a majority has to confirm it first. Otherwise: 1. The lock is
            // released by force on two of three masters, and the hold is checked. 2. The first and the third master do not answer.
            // 3. The second one answers late, and is given the hold, which the third one still has: a majority confirms a hold that
            // was over.
            hold.lacked_by(hold.copies.lacking.union(one), now);
        }
        if ended && answer != LateAnswer::Done {
            self.expect_no_echo_of(one);
        }
        if in_vain && let Some(subscription) = &mut self.subscription {
            subscription.split = true;
        }
        self.sweep(now);
    }

    fn resolve_pending_releases_of(&mut self, id: u64, outcome: Result<(), Loss>) {
        if let Some(hold) = self.holds.iter_mut().find(|hold| hold.id == id) {
            self.out.resolve(hold.resolve_pending_releases(outcome));
        }
    }

    /// Called when the command as a whole changed nothing. If a minority granted an acquire, or masters that have not answered
    /// may have, it is ended there.
    fn not_run(&mut self, pending: &Pending, spread: Spread, now: Instant) {
        self.expect_no_echo(pending);
        let left = !spread.remains.union(spread.unanswered).is_empty();
        if let Some(hold) = self.hold(pending.hold).filter(|hold| hold.under_way(pending.command_id)) {
            let asked = hold.is_beginning();
            let command = hold.give_up(pending.command_id, now);
            if asked && left {
                hold.mark_gone(true);
                hold.copies.set_left(spread);
                hold.retry_at = now;
            } else if asked && !hold.in_line {
                self.holds.retain(|hold| hold.id != pending.hold);
            } else if command.is_some_and(|command| command.sender.is_background()) {
                hold.failed(now);
            }
            // Releases that waited for the command need none of their own if the count is low enough.
            if let Some(hold) = self.hold(pending.hold)
                && hold.lives()
                && !hold.is_unsettled()
                && hold.server_count <= hold.count()
            {
                self.resolve_pending_releases_of(pending.hold, Ok(()));
            }
        } else if left {
            self.made_late(pending, now);
        }
        self.wake_next(now);
    }

    /// Called when it is unknown whether the command ran, or will run: the background settles it.
    fn unknown(&mut self, pending: &Pending, now: Instant) {
        self.expect_no_echo(pending);
        if let Some(hold) = self.hold(pending.hold)
            && let Some(command) = hold.unknown(pending.command_id, now)
        {
            if !command.sender.is_background() {
                // The background has not tried yet: it ends or settles the hold at once, and the next request goes after that.
                (hold.retry_at, hold.failures) = (now, 0);
            }
        } else {
            self.made_late(pending, now);
        }
        self.wake_next(now);
    }

    /// Called when the result of a command that makes the field is seen after its hold was given up, and maybe ended. For example: 1. The
    /// command waits to be sent. 2. The machine sleeps, or the process stops; the hold is given up, and its end runs. 3. The command is
    /// sent, since its own time stood still. So whatever the command made is ended on each master that it was meant for.
    pub(super) fn made_late(&mut self, pending: &Pending, now: Instant) {
        if !pending.call.action.creates() {
            return;
        }
        let masters = MasterSet::first(MasterSet::MOST).within(pending.masters);
        let is_handed_over = self.was_handed_over(pending.hold);
        match self.hold(pending.hold) {
            None if is_handed_over => {}
            None => self.orphans.take_in(Hold::left_behind(pending, masters, self.timing.clone(), now)),
            Some(hold) if hold.is_gone() => hold.remains_at(masters, now),
            // If no end is under way, one will be sent after this.
            Some(hold) => hold.copies.change(|copies| copies.open = copies.open.union(masters)),
        }
        self.sweep(now);
    }
}

impl Hold {
    /// Called when a majority has confirmed that the hold is gone. The background ends what the other masters may still have.
    fn confirmed_gone(&mut self, pending: &Pending, doubted: bool, spread: Spread, now: Instant) {
        let asked = pending.masters;
        let concluded = asked.without(spread.unanswered);
        // An end counts only where it was answered. Otherwise: 1. An acquire waits for a master in a connection that is replaced.
        // 2. The end fails there, or is sent only to other masters, and counts. 3. It is sent there, finds nothing, and is not
        // repeated. 4. The acquire runs, and leaves its field.
        let ended = if pending.is_end() { concluded.without(spread.remains) } else { MasterSet::NONE };
        let remains = spread.remains.without(self.copies.absent);
        if self.is_gone() && !remains.is_empty() && !doubted {
            self.failed(now);
        } else {
            self.retry_at = now;
        }
        if self.copies.differ() || spread != Spread::NONE {
            // A doubted end leaves open what remains: 1. The end reaches some masters. 2. Another master grants in the meantime, or
            // may still grant. 3. The end is answered, which says nothing about that grant.
            let over = if doubted { MasterSet::NONE } else { asked };
            let again = self.copies.change(|copies| {
                let again = copies.note_end(ended, spread.missing);
                copies.remains = copies.remains.without(over).union(remains).union(again);
                let unanswered = spread.unanswered.without(copies.absent);
                copies.unanswered = copies.unanswered.without(asked).union(unanswered);
                again
            });
            if !again.is_empty() {
                self.retry_at = after(now, self.timing.retry);
            }
        }
        self.mark_gone(self.has_remains());
    }

    /// Called when a command that makes the field ran on this master after the verdict or, if its answer is unknown, may still run there.
    fn made_late_at(&mut self, master: usize, answer: LateAnswer, now: Instant) {
        // The field may be made twice, with the end in between: 1. The acquire runs there late, after a renewal that found nothing.
        // 2. The end finds the field that it made. 3. The repair runs.
        let is_made_again = self.end_is_under_way() && self.copies.repaired.contains(master);
        if !is_made_again && (answer == LateAnswer::Unknown || self.command.is_some() && !self.is_gone()) {
            // The answer to an end that is under way shows whether it ran after this. An end that was answered before shows nothing.
            self.copies.change(|copies| copies.open.insert(master));
        }
        if is_made_again || self.is_gone() {
            self.remains_at(MasterSet::one(master), now);
        }
    }

    /// Called when a master answers the end after the verdict that the hold is gone: decides whether that master needs another end.
    fn ended_late_at(&mut self, master: usize, answer: LateAnswer, now: Instant) {
        let one = MasterSet::one(master);
        let (again, at) = match answer {
            LateAnswer::Unsent | LateAnswer::Unknown => (one.without(self.copies.absent), now),
            LateAnswer::Done | LateAnswer::Missing => {
                let missing = if answer == LateAnswer::Missing { one } else { MasterSet::NONE };
                (self.copies.change(|copies| copies.note_end(one, missing)), after(now, self.timing.retry))
            }
        };
        if !again.is_empty() {
            self.remains_at(again, at);
        }
    }

    /// Notes the masters where a command that makes the field was given up before the verdict. It may run after an end: 1. The
    /// acquire waits for a master in a connection that is replaced; two others grant. 2. The end of the hold finds nothing there.
    /// 3. The acquire runs.
    pub(super) fn may_be_made_late(&mut self, pending: &Pending, spread: Spread) {
        if !spread.given_up.is_empty() && pending.call.action.creates() {
            // If an end was answered there before, the one that is sent after this is the second.
            let open = match self.is_gone() {
                true => self.copies.left(),
                false => MasterSet::ALL,
            };
            self.copies.change(|copies| copies.open = copies.open.union(spread.given_up.within(open)));
        }
    }

    /// Notes masters that may have the field though the hold is gone, so that its end has to be sent there, `not_before` this time.
    pub(super) fn remains_at(&mut self, masters: MasterSet, not_before: Instant) {
        self.copies.change(|copies| copies.remains = copies.remains.union(masters));
        // The answer to an end under way does not show that the field exists: 1. The end runs there, and then a late grant. 2. The
        // grant is answered first.
        self.doubt();
        self.retry_at = self.retry_at.max(not_before);
    }

    /// Sets the result of the pending releases. Returns the grants to resolve.
    pub(super) fn resolve_pending_releases(&mut self, outcome: Result<(), Loss>) -> Vec<Arc<Grant>> {
        let leaving = self.pending_releases.take().map_or_else(Vec::new, |leaving| *leaving);
        leaving.iter().for_each(|left| left.signal.release(outcome));
        leaving
    }
}
