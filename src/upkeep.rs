//! What happens to a lock's holds after their grant: releases, renewals, ends and losses. All decisions, no I/O.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Moment;
use crate::deadline::Lease;
use crate::error::Loss;
use crate::hold::{Hold, Step};
use crate::owner::Owner;
use crate::queue::Phase;
use crate::room::{Hearing, Job, News, Room, enters};
use crate::script::Reply;

/// What a guard's release has to do.
#[derive(Debug)]
pub(crate) enum Leave {
    /// Send this, and tell what came of it.
    Send(Job),
    /// Another command of the hold is under way: the background sends the release behind it, and tells the fate.
    Wait,
    /// The hold was lost before.
    Lost(Loss),
    /// It had been released.
    Released,
}

/// What an answer means to whoever sent the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done,
    Lost(Loss),
    /// The command had been given up before its answer came.
    Void,
}

impl Room {
    /// A guard goes: its level counts no more, from now on. `no`: release it by this command, if none is under way;
    /// else in the background.
    pub(crate) fn leave(&mut self, hold: u64, level: u64, no: Option<u64>, at: Moment) -> Leave {
        let place = self.place.clone();
        self.end_late(hold, at);
        let Some(hold) = self.hold(hold) else { return Leave::Released };
        let Some(left) = hold.leave(level) else { return Leave::Released };
        left.level.owner.forget(&place);
        hold.retry_at = at.now;
        hold.failures = 0;
        let field = hold.field.clone();
        let leave = match (left.level.fate.loss(), no) {
            (Some(loss), _) => Leave::Lost(loss),
            (None, Some(no)) if hold.command.is_none() && !hold.unsettled => hold.send_release(no, at.now),
            (None, _) => {
                hold.leaving.push(left.level.fate);
                Leave::Wait
            }
        };
        if matches!(&leave, Leave::Send(job) if job.step == Step::Release { count: 0 }) {
            self.expect_echoes(1);
        }
        if !left.in_order {
            self.out.news.push(News::OutOfOrder { field });
        }
        self.sweep(at.now);
        leave
    }

    /// A command in the background, or a release, was answered.
    pub(crate) fn answered(&mut self, job: &Job, reply: &Reply, at: Moment) -> Verdict {
        let Some(hold) = self.hold(job.hold) else { return Verdict::Void };
        let tried = hold.release_tried;
        if !hold.finish(job.no, at.now) {
            return Verdict::Void;
        }
        let verdict = match reply {
            Reply::Gone => self.gone(job, tried, at),
            Reply::Deferred(_) => {
                hold.unsettled = true;
                hold.failed(at.now);
                self.tell_leaving(job.hold, Ok(()));
                Verdict::Done
            }
            _ => {
                self.done(job, at);
                Verdict::Done
            }
        };
        self.sweep(at.now);
        if job.step == (Step::Release { count: 0 }) {
            self.freed(at.now);
        }
        verdict
    }

    fn done(&mut self, job: &Job, at: Moment) {
        let Some(hold) = self.hold(job.hold) else { return };
        let late = hold.failures;
        match job.step {
            Step::Renew { lease } => hold.confirmed(lease, job.sent, at.slept),
            Step::Settle { count, lease } => {
                hold.unsettled = false;
                hold.stands = count;
                hold.confirmed(lease, job.sent, at.slept);
            }
            Step::Release { count } => {
                hold.stands = count;
                hold.gone |= count == 0;
                hold.failures = 0;
            }
            Step::Acquire { .. } => {}
        }
        let (field, settled) = (hold.field.clone(), matches!(job.step, Step::Settle { .. }));
        if hold.stands <= hold.count() {
            self.tell_leaving(job.hold, Ok(()));
        }
        if settled {
            self.out.news.push(News::Settled { field });
        } else if late > 0 && matches!(job.step, Step::Renew { .. }) {
            self.out.news.push(News::RenewedLate { field, failures: late });
        }
    }

    /// The server says that the field is not there.
    fn gone(&mut self, job: &Job, tried: bool, at: Moment) -> Verdict {
        let Some(hold) = self.hold(job.hold) else { return Verdict::Void };
        hold.gone = true;
        hold.unsettled = false;
        self.echoes = self.echoes.saturating_sub(u32::from(job.step == Step::Release { count: 0 }));
        let Some(hold) = self.hold(job.hold) else { return Verdict::Void };
        // The first of two releases may have run: then this is what the second one is told.
        let repeated = job.step == Step::Release { count: 0 } && tried && at.now < hold.sure_until;
        if repeated {
            self.tell_leaving(job.hold, Ok(()));
            return Verdict::Done;
        }
        self.tell_leaving(job.hold, Err(Loss::Gone));
        self.lose(job.hold, Loss::Gone, at.now);
        Verdict::Lost(Loss::Gone)
    }

