//! From a request to a guard: the one way in, for `lock`, `try_lock` and `run` alike.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use scopeguard::ScopeGuard;
use tokio::time::Instant;

use crate::base::{Failure, Fate, Outcome, Spread, after, telemetry};
use crate::client::attempts::Attempts;
use crate::client::guard::{Granted, Guard};
use crate::client::options::AcquireOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::table::{Meaning, NewLevel, NotHeld, Pause};
use crate::wire::{Job, Reply, Token};

/// Asks until the lock is granted. `None`: somebody else had it until the time was over.
pub(super) async fn acquire(options: AcquireOptions) -> Result<Option<Guard>> {
    let name = options.keys.name.clone();
    // Pinned where it stands: each move of it is a copy of kilobytes.
    let asking = pin!(async move {
        let mut attempts = scopeguard::guard(Attempts::begin(options)?, |attempts| attempts.leave_line());
        let granted = attempts.until_granted().await?;
        // With its grant it left its line.
        Ok::<_, Error>(granted.inspect(|_| drop(ScopeGuard::into_inner(attempts))))
    });
    telemetry::acquiring(&name, asking).await.map_err(|error| error.on(&name))
}

/// What became of one attempt.
enum Attempt {
    Granted(Guard),
    Again,
}

impl Attempts {
    async fn until_granted(&mut self) -> Result<Option<Guard>> {
        loop {
            let Some(job) = self.until_admitted().await? else {
                // Whoever waited behind others did not see for itself that the masters are away.
                let away = self.failed.take().or_else(|| self.options.handle.away());
                return away.map_or_else(|| self.refusal(), Err);
            };
            match self.attempt(job).await? {
                Attempt::Granted(guard) => return Ok(Some(guard)),
                Attempt::Again if self.failed.is_none() && self.is_over() => return self.refusal(),
                Attempt::Again => {}
            }
        }
    }

    /// Sends one acquire. Its undoing is armed before it is sent: a dropped future may leave it running.
    async fn attempt(&mut self, job: Job) -> Result<Attempt> {
        let session = self.options.handle.clone();
        let keys = self.options.keys.clone();
        let undo = scopeguard::guard(job, |job| {
            session.visit(&keys, |entry, _, at| entry.unknown(&job, at.now));
        });
        // Dropped at the end, after the entry was updated.
        let (verdict, _stragglers) = self.polled(pin!(session.ask(&keys, &undo))).await;
        let job = ScopeGuard::into_inner(undo);
        match verdict.result {
            Ok(Reply::Busy(left)) => {
                self.busy(&job, left, verdict.spread, verdict.split);
                Ok(self.again())
            }
            Ok(reply) => self.answered(&job, &reply, (verdict.spread, verdict.token)),
            Err(failure) => self.failed(&job, failure, verdict.spread),
        }
    }

