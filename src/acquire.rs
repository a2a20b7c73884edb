//! From a request to a guard: the one way in, for `lock`, `try_lock` and `run` alike.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use scopeguard::ScopeGuard;
use tokio::runtime;
use tokio::time::{Instant, sleep_until};

use crate::answer::Verdict;
use crate::deadline::{Lease, Moment, after, limit};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::{Failure, Outcome};
use crate::fate::Fate;
use crate::fence::Token;
use crate::guard::{Granted, Guard};
use crate::names;
use crate::nodes::Spread;
use crate::owner::Owner;
use crate::queue::Request;
use crate::room::Room;
use crate::script::Reply;
use crate::step::Job;
use crate::telemetry;
use crate::turn::{Ask, Entry, Nap, Turn};
use crate::wish::Wish;

/// Asks until the lock is granted. `None`: somebody else had it until the time was over.
pub(crate) async fn acquire(wish: Wish) -> Result<Option<Guard>> {
    let name = wish.names.name.clone();
    // Pinned where it stands: each move of it is a copy of kilobytes.
    let asking = pin!(async move {
        let mut attempts = scopeguard::guard(Attempts::begin(wish)?, |attempts| attempts.leave_line());
        let granted = attempts.until_granted().await?;
        // With its grant it left its line.
        Ok::<_, Error>(granted.inspect(|_| drop(ScopeGuard::into_inner(attempts))))
    });
    telemetry::acquiring(&name, asking).await.map_err(|error| error.on(&name))
}

/// A request in its line, from its first poll until it is ready or dropped.
struct Attempts {
    wish: Wish,
    id: u64,
    lease: Lease,
    began: Instant,
    /// When the caller's patience ends.
    limit: Option<Instant>,
    /// It makes one attempt, and does not wait for others.
    once: bool,
    tries: u32,
    /// The last attempt had no answer.
    failed: Option<Error>,
    /// Since when all attempts have failed.
    failing: Option<Instant>,
}

/// What became of one attempt.
enum Attempt {
    Granted(Guard),
    Again,
}

impl Attempts {
    fn begin(wish: Wish) -> Result<Attempts> {
        let session = &wish.handle;
        names::check(&wish.names.name, &session.config.prefix)?;
        let lease = match wish.fixed_lease {
            Some(asked) => session.config.lease("fixed_lease", asked)?,
            None => session.config.lease,
        };
        session.check_open()?;
        if runtime::Handle::try_current().is_err() {
            let told = "a lock can be awaited inside a tokio runtime only; use `block_on` of a runtime";
            return Err(Error::new(ErrorKind::Config, told));
        }
        let (began, ambient) = (Instant::now(), Owner::current());
        let owner = wish.owner.clone().unwrap_or_else(|| ambient.clone());
        let bare = wish.bare;
        let id = session.visit(&wish.names, |room, number, at| {
            let id = number();
            room.enter(Request::new(id, owner, ambient, bare, at.now)).map(|()| id)
        });
        let id = id.map_err(|_| Error::new(ErrorKind::Ambiguous, AMBIGUOUS))?;
        let once = wish.within == Some(Duration::ZERO);
        let limit = wish.within.and_then(|within| limit(began, within));
        Ok(Attempts { wish, id, lease, began, limit, once, tries: 0, failed: None, failing: None })
    }

    async fn until_granted(&mut self) -> Result<Option<Guard>> {
        loop {
            let Some(job) = self.turn().await? else {
                // Whoever waited behind others did not see for itself that the masters are away.
                let away = self.failed.take().or_else(|| self.wish.handle.away());
                return away.map_or_else(|| self.refusal(), Err);
            };
            match self.attempt(job).await? {
                Attempt::Granted(guard) => return Ok(Some(guard)),
                Attempt::Again if self.once && self.failed.is_none() => return self.refusal(),
                Attempt::Again => {}
            }
        }
    }

    fn refusal(&self) -> Result<Option<Guard>> {
        self.wish.refusal().map_or(Ok(None), Err)
    }