    fn tell_leaving(&mut self, id: u64, outcome: Result<(), Loss>) {
        let Some(hold) = self.hold(id) else { return };
        let leaving = std::mem::take(&mut hold.leaving);
        for fate in &leaving {
            fate.release(outcome);
        }
        self.out.tell.extend(leaving);
    }

    /// Declares a hold lost. Requests that would have entered it end with it.
    pub(crate) fn lose(&mut self, id: u64, loss: Loss, now: Instant) {
        let Some(at) = self.holds.iter().position(|hold| hold.id == id) else { return };
        if !self.holds[at].levels.is_empty() {
            let waiting = self.queue.iter_mut().filter(|request| enters(request, &self.holds[at]));
            self.out.wake.extend(waiting.filter_map(|request| request.wake(now)));
            let field = self.holds[at].field.clone();
            self.out.news.push(News::Lost { field, loss });
        }
        let fates = self.holds[at].lose(loss);
        self.out.tell.extend(fates);
        self.freed(now);
    }

    /// A hold of this process is over: the head asks at once, it need not wait for the server's message.
    pub(crate) fn freed(&mut self, now: Instant) {
        if let Some(front) = self.outer_front().map(|front| front.id)
            && let Some(request) = self.queue.get_mut(front)
        {
            match request.phase {
                Phase::Asleep { .. } => request.phase = Phase::Waiting,
                _ => request.again = true,
            }
        }
        self.rouse(now);
    }

    /// Removes what is over, and lets the next one go.
    fn sweep(&mut self, now: Instant) {
        let before = self.holds.len();
        self.holds.retain(|hold| !hold.is_over());
        self.forget_proofs();
        if self.holds.len() < before { self.freed(now) } else { self.rouse(now) }
    }

    /// Wakes whoever can go on now.
    pub(crate) fn rouse(&mut self, now: Instant) {
        self.out.wake.append(&mut self.idlers);
        if self.queue.is_empty() {
            return;
        }
        let next = match self.live() {
            Some(live) if live.command.is_none() && live.step().is_none() => self.inner_front(),
            Some(_) => None,
            None if self.holds.iter().any(|hold| hold.ends() && hold.failures == 0) => None,
            None => self.outer_front(),
        };
        let next = next.filter(|request| request.phase == Phase::Waiting).map(|request| request.id);
        let woken = next.and_then(|id| self.queue.get_mut(id)).and_then(|request| request.wake(now));
        self.out.wake.extend(woken);
    }

    /// Wakes every request: what they wait for will not come.
    pub(crate) fn wake_all(&mut self, now: Instant) {
        let woken = self.queue.iter_mut().filter_map(|request| request.wake(now));
        self.out.wake.extend(woken);
    }

    /// A message came on the lock's channel: somebody released it, or forced it open.
    pub(crate) fn message(&mut self, now: Instant) {
        if self.hearing != Hearing::On {
            return;
        }
        self.freed(now);
        if self.echoes > 0 {
            self.echoes -= 1;
            return;
        }
        self.ask_all(now);
    }

    /// Asks the server for all holds at once: something may have happened to them.
    pub(crate) fn ask_all(&mut self, now: Instant) {
        for hold in self.holds.iter_mut().filter(|hold| hold.lives()) {
            hold.unsettled = true;
            hold.retry_at = now;
        }
        for hold in self.holds.iter_mut().filter(|hold| hold.ends()) {
            hold.retry_at = now;
        }
    }

    /// This owner's last scope has ended: what it has is its nearest living ancestor's.
    pub(crate) fn owner_ended(&mut self, owner: &Owner, now: Instant) {
        let levels = self.holds.iter_mut().flat_map(|hold| &mut hold.levels).map(|level| &mut level.owner);
        let requests = self.queue.iter_mut().map(|request| &mut request.owner);
        for theirs in levels.chain(requests).filter(|theirs| *theirs == owner) {
            *theirs = owner.settle_at(&self.place);
        }
        self.forget_proofs();
        self.rouse(now);
    }

    /// The server confirmed a longer lease for one level's sake.
    pub(crate) fn extended(&mut self, job: &Job, level: u64, lease: Lease) {
        let Some(hold) = self.hold(job.hold) else { return };
        let until = lease.valid_until(job.sent, hold.terms.drift);
        if let Some(level) = hold.levels.iter_mut().find(|one| one.id == level) {
            level.until = level.until.max(Some(until));
        }
    }

    /// Does what is due, and says what has to be sent. `numbers`: a fresh one for each command.
    pub(crate) fn check(&mut self, at: Moment, renews: bool, numbers: &mut dyn FnMut() -> u64) -> Vec<Job> {
        self.end_overdue(at);
        let mut jobs = Vec::new();
        for hold in &mut self.holds {
            jobs.extend(hold.due_job(at.now, renews, numbers));
        }
        let echoes = jobs.iter().filter(|job| job.step == Step::Release { count: 0 }).count();
        self.expect_echoes(echoes as u32);
        self.check_heads(at.now);
        self.sweep(at.now);
        jobs
    }

