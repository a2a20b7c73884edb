//! A request in its line: how it enters, waits until it is admitted, and leaves.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::runtime;
use tokio::time::{Instant, sleep_until};

use crate::base::{Lease, Moment, after, limit};
use crate::client::fenced_guard::UNFENCED;
use crate::client::guard::Guard;
use crate::client::options::AcquireOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::owner::Owner;
use crate::table::{AcquireParams, Admission, Ambiguous, LockEntry, Waiter};
use crate::wire::{Job, keys};

/// A request in its line, from its first poll until it is ready or dropped.
pub(super) struct Attempts {
    pub(super) options: AcquireOptions,
    /// Its number in the line; `None` until it has entered.
    id: Option<u64>,
    pub(super) lease: Lease,
    pub(super) began: Instant,
    /// When the caller's patience ends.
    pub(super) limit: Option<Instant>,
    /// It makes one attempt, and does not wait for others.
    pub(super) once: bool,
    pub(super) tries: u32,
    /// The last attempt had no answer, or one that came too late.
    pub(super) failed: Option<Error>,
    /// Since when all attempts have failed.
    pub(super) failing: Option<Instant>,
    /// When it asks again without a message, where one is published for each release before: it is subscribed, and the lease of the
    /// other hold is longer.
    pub(super) poll: Option<Instant>,
}

impl Attempts {
    pub(super) fn begin(options: AcquireOptions) -> Result<Attempts> {
        let session = &options.handle;
        keys::check(&options.keys.name, &session.config.prefix)?;
        let lease = match options.fixed_lease {
            Some(asked) => session.config.lease("fixed_lease", asked)?,
            None => session.config.lease,
        };
        session.check_open()?;
        if runtime::Handle::try_current().is_err() {
            let told = "a lock can be awaited inside a tokio runtime only; use `block_on` of a runtime";
            return Err(Error::new(ErrorKind::Misuse, told));
        }
        let began = Instant::now();
        let once = options.within == Some(Duration::ZERO);
        let limit = options.within.and_then(|within| limit(began, within));
        Ok(Attempts {
            options,
            id: None,
            lease,
            began,
            limit,
            once,
            tries: 0,
            failed: None,
            failing: None,
            poll: None,
        })
    }

    pub(super) fn refusal(&self) -> Result<Option<Guard>> {
        self.options.refusal().map_or(Ok(None), Err)
    }

    /// Whether it makes no further attempt.
    pub(super) fn is_over(&self) -> bool {
        self.once || self.limit.is_some_and(|limit| limit <= Instant::now())
    }

    /// Its number in the line; before it has entered, one that nobody has.
    pub(super) fn id(&self) -> u64 {
        self.id.unwrap_or_default()
    }

    /// Waits until this request is to ask the masters. `None`: its time is over.
    pub(super) async fn until_admitted(&mut self) -> Result<Option<Job>> {
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

    /// Whether it is this request's turn, and if not, when to look again at the latest. The first look enters the line.
    fn look(&mut self, waker: &Waker, began: Instant) -> Result<Look> {
        let session = &*self.options.handle.clone();
        session.check_open()?;
        // Else all who wait would find out one after the other, each by an attempt of its own.
        session.is_away(self.began).map_or(Ok(()), Err)?;
        let (uuid, fence) = (&*session.uuid, self.options.fence());
        let ask = AcquireParams { once: self.once, lease: self.lease, terms: session.terms, uuid, fence };
        let (id, turn, at, _spent) = self
            .visit(|entry, number, at| {
                let id = match self.id {
                    Some(id) => id,
                    None => {
                        let (id, ambient) = (number(), Owner::current());
                        let owner = self.options.owner.clone().unwrap_or_else(|| ambient.clone());
                        entry.enter(Waiter::new(id, owner, ambient, self.options.bare, at.now))?;
                        id
                    }
                };
                let spent = entry.polled(id, waker, at.now);
                let turn = entry.admit(id, number(), ask, at);
                if self.once && matches!(turn, Admission::Wait { refused: false, .. }) {
                    // It need not be the head, which alone is woken when the command that it waits for is answered.
                    entry.wake_when_idle(waker);
                }
                Ok((id, turn, at, spent))
            })
            .map_err(|Ambiguous| Error::new(ErrorKind::Ambiguous, AMBIGUOUS))?;
        self.id = Some(id);
        let now = Instant::now();
        let over = self.is_over();
        match turn {
            Admission::Ask(job) => Ok(Look::Go(Some(job))),
            Admission::Lost(loss) => Err(Error::lost(loss)),
            Admission::Unfenced => Err(Error::new(ErrorKind::Misuse, UNFENCED)),
            Admission::Wait { refused: true, .. } if over => Ok(Look::Go(None)),
            Admission::Wait { refused: true, until } => {
                // It looks again in short, as whoever waits for a lease's end does: the machine may sleep past it.
                let until = until.map(|until| at.nap(until));
                let again = session.takeover_pause().map(|pause| after(now, 10 * pause));
                Ok(Look::Wait(until.into_iter().chain(self.limit).chain(again).min()))
            }
            Admission::Wait { refused: false, until } => {
                let patience = session.terms.patience;
                // Also where the server answers: a full one may put the command before this one off for ever.
                let patience = if over { patience } else { patience.max(session.config.unavailable_after) };
                let stuck = after(began, patience) <= now;
                if let Some(error) = session.away_too_long(self.began).or_else(|| stuck.then(unanswered)) {
                    return Err(error);
                }
                let until = until.map(|until| at.nap(until)).filter(|until| *until > now);
                let node_timeout = session.config.node_timeout;
                let again = session.takeover_pause().map_or(node_timeout, |pause| pause.min(node_timeout));
                let again = after(now, again);
                Ok(Look::Wait(until.into_iter().chain([again]).min()))
            }
        }
    }

    pub(super) fn visit<R>(
        &self,
        visit: impl FnOnce(&mut LockEntry, &mut dyn FnMut() -> u64, Moment) -> R,
    ) -> R {
        self.options.handle.visit(&self.options.keys, visit)
    }

    pub(super) fn leave_line(&self) {
        if let Some(id) = self.id {
            drop(self.visit(|entry, _, at| entry.leave_line(id, at.now)));
        }
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