    /// Tells the line that this request comes when it is woken, though its answer does not: what is late is the server,
    /// and the next in line would not fare better.
    ///
    /// An answer that is there in the first poll is looked at in the next one. 1. Two branches of a `join!` ask in one poll of
    /// their task. 2. The first one is answered by another thread before its poll ends. 3. Granted in it, it would hold before
    /// the second one asks, which would be taken for a re-entry: nothing would prove that they are branches.
    async fn polled<T>(&self, mut asking: Pin<&mut impl Future<Output = T>>) -> T {
        let (mut first, mut early) = (true, None);
        poll_fn(|cx| {
            if let Some(answer) = early.take() {
                return Poll::Ready(answer);
            }
            let answer = asking.as_mut().poll(cx);
            let first = std::mem::take(&mut first);
            if first && let Poll::Ready(answer) = answer {
                early = Some(answer);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if answer.is_pending() && !first {
                // Dropped once nothing is locked: with a waker the last of a task may go.
                drop(self.visit(|entry, _, at| entry.polled(self.id(), cx.waker(), at.now)));
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
        if let Some(foreign) = self.options.foreign(reply) {
            self.visit(|entry, _, at| entry.declined(job, spread, at.now));
            return Err(foreign);
        }
        match reply {
            Reply::Gone => {
                let verdict = self.visit(|entry, _, at| {
                    entry.asks_anew(self.id());
                    entry.answered(job, reply, spread, at)
                });
                match verdict {
                    Meaning::Lost(loss) => Err(Error::lost(loss)),
                    _ => Ok(self.again()),
                }
            }
            _ => {
                // Closed while it was under way: nobody is to renew it, so it is undone.
                let open = self.options.handle.check_open();
                open.inspect_err(|_| self.visit(|entry, _, at| entry.unknown(job, at.now)))?;
                match self.granted(job, spread, token) {
                    Ok(guard) => Ok(Attempt::Granted(guard)),
                    Err(NotHeld::Taken) => Ok(self.again()),
                    // Not as one that was answered: 1. the masters take longer than the lease. 2. Each grant is over before it is
                    // heard of, and is undone. 3. The next one is asked for at once, and so for ever.
                    Err(NotHeld::Late) => self.unsuccessful(self.too_late(), true),
                }
            }
        }
    }

    /// The next attempt. This one was answered, so the failures before it count no more.
    fn again(&mut self) -> Attempt {
        (self.failed, self.failing) = (None, None);
        Attempt::Again
    }

    fn too_late(&self) -> Error {
        let lease = self.lease.duration();
        let told = format!(
            "granted, but the answer was read only when the lease of {lease:?} was over: the masters answer slowly, or this future was \
             not polled for as long; ask for a longer lease"
        );
        Error::new(ErrorKind::Unavailable, told)
    }

    fn granted(&mut self, job: &Job, spread: Spread, token: Option<Token>) -> Result<Guard, NotHeld> {
        let fate = Arc::new(Fate::default());
        let (fixed, max_hold) = (self.options.fixed_lease.is_some(), self.options.max_hold);
        let granted = self.visit(|entry, number, at| {
            let (level, token) = (number(), token.map(|token| token.highest));
            let new = NewLevel { level, lease: self.lease, fixed, max_hold, fate: fate.clone(), token };
            Ok((level, entry.granted(self.id(), job, &new, spread, at)?))
        });
        let (level, (depth, token, _spent)) = granted?;
        if self.poll.is_some_and(|poll| poll <= job.sent) {
            // 1. It listens at a node, which leaves the cluster. 2. The lock is released; no message comes. 3. The poll finds it free.
            self.options.handle.quorum.doubt_messages();
        }
        if self.tries > 0 {
            telemetry::acquired_after_waiting(&self.options.keys.name, &job.field, self.began.elapsed());
        }
        let granted = Granted { hold: job.hold, level, depth, token, field: job.field.clone(), fate };
        Ok(Guard::new(self.options.handle.clone(), self.options.keys.clone(), granted))
    }

    /// Somebody else holds it. Where it is subscribed, the message of a release wakes the request; else it asks now and then.
    fn busy(&mut self, job: &Job, left: Duration, spread: Spread, split: bool) {
        if self.once {
            return self.visit(|entry, _, at| entry.declined(job, spread, at.now));
        }
        let session = &self.options.handle;
        let pause = session.pause(self.tries);
        // From when it was asked: this future may be polled long after it was answered, and no message is published at the end
        // of a lease.
        let lease_end = after(job.sent, left + Duration::from_millis(1));
        self.poll = self.visit(|entry, _, at| {
            let pause = after(at.now, pause);
            let poll = after(at.now, session.config.poll_interval);
            let heard = lease_end.min(poll);
            let soon = heard.min(pause);
            let nap = match (split, entry.is_subscribed()) {
                (true, _) => Pause::Polling(pause),
                (false, true) => Pause::Notified { until: heard, soon },
                (false, false) => Pause::Notified { until: soon, soon },
            };
            entry.refused(self.id(), job, spread, nap, at.now);
            // At the end of a lease nothing is published.
            (entry.is_subscribed() && poll < lease_end).then_some(poll)
        });
        self.tries = self.tries.saturating_add(1);
    }

    fn failed(&mut self, job: &Job, failure: Failure, spread: Spread) -> Result<Attempt> {
        let Failure { outcome, error } = failure;
        self.visit(|entry, _, at| {
            match outcome {
                // Masters that have not answered yet may grant it all the same.
                Outcome::NotRun => entry.declined(job, spread, at.now),
                Outcome::Unknown => entry.unknown(job, at.now),
            }
            entry.lacks(job, spread, at.now);
        });
        let undone = !spread.remains.and(spread.unanswered).is_empty();
        self.unsuccessful(error, undone)
    }

    /// An attempt came to nothing: there is another one after a pause, unless the time for it is over. `undone`: what it left
    /// on a master is ended there.
    fn unsuccessful(&mut self, error: Error, undone: bool) -> Result<Attempt> {
        let session = self.options.handle.clone();
        let now = Instant::now();
        // The session's outage alone is not enough: 1. a full server refuses the acquire, 2. it answers the release that
        // undoes it, or another hold's renewal, 3. that ends the outage, and so for ever.
        let failing = after(*self.failing.get_or_insert(now), session.config.unavailable_after);
        let over = self.is_over() || failing <= now;
        if error.kind() != ErrorKind::Unavailable || over || session.away_too_long(self.began).is_some() {
            return Err(error);
        }
        let pause = session.pause(self.tries);
        self.visit(|entry, _, at| match undone {
            // The master publishes the end of what it left: it would ask again at once, and so on.
            true => entry.pauses(self.id(), after(at.now, pause)),
            false => entry.sleeps(self.id(), after(at.now, pause)),
        });
        telemetry::attempt_failed(&self.options.keys.name, &error);
        self.tries = self.tries.saturating_add(1);
        self.failed = Some(error);
        Ok(Attempt::Again)
    }
}
