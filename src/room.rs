//! One lock name in this process: its holds, its waiters, and whose turn it is. All decisions, no I/O, no clock.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Moment;
use crate::deadline::{Lease, limit};
use crate::error::Loss;
use crate::fate::Fate;
use crate::hold::{Hold, Level, Step, Terms};
use crate::names::Names;
use crate::owner::{Owner, Place};
use crate::queue::{Ambiguous, Phase, Queue, Request};

/// A command to be sent, and how to name it when its answer comes.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) hold: u64,
    pub(crate) no: u64,
    pub(crate) field: Arc<str>,
    pub(crate) step: Step,
    pub(crate) sent: Instant,
}

/// What a request has to do now.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Send this acquire.
    Ask(Job),
    /// Wait until woken, at most until then.
    Wait {
        until: Option<Instant>,
        /// Others are before it: a request that does not wait is refused. Else it is behind a command of this process,
        /// which is soon over.
        refused: bool,
    },
    /// The hold that it would enter is lost.
    Lost(Loss),
}

/// What is to be done once no lock is held any more.
#[derive(Debug, Default)]
pub(crate) struct Out {
    pub(crate) wake: Vec<Waker>,
    pub(crate) tell: Vec<Arc<Fate>>,
    pub(crate) news: Vec<News>,
}

/// What the log is told.
#[derive(Debug)]
pub(crate) enum News {
    Lost { field: Arc<str>, loss: Loss },
    OutOfOrder { field: Arc<str> },
    SelfWait { asks: Owner, holds: Owner },
    Settled { field: Arc<str> },
    RenewedLate { field: Arc<str>, failures: u32 },
}

/// Whether this process hears of the lock's releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hearing {
    Off,
    Asked,
    On,
}

/// Changes only while the registry is locked.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) names: Arc<Names>,
    pub(crate) place: Place,
    pub(crate) holds: Vec<Hold>,
    pub(crate) queue: Queue,
    pub(crate) hearing: Hearing,
    /// Releases of our own whose message has not come back yet: it tells nothing new.
    pub(crate) echoes: u32,
    pub(crate) out: Out,
    /// Who waits until no command of the hold is under way.
    pub(crate) idlers: Vec<Waker>,
    /// When the registry looks at it next.
    pub(crate) scheduled: Option<Instant>,
}

/// What a grant is for.
pub(crate) struct Entry {
    pub(crate) level: u64,
    pub(crate) lease: Lease,
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) fate: Arc<Fate>,
}