    /// A release is being sent: its message will come back to this process, and says nothing new.
    pub(crate) fn expect_echoes(&mut self, releases: u32) {
        if self.hearing == Hearing::On {
            self.echoes += releases;
        }
    }

    fn end_overdue(&mut self, at: Moment) {
        let waits = !self.queue.is_empty();
        let mut late = Vec::new();
        for hold in &mut self.holds {
            if let Some(command) =
                hold.command.filter(|_| hold.gives_up_at(waits).is_some_and(|t| t <= at.now))
            {
                hold.unknown(command.no, at.now);
                hold.retry_at = at.now;
            }
            late.extend((hold.lives() && at.now >= hold.end()).then_some(hold.id));
            let over = hold.levels.iter().filter(|level| level.max_hold.is_some_and(|end| end <= at.now));
            for level in over.filter(|level| level.fate.seal(Loss::MaxHold)) {
                self.out.tell.push(level.fate.clone());
                self.out.news.push(News::Lost { field: hold.field.clone(), loss: Loss::MaxHold });
            }
            if hold.levels.is_empty() && hold.command.is_none() && at.now >= hold.stands_until {
                // The server has dropped it by now, confirmed or not.
                hold.gone = true;
            }
        }
        for id in late {
            self.end_late(id, at);
        }
    }

    /// Declares a hold lost that is past its end. Where that came before the key's, this client ends the key.
    pub(crate) fn end_late(&mut self, id: u64, at: Moment) {
        let Some(hold) = self.hold(id).filter(|hold| hold.lives() && at.now >= hold.end()) else { return };
        hold.end_now = hold.end() < hold.sure_until;
        hold.retry_at = at.now;
        hold.failures = 0;
        let loss = hold.why_late(at);
        self.lose(id, loss, at.now);
    }

    fn check_heads(&mut self, now: Instant) {
        let heads = [self.outer_front(), self.inner_front()].map(|head| head.map(|head| head.id));
        for head in heads.into_iter().flatten() {
            let woken = self.queue.check(head, now);
            self.out.wake.extend(woken);
        }
    }

    /// When [`check`](Room::check) has something to do.
    pub(crate) fn due(&self, renews: bool) -> Option<Instant> {
        let waits = !self.queue.is_empty();
        let holds = self.holds.iter().filter_map(|hold| hold.due(renews, waits));
        let heads = [self.outer_front(), self.inner_front()].into_iter().flatten();
        let heads = heads.filter_map(|head| self.queue.late_at(head.id));
        holds.chain(heads).min()
    }
}

impl Hold {
    fn send_release(&mut self, no: u64, now: Instant) -> Leave {
        let step = Step::Release { count: self.count() };
        self.begin(step, no, now);
        Leave::Send(Job { hold: self.id, no, field: self.field.clone(), step, sent: now })
    }

    /// Why the end came: by itself, or while the machine slept.
    pub(crate) fn why_late(&self, at: Moment) -> Loss {
        let slept = at.slept.saturating_sub(self.slept);
        let awake = at.now.checked_sub(slept).unwrap_or(at.now);
        if awake < self.end() { Loss::Suspended } else { Loss::Expired }
    }

    /// When its command is given up, where it keeps somebody waiting.
    fn gives_up_at(&self, waits: bool) -> Option<Instant> {
        let overdue = self.overdue()?;
        match waits || !self.leaving.is_empty() {
            true => Some(overdue),
            false => (!self.is_asked()).then(|| overdue.max(self.renew_at)),
        }
    }

    fn due_job(&mut self, now: Instant, renews: bool, numbers: &mut dyn FnMut() -> u64) -> Option<Job> {
        let due = |at: Instant| at <= now;
        let step = match self.step() {
            Some(step) => due(self.retry_at).then_some(step),
            None if renews && self.is_renewable() && due(self.renew_at) => {
                Some(Step::Renew { lease: self.terms.lease })
            }
            None => None,
        }?;
        let no = numbers();
        self.begin(step, no, now);
        Some(Job { hold: self.id, no, field: self.field.clone(), step, sent: now })
    }

    fn due(&self, renews: bool, waits: bool) -> Option<Instant> {
        let step = self.step().map(|_| self.retry_at);
        let renewal = (renews && self.is_renewable()).then_some(self.renew_at);
        let end = self.lives().then(|| self.end());
        let limits = self.levels.iter().filter(|level| level.fate.loss().is_none());
        let limit = limits.filter_map(|level| level.max_hold).min();
        [step, renewal, end, limit, self.gives_up_at(waits)].into_iter().flatten().min()
    }
}

/// How long a hold's failed command waits for its next try: often within a lease, and never a flood.
pub(crate) fn retry_pause(lease: Lease) -> Duration {
    (lease.duration() / 20).clamp(Duration::from_millis(10), Duration::from_millis(500))
}