    /// Waits for this request's turn. `None`: its time is over.
    async fn turn(&self) -> Result<Option<Job>> {
        let began = Instant::now();
        let mut nap = pin!(sleep_until(began));
        poll_fn(|cx| {
            loop {
                let until = match self.look(cx.waker(), began)? {
                    Look::Go(job) => return Poll::Ready(Ok(job)),
                    Look::Wait(until) => until,
                };
                let Some(until) = until else { return Poll::Pending };
                nap.as_mut().reset(until);
                if Future::poll(nap.as_mut(), cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Whether it is this request's turn, and if not, when to look again at the latest.
    fn look(&self, waker: &Waker, began: Instant) -> Result<Look> {
        let session = &self.wish.handle;
        session.check_open()?;
        // Else all who wait would find out one after the other, each by an attempt of its own.
        session.is_away(self.began).map_or(Ok(()), Err)?;
        let (uuid, fence) = (&*session.uuid, self.wish.fence());
        let ask = Ask { once: self.once, lease: self.lease, terms: session.terms, uuid, fence };
        let (turn, at, _spent) = self.visit(|room, number, at| {
            let spent = room.queue.get_mut(self.id).and_then(|request| request.polled(waker, at.now));
            let turn = room.turn(self.id, number(), ask, at.now);
            if self.once && matches!(turn, Turn::Wait { refused: false, .. }) {
                // It need not be the head, which alone is woken when the command that it waits for is answered.
                room.idlers.push(waker.clone());
            }
            (turn, at, spent)
        });
        let now = Instant::now();
        let over = self.once || self.limit.is_some_and(|limit| limit <= now);
        match turn {
            Turn::Ask(job) => Ok(Look::Go(Some(job))),
            Turn::Lost(loss) => Err(Error::lost(loss)),
            Turn::Unfenced => Err(Error::new(ErrorKind::Config, UNFENCED)),
            Turn::Wait { refused: true, .. } if over => Ok(Look::Go(None)),
            Turn::Wait { refused: true, until } => {
                let until = until.map(|until| at.local(until));
                Ok(Look::Wait(until.into_iter().chain(self.limit).min()))
            }
            Turn::Wait { refused: false, until } => {
                let patience = session.terms.patience;
                // Also where the server answers: a full one may put the command before this one off for ever.
                let patience = if over { patience } else { patience.max(session.config.unavailable_after) };
                let stuck = after(began, patience) <= now;
                if let Some(error) = session.away_too_long(self.began).or_else(|| stuck.then(unanswered)) {
                    return Err(error);
                }
                let until = until.map(|until| at.local(until)).filter(|until| *until > now);
                let again = after(now, session.config.node_timeout);
                Ok(Look::Wait(until.into_iter().chain([again]).min()))
            }
        }
    }

    /// Sends one acquire. Its undoing is armed before it is sent: a dropped future may leave it running.
    async fn attempt(&mut self, job: Job) -> Result<Attempt> {
        let session = self.wish.handle.clone();
        let names = self.wish.names.clone();
        let undo = scopeguard::guard(job, |job| {
            session.visit(&names, |room, _, at| room.unknown(&job, at.now));
        });
        // Dropped at the end, behind what is told to the room.
        let (verdict, _latecomers) = self.polled(pin!(session.ask(&names, &undo))).await;
        let job = ScopeGuard::into_inner(undo);
        match verdict.result {
            Ok(Reply::Busy(left)) => {
                (self.failed, self.failing) = (None, None);
                self.busy(&job, left, verdict.spread, verdict.split);
                Ok(Attempt::Again)
            }
            Ok(reply) => self.answered(&job, &reply, (verdict.spread, verdict.token)),
            Err(failure) => self.failed(&job, failure, verdict.spread),
        }
    }

    /// Tells the line that this request comes when it is woken, though its answer does not: what is late is the server,
    /// and the next in line would not fare better.
    async fn polled<T>(&self, mut asking: Pin<&mut impl Future<Output = T>>) -> T {
        let mut first = true;
        poll_fn(|cx| {
            let answer = asking.as_mut().poll(cx);
            if answer.is_pending() && !std::mem::take(&mut first) {
                // Dropped once nothing is locked: with a waker the last of a task may go.
                drop(self.visit(|room, _, at| room.queue.get_mut(self.id)?.polled(cx.waker(), at.now)));
            }
            answer
        })
        .await
    }

    fn answered(
        &mut self,
        job: &Job,
        reply: &Reply,
        (spread, token): (Spread, Option<Token>),
    ) -> Result<Attempt> {
        (self.failed, self.failing) = (None, None);
        if let Some(foreign) = self.wish.foreign(reply) {
            self.visit(|room, _, at| room.declined(job, spread, at.now));
            return Err(foreign);
        }
        match reply {
            Reply::Gone => match self.visit(|room, _, at| room.answered(job, reply, spread, at)) {
                Verdict::Lost(loss) => Err(Error::lost(loss)),
                _ => Ok(Attempt::Again),
            },
            _ => {
                // Closed while it was under way: nobody is to renew it, so it is undone.
                let open = self.wish.handle.check_open();
                open.inspect_err(|_| self.visit(|room, _, at| room.unknown(job, at.now)))?;
                Ok(self.granted(job, spread, token).map_or(Attempt::Again, Attempt::Granted))
            }
        }
    }

    fn granted(&mut self, job: &Job, spread: Spread, token: Option<Token>) -> Option<Guard> {
        let fate = Arc::new(Fate::default());
        let (fixed, max_hold) = (self.wish.fixed_lease.is_some(), self.wish.max_hold);
        let granted = self.visit(|room, number, at| {
            let (level, token) = (number(), token.map(|token| token.highest));
            let entry = Entry { level, lease: self.lease, fixed, max_hold, fate: fate.clone(), token };
            Some((level, room.granted(self.id, job, &entry, spread, at)?))
        });
        let (level, (depth, token, _spent)) = granted?;
        if self.tries > 0 {
            telemetry::acquired_after_waiting(&self.wish.names.name, &job.field, self.began.elapsed());
        }
        let granted = Granted { hold: job.hold, level, depth, token, field: job.field.clone(), fate };
        Some(Guard::new(self.wish.handle.clone(), self.wish.names.clone(), granted))
    }

    /// Somebody else holds it. Where releases are heard, their message wakes the request; else it asks now and then.
    fn busy(&mut self, job: &Job, left: Duration, spread: Spread, split: bool) {
        if self.once {
            return self.visit(|room, _, at| room.declined(job, spread, at.now));
        }
        let session = &self.wish.handle;
        let (lease_end, pause) = (left + Duration::from_millis(1), session.pause(self.tries));
        let heard = lease_end.min(session.config.poll_interval);
        let unheard = heard.min(pause);
        self.visit(|room, _, at| {
            let until = |nap| after(at.now, nap);
            let nap = match (split, room.is_heard()) {
                (true, _) => Nap::Deaf(until(pause)),
                (false, true) => Nap::Heard { until: until(heard), soon: until(unheard) },
                (false, false) => Nap::Heard { until: until(unheard), soon: until(unheard) },
            };
            room.refused(self.id, job, spread, nap, at.now);
        });
        self.tries = self.tries.saturating_add(1);
    }

    fn failed(&mut self, job: &Job, failure: Failure, spread: Spread) -> Result<Attempt> {
        let Failure { outcome, error } = failure;
        let session = self.wish.handle.clone();
        self.visit(|room, _, at| {
            match outcome {
                // Masters that have not answered yet may grant it all the same.
                Outcome::NotRun => room.declined(job, spread, at.now),
                Outcome::Unknown => room.unknown(job, at.now),
            }
            room.lacks(job, spread, at.now);
        });
        let now = Instant::now();
        // The session's outage alone does not tell: 1. a full server refuses the acquire, 2. it answers the release that
        // undoes it, or another hold's renewal, 3. that ends the outage, and so for ever.
        let failing = after(*self.failing.get_or_insert(now), session.config.unavailable_after);
        let over = self.once || self.limit.is_some_and(|limit| limit <= now) || failing <= now;
        if error.kind() != ErrorKind::Unavailable || over || session.away_too_long(self.began).is_some() {
            return Err(error);
        }
        let pause = session.pause(self.tries);
        let undone = !spread.remains.and(spread.unheard).is_empty();
        self.visit(|room, _, at| match undone {
            // The end of what it left is told by the master where it stands: it would ask again at once, and so on.
            true => room.pauses(self.id, after(at.now, pause)),
            false => room.sleeps(self.id, after(at.now, pause)),
        });
        telemetry::attempt_failed(&self.wish.names.name, &error);
        self.tries = self.tries.saturating_add(1);
        self.failed = Some(error);
        Ok(Attempt::Again)
    }

    fn visit<R>(&self, visit: impl FnOnce(&mut Room, &mut dyn FnMut() -> u64, Moment) -> R) -> R {
        self.wish.handle.visit(&self.wish.names, visit)
    }

    fn leave_line(&self) {
        drop(self.visit(|room, _, at| room.leave_line(self.id, at.now)));
    }
}

enum Look {
    Go(Option<Job>),
    Wait(Option<Instant>),
}

fn unanswered() -> Error {
    let told = "an earlier command of this process for the same lock is not done yet: the server does not answer it, or puts it \
                off; check the server, and try again";
    Error::new(ErrorKind::Unavailable, told)
}

const AMBIGUOUS: &str = "it can't be told whether this request is nested in a hold of its owner or stands beside it in \
    another branch of the same task; take the lock by `run`, or put each branch into a `scope`";

const UNFENCED: &str = "the hold that this would re-enter has no fencing token: take the outermost hold by a `fenced` handle too";