impl Room {
    pub(crate) fn new(names: Arc<Names>, place: Place) -> Room {
        let (holds, queue) = (Vec::new(), Queue::default());
        Room {
            names,
            place,
            holds,
            queue,
            hearing: Hearing::Off,
            echoes: 0,
            out: Out::default(),
            idlers: Vec::new(),
            scheduled: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.queue.is_empty()
    }

    pub(crate) fn hold(&mut self, id: u64) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.id == id)
    }

    /// The hold that lives, if any: at most one of all that are known here.
    pub(crate) fn live(&self) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.lives())
    }

    fn live_mut(&mut self) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.lives())
    }

    /// A request's first poll.
    pub(crate) fn enter(&mut self, mut request: Request) -> Result<(), Ambiguous> {
        request.owner = request.owner.settle_at(&self.place);
        let owner = request.owner.clone();
        let holds = self.holds_itself(&owner);
        self.queue.enter(request, holds).inspect_err(|_| owner.forget(&self.place))
    }

    fn holds_itself(&self, owner: &Owner) -> bool {
        self.live().is_some_and(|hold| hold.levels.iter().any(|level| level.owner == *owner))
    }

    /// A request is ready, refused or dropped. In its drop, at once: a request that lingered would prove branches that
    /// do not exist.
    pub(crate) fn leave_line(&mut self, id: u64, now: Instant) {
        if let Some(request) = self.queue.leave(id) {
            request.owner.forget(&self.place);
        }
        self.forget_proofs();
        self.rouse(now);
    }

    pub(crate) fn forget_proofs(&mut self) {
        let live = self.holds.iter().find(|hold| hold.lives());
        let holds = |owner: &Owner| live.is_some_and(|hold| hold.levels.iter().any(|l| l.owner == *owner));
        self.queue.forget_proofs(holds);
    }

    /// What this request has to do, asked in its poll. `once`: it does not wait for others.
    pub(crate) fn turn(&mut self, id: u64, no: u64, ask: Ask, now: Instant) -> Turn {
        let Some(request) = self.queue.get(id) else { return Turn::Wait { until: None, refused: true } };
        if let Some(loss) = self.lost_above(request) {
            return Turn::Lost(loss);
        }
        let turn = match self.live().filter(|hold| enters(request, hold)) {
            Some(_) => self.inner_turn(id, no, ask, now),
            None => self.outer_turn(id, no, ask, now),
        };
        if !ask.once && matches!(turn, Turn::Wait { refused: true, .. }) {
            self.warn_of_self_wait(id);
        }
        turn
    }

    /// Waiting for an owner in whose scope the request itself runs can hardly end.
    fn warn_of_self_wait(&mut self, id: u64) {
        let Some(hold) = self.holds.iter().find(|hold| hold.lives()) else { return };
        let Some(request) = self.queue.get_mut(id).filter(|request| !request.warned) else { return };
        let above = hold.levels.iter().find(|level| request.ambient.is_within(&level.owner));
        if let Some(level) = above.filter(|level| !request.owner.is_within(&level.owner)) {
            request.warned = true;
            let news = News::SelfWait { asks: request.owner.clone(), holds: level.owner.clone() };
            self.out.news.push(news);
        }
    }

    /// The loss of a hold that the request's owner, or an ancestor, still has a guard of.
    fn lost_above(&self, request: &Request) -> Option<Loss> {
        let entered = self.holds.iter().filter(|hold| !hold.levels.is_empty() && enters(request, hold));
        entered
            .filter(|hold| hold.levels_of(&request.owner).next().is_none())
            .find_map(|hold| hold.loss.or_else(|| hold.levels.iter().find_map(|level| level.fate.loss())))
    }

    /// The turn of a request whose owner, or an ancestor, holds the lock.
    fn inner_turn(&mut self, id: u64, no: u64, ask: Ask, now: Instant) -> Turn {
        // After a failed attempt it pauses like any other.
        let paused = self.queue.get(id).and_then(|request| request.sleeps_until(now));
        if let (Some(until), false) = (paused, ask.once) {
            return Turn::Wait { until: Some(until), refused: true };
        }
        let admitted = self.inner_front().is_some_and(|front| front.id == id);
        let Some(hold) = self.live_mut().filter(|_| admitted) else {
            return Turn::Wait { until: None, refused: true };
        };
        if hold.command.is_some() || hold.step().is_some() {
            return Turn::Wait { until: hold.overdue(), refused: false };
        }
        let step = Step::Acquire { count: hold.count() + 1, lease: ask.lease };
        hold.begin(step, no, now);
        let job = Job { hold: hold.id, no, field: hold.field.clone(), step, sent: now };
        self.set_phase(id, Phase::Asking);
        Turn::Ask(job)
    }

    /// The turn of a stranger to whoever holds the lock.
    fn outer_turn(&mut self, id: u64, no: u64, ask: Ask, now: Instant) -> Turn {
        // What this process releases goes first, or a request would meet its own past. Once: a release that the
        // server does not answer must not keep a request from asking itself.
        if self.holds.iter().any(|hold| hold.ends() && hold.failures == 0) {
            return Turn::Wait { until: self.holds.iter().filter_map(Hold::overdue).min(), refused: false };
        }
        let (busy, front) = (self.live().is_some(), self.outer_front().map(|front| front.id));
        let Some(request) = self.queue.get(id) else { return Turn::Wait { until: None, refused: true } };
        if front != Some(id) {
            let head = front.and_then(|front| self.queue.get(front));
            let moves = head.is_some_and(|head| head.phase == Phase::Asking || head.is_woken());
            if !ask.once || moves {
                return Turn::Wait { until: None, refused: true };
            }
        } else if !ask.once {
            // Behind a hold of this process there is nothing to ask: its end wakes the head, and where its key is
            // deleted unnoticed, the hold's own renewal finds out.
            let until = request.sleeps_until(now);
            if until.is_some() || (busy && request.phase == Phase::Waiting) {
                return Turn::Wait { until, refused: true };
            }
        }
        let field: Arc<str> = format!("{}:{no}", ask.uuid).into();
        self.holds.push(Hold::asked(no, field.clone(), ask.terms, ask.lease, no, now));
        self.set_phase(id, Phase::Asking);
        Turn::Ask(Job { hold: no, no, field, step: Step::Acquire { count: 1, lease: ask.lease }, sent: now })
    }

    fn set_phase(&mut self, id: u64, phase: Phase) {
        if let Some(request) = self.queue.get_mut(id) {
            request.phase = phase;
            request.again = false;
        }
    }

    /// The first in the name's line of strangers.
    pub(crate) fn outer_front(&self) -> Option<&Request> {
        let live = self.live();
        self.queue.front(|request| !live.is_some_and(|hold| enters(request, hold)))
    }

    /// The first in the line of the holding tree that may enter now. One that may not is passed by: it may wait for
    /// a sibling which itself asks again.
    pub(crate) fn inner_front(&self) -> Option<&Request> {
        let live = self.live()?;
        self.queue.front(|request| enters(request, live) && admits(request, live))
    }

    /// The acquire was granted. `None`: it had been given up, or its end is over already; it is undone.
    pub(crate) fn granted(&mut self, id: u64, job: &Job, entry: &Entry, at: Moment) -> Option<u32> {
        let hold = self.holds.iter_mut().find(|hold| hold.id == job.hold)?;
        if !hold.finish(job.no, at.now) {
            return None;
        }
        let ends = entry.lease.valid_until(job.sent, hold.terms.drift);
        let over = if hold.levels.is_empty() { ends } else { hold.end() };
        if at.now >= over || hold.loss.is_some() {
            // What the server has is more than what is held here: it has to be brought back.
            hold.unsettled = true;
            self.set_phase(id, Phase::Waiting);
            return None;
        }
        let request = self.queue.leave(id)?;
        hold.confirmed(entry.lease, job.sent, at.slept);
        hold.enter(Level {
            id: entry.level,
            owner: request.owner,
            branch: request.branch,
            watched: !entry.fixed,
            until: entry.fixed.then_some(ends),
            max_hold: entry.max_hold.and_then(|longest| limit(job.sent, longest)),
            fate: entry.fate.clone(),
        });
        let depth = hold.count();
        self.lose_others(job.hold, at.now);
        self.rouse(at.now);
        Some(depth)
    }

    /// A fresh grant shows that no other field is in the key: a hold that was believed alive is gone.
    fn lose_others(&mut self, id: u64, now: Instant) {
        let others = self.holds.iter().filter(|hold| hold.id != id && hold.lives()).map(|hold| hold.id);
        for other in others.collect::<Vec<_>>() {
            self.lose(other, Loss::Gone, now);
        }
    }

    /// The acquire was answered "busy": the request sleeps until then, unless something happened meanwhile.
    pub(crate) fn refused(&mut self, id: u64, job: &Job, until: Instant, now: Instant) {
        self.unsent(job, now);
        if let Some(request) = self.queue.get_mut(id) {
            let again = std::mem::take(&mut request.again);
            request.phase = if again { Phase::Waiting } else { Phase::Asleep { until } };
        }
    }

    /// The command certainly changed nothing on the server.
    pub(crate) fn unsent(&mut self, job: &Job, now: Instant) {
        let Some(hold) = self.hold(job.hold) else { return };
        let fresh = hold.is_asked();
        if hold.finish(job.no, now) && fresh {
            self.holds.retain(|hold| hold.id != job.hold);
        }
        self.rouse(now);
    }

    /// A command in the background certainly did not run: it is sent again after a while.
    pub(crate) fn postponed(&mut self, job: &Job, now: Instant) {
        if let Some(hold) = self.hold(job.hold).filter(|hold| hold.under_way(job.no)) {
            hold.finish(job.no, now);
            hold.failed(now);
        }
        self.rouse(now);
    }

    /// A command in the background may have run: it is settled after a while.
    pub(crate) fn unanswered(&mut self, job: &Job, now: Instant) {
        if let Some(hold) = self.hold(job.hold) {
            hold.unknown(job.no, now);
        }
        self.rouse(now);
    }

    pub(crate) fn is_heard(&self) -> bool {
        self.hearing == Hearing::On
    }

    /// Nobody knows whether the command ran, or will. Settled in the background, from now on.
    pub(crate) fn unknown(&mut self, job: &Job, now: Instant) {
        if let Some(hold) = self.hold(job.hold).filter(|hold| hold.under_way(job.no)) {
            hold.unknown(job.no, now);
            hold.retry_at = now;
            // Not tried yet: what asks next goes behind it.
            hold.failures = 0;
        }
        self.rouse(now);
    }
}

/// What a turn needs to know of the request's options and its registry.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) once: bool,
    pub(crate) lease: Lease,
    pub(crate) terms: Terms,
    pub(crate) uuid: &'a str,
}

/// Whether the request belongs to the tree that holds.
pub(crate) fn enters(request: &Request, hold: &Hold) -> bool {
    match request.branch {
        false => hold.is_entered_by(&request.owner),
        true => hold.levels.iter().any(|level| is_above(request, level)),
    }
}

/// The rule: everyone who holds is the requester or one of its ancestors. A branch's fellow branches are neither.
fn admits(request: &Request, hold: &Hold) -> bool {
    match request.branch {
        false => hold.admits(&request.owner),
        true => hold.levels.iter().all(|level| is_above(request, level)),
    }
}

fn is_above(request: &Request, level: &Level) -> bool {
    request.owner.is_within(&level.owner) && !(level.branch && level.owner == request.owner)
}
