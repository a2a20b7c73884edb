//! Turns a request into a guard, for `lock`, `try_lock` and `run` alike. The functions of `Acquire` are in the order in which a
//! request goes through them: it waits for its turn, sends its acquire, and acts on the answer.

use std::future::{Future, poll_fn};
use std::ops::ControlFlow::{self, Break, Continue};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::task::consume_budget;
use tokio::task::coop::poll_proceed;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::backend::why_late;
use crate::base::meter::{self, Sample, Waiting};
use crate::base::telemetry::{self, AcquireSpan};
use crate::base::{Failure, Lease, Moment, Outcome, Spread, after, limit};
use crate::client::call::{CallOptions, Times};
use crate::client::guard::Guard;
use crate::client::kind::UNFENCED;
use crate::config::{BareReentry, Config};
use crate::error::{Error, ErrorKind, Result, shown};
use crate::holder::Shown;
use crate::owner::Owner;
use crate::quorum::Verdict;
use crate::session::{Handle, Sent, Session, check_runtime, clock};
use crate::table::{
    AcquireParams, Admission, Ambiguous, Grant, Grantee, LockEntry, Meaning, NewLevel, NotHeld, Owned,
    Polled, Refusal, Waiter,
};
use crate::wire::keys::{self, Keys};
use crate::wire::{Fence, Pending, Reply, Token};

/// The lock that is requested, and the options of the call.
#[derive(Clone, Debug)]
pub(super) struct AcquireOptions {
    pub(super) handle: Handle,
    pub(super) keys: Arc<Keys>,
    pub(super) call: CallOptions,
    /// The request for several locks that this one belongs to, if any.
    pub(super) part: Option<Arc<Part>>,
}

/// What a request for one of several locks shares with the request for all of them.
#[derive(Debug)]
pub(super) struct Part {
    /// Set once this request waits for others: a request for several locks must not hold a name that sorts after one that it waits for.
    is_waiting: AtomicBool,
    /// The session's number when the request for all of them began.
    began_number: u64,
}

impl Part {
    pub(super) fn new(began_number: u64) -> Part {
        Part { is_waiting: AtomicBool::new(false), began_number }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Relaxed)
    }
}

impl AcquireOptions {
    /// Returns what an attempt that is made now requires of the fencing counter.
    fn fence(&self) -> Arc<Fence> {
        let session = &self.handle;
        let counter = keys::counter(&session.config.prefix, &self.keys.name).into();
        let least = (!session.quorum.has_time()).then(clock::time_of_day);
        Arc::new(Fence { counter, least, stays: session.config.token_ttl })
    }

    /// Returns the error to report if the key of the lock or of its counter holds something else.
    fn foreign(&self, found: &Reply) -> Option<Error> {
        let found = match found {
            Reply::NotALock(found) => {
                format!("the key `{}` holds something that is no lock: {found}", shown(&self.keys.key))
            }
            Reply::NotACounter(found) => {
                let counter = keys::counter(&self.handle.config.prefix, &self.keys.name);
                format!("the key `{}` can't count fencing tokens: it holds {found}", shown(&counter))
            }
            _ => return None,
        };
        let message = format!("{found}; it is left untouched; use another name, or remove the key");
        Some(Error::new(ErrorKind::NotALock, message))
    }
}

/// Why a request ended without a guard.
pub(super) enum NotGranted {
    /// Somebody else held the lock for the whole time that `within` allows.
    Busy {
        name: Arc<str>,
        within: Duration,
        /// The holder at the end of that time, if it is known and the request reports it.
        by: Option<Box<Owned>>,
    },
    Failed(Error),
}

impl NotGranted {
    /// Returns the error of a call that has to end with a guard.
    pub(super) fn into_error(self) -> Error {
        match self {
            NotGranted::Busy { name, within, by } => {
                let now = by.as_deref().map(held_by).unwrap_or_default();
                let nested = if by.as_deref().is_some_and(|by| by.here) { NESTED } else { "" };
                let time = match within.is_zero() {
                    true => String::new(),
                    false => format!(" for all of the {within:?} that `within` allows"),
                };
                let message =
                    format!("somebody else held it{time}{now}; try again later, or wait longer{nested}");
                Error::new(ErrorKind::Timeout, message).held_by(by.map(|by| by.holder)).on(&name)
            }
            NotGranted::Failed(error) => error,
        }
    }
}

/// What may help, besides waiting, if the holder is of this process: the holder may itself await the request.
const NESTED: &str = "; if that owner awaits this call, in a task or a thread that it started, make the call in the scope of a child \
     of it: `Owner::current().child().scope(…)`";

/// Returns the part of a message that says who has the lock.
fn held_by(Owned { holder, here, .. }: &Owned) -> String {
    let (name, left) = (holder.shown(), Shown(holder.remaining_lease()));
    let here = if *here { ", another owner of this process," } else { "" };
    format!("; it is held by {name}{here} for another {left}")
}

impl From<Error> for NotGranted {
    fn from(error: Error) -> NotGranted {
        NotGranted::Failed(error)
    }
}

/// Grants a nested `run` in its first poll, if the masters certainly have the hold of its tree and nothing else has to be decided.
/// This path exists because a recursion can make thousands of such requests. `None` means only that the request has to go through
/// [`acquire`].
pub(super) fn grant_here(options: &AcquireOptions, cx: &mut Context<'_>) -> Option<Guard> {
    let AcquireOptions { handle, keys, call, part: None } = options else { return None };
    let CallOptions { owner: Some(owner), bare: false, fenced, times: None, .. } = call else {
        return None;
    };
    let is_simple = !handle.config.confirm_reentry && !telemetry::has_spans();
    if !is_simple || check_runtime().is_err() {
        return None;
    }
    // A grant takes part of the budget, so that a loop of nested runs lets other tasks run.
    let Poll::Ready(budget) = poll_proceed(cx) else { return None };
    let granted = handle.nest(keys, owner, *fenced)?;
    budget.made_progress();
    Some(Guard::new(handle.clone(), granted))
}

/// Begins a request, which asks until the lock is granted or its time is over. Called in the first poll.
///
/// Not an `async fn`, which would store its arguments twice. The boxed future has to stay below a kilobyte, since glibc's allocator
/// caches only smaller blocks for each thread.
pub(super) fn acquire(options: AcquireOptions) -> impl Future<Output = Result<Guard, NotGranted>> + Send {
    let span = AcquireSpan::begin(&options.keys.name, options.call.location, || options.handle.system());
    let mut request = Acquire::new(options);
    span.around(async move {
        let request = &mut request;
        let ready = match request.prepare() {
            Ok(()) => request.options.handle.opening(request.limit).await,
            Err(error) => Err(error),
        };
        let mut answer = ready.err().map(|error| Err(NotGranted::Failed(error)));
        loop {
            if let Some(answer) = answer {
                let answer = request.ended(answer);
                if answer.is_err() && request.options.part.is_none() {
                    // A `try_lock` that other requests of this process refuse never waits, and nor does a request after `close` or the
                    // end of the runtime. Without this, a loop of such calls would never let others run, and a runtime that ends would
                    // wait for it for ever. It has left the queue then, so that nothing is offered to it.
                    request.leave();
                    consume_budget().await;
                }
                return answer;
            }
            answer = match request.until_admitted().await {
                // Boxed, since requests that wait in the queue have no attempt and need no space for one.
                Ok(Continue(pending)) => Box::pin(request.attempt(pending)).await.transpose(),
                Ok(Break(guard)) => Some(Ok(guard)),
                Err(why) => Some(Err(why)),
            };
        }
    })
}

/// A request, from its first poll until it is ready or dropped. Dropping it takes it out of the queue.
struct Acquire {
    options: AcquireOptions,
    /// Its number in the queue; `None` until it has entered.
    id: Option<u64>,
    lease: Lease,
    began: Instant,
    /// Its deadline: the end of the time that `within` allows, or of a single attempt.
    limit: Option<Instant>,
    /// Whether it makes a single attempt, and does not wait for others.
    single_attempt: bool,
    /// Whether it was refused before it asked, so that the log reports it if it waits for long.
    was_refused: bool,
    waiting: Waiting,
    /// `None` until an attempt is refused or fails.
    attempts: Option<Box<Attempts>>,
    /// When it began to wait for a command of this process to end, since it gives up after a time. If that time were counted from the
    /// beginning of the whole wait: 1. It waits in the queue for a long time. 2. The hold before it ends by itself, which wakes it.
    /// 3. The end of that hold has not been sent yet, and the request would give up at once.
    command_wait_since: Option<Instant>,
}

/// The results of a request's attempts so far. Boxed, since a request that waits in the queue has made none.
#[derive(Default)]
struct Attempts {
    /// The number of random pauses so far, each soon after the one before.
    pauses: u32,
    /// When the last of these pauses is over.
    paused_until: Option<Instant>,
    /// Why the last attempt failed: it had no answer, or one that came too late.
    last_failure: Option<Error>,
    /// When the current series of failed attempts began.
    failing_since: Option<Instant>,
    /// When it asks again although it is subscribed and the holder's lease will not be over by then. If the lock is free at that
    /// time, it was released without a message.
    fallback_poll: Option<Instant>,
}

impl Attempts {
    /// Returns how long to pause before the next attempt: longer each time, but short again if the last pause was long ago, since
    /// what it competed for then is decided. `asked` is when the attempt was sent; an attempt may take longer than any pause.
    fn next_pause(&mut self, asked: Instant, session: &Session) -> Duration {
        let long_ago = |until| after(until, session.longest_pause()) < asked;
        if self.paused_until.is_some_and(long_ago) {
            self.pauses = 0;
        }
        session.pause(self.pauses)
    }

    /// Notes a pause that ends at `until`, on the timeline of holds, as are the times at which attempts are sent.
    fn note_pause(&mut self, until: Instant) {
        self.pauses = self.pauses.saturating_add(1);
        self.paused_until = Some(until);
    }
}

/// How much longer than [`Config::attempt_limit`] a single attempt waits, so that the master's own error, which is more precise, comes
/// first.
const GRACE: Duration = Duration::from_millis(10);

impl Acquire {
    fn new(mut options: AcquireOptions) -> Acquire {
        // Read now, in the first poll: while it waits for the first connections, the future may move to another task.
        options.call.owner.get_or_insert_with(Owner::current);
        let (began, lease) = (Instant::now(), options.handle.config.lease);
        let single_attempt = options.call.within == Some(Duration::ZERO);
        let within = match single_attempt {
            true => Some(options.handle.config.attempt_limit().saturating_add(GRACE)),
            false => options.call.within,
        };
        let limit = within.and_then(|within| limit(began, within));
        Acquire {
            options,
            id: None,
            lease,
            began,
            limit,
            single_attempt,
            was_refused: false,
            waiting: Waiting::default(),
            attempts: None,
            command_wait_since: None,
        }
    }

    /// Checks the options and whether the request may be made, sets its lease, and starts its metrics.
    fn prepare(&mut self) -> Result<()> {
        let session = &self.options.handle;
        keys::check(&self.options.keys.name, &session.config.prefix)?;
        if let Some(asked) = self.options.call.times().fixed_lease {
            self.lease = session.config.lease("fixed_lease", asked)?;
        }
        self.options.call.times().check(&session.config)?;
        session.check_call()?;
        if meter::ON {
            meter::begin(Some(&self.options.keys.name), session.config.grouping.as_ref());
        }
        Ok(())
    }

    /// Records the end of a request that is not granted, and returns its answer.
    fn ended(&self, answer: Result<Guard, NotGranted>) -> Result<Guard, NotGranted> {
        answer.map_err(|why| match why {
            NotGranted::Failed(error) => {
                telemetry::not_granted(error.kind());
                NotGranted::Failed(error.on(&self.options.keys.name))
            }
            busy @ NotGranted::Busy { .. } => {
                // A `try_lock` treats this as `None`, not as an error.
                if self.options.call.busy_is_error {
                    telemetry::not_granted(ErrorKind::Timeout);
                }
                busy
            }
        })
    }

    /// Returns why a request ends whose time is over: it failed, or somebody else holds the lock. `unanswered` is the error to report
    /// if no master has answered yet that somebody else holds the lock.
    fn over(&self, unanswered: Option<Error>) -> NotGranted {
        let refused = self.was_refused || self.has_asked_in_vain();
        // If an owner of this process holds it, no master is needed to refuse this request, whatever failed before or fails for that hold.
        let is_held = self.visit(|entry, _| entry.is_held_by_another(self.id()));
        // A request that waited behind others has not asked the masters itself, and they may be unreachable.
        let session = &self.options.handle;
        let outage = || session.outage(&self.options.keys, session.timing.patience);
        let failed = || self.last_failure().or_else(outage).or(unanswered.filter(|_| !refused));
        let failure = if is_held { None } else { failed() };
        failure.map_or_else(|| self.busy_too_long(), NotGranted::Failed)
    }

    /// Waits for this request's turn. Returns the command to send, or a guard of the hold that it has entered without one.
    async fn until_admitted(&mut self) -> Result<ControlFlow<Guard, Pending>, NotGranted> {
        // Most requests never sleep.
        let mut nap = pin!(None::<Sleep>);
        poll_fn(|cx| {
            // A request takes nothing over in its first poll, for the reason that `attempt` gives: nothing would prove that two
            // requests are branches.
            let polled_before = self.id.is_some();
            // A `run` may be granted in its first poll without a command. Without this, a loop of such runs would never let another
            // task run.
            if !polled_before && !self.options.call.bare {
                ready!(pin!(consume_budget()).poll(cx));
            }
            loop {
                let mut until = None;
                let turn = self.look(cx.waker(), polled_before, &mut until);
                let (Poll::Pending, Some(until)) = (&turn, until) else { return turn };
                match nap.as_mut().as_pin_mut() {
                    Some(nap) => nap.reset(until),
                    None => nap.set(Some(sleep_until(until))),
                }
                if nap.as_mut().as_pin_mut().is_some_and(|nap| nap.poll(cx).is_pending()) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Returns the command to send, or a guard, once it is this request's turn. If it has to wait, sets `again` to when to look again at
    /// the latest. The first look enters the queue. `polled_before`: whether this is a later poll than the first.
    fn look(
        &mut self,
        waker: &Waker,
        polled_before: bool,
        again: &mut Option<Instant>,
    ) -> Poll<Result<ControlFlow<Guard, Pending>, NotGranted>> {
        let session = &self.options.handle;
        session.check_open()?;
        // Read from both clocks, even for a new request: its acquire is dated by this moment, which must not be from before a
        // sleep of the machine.
        let at = session.moment();
        // Set by the visit and not returned by it: a large result would be copied in each function around it.
        let mut admission = Admission::Refused(None);
        let (id, _drop_unlocked) = session
            .visit_at(at, &self.options.keys, |entry, at| {
                self.decide(entry, waker, polled_before, at, &mut admission)
            })
            .map_err(|error| self.last_failure().unwrap_or(error))?;
        self.id = Some(id);
        if matches!(admission, Admission::Refused(_)) && !self.single_attempt && !self.was_refused {
            self.was_refused = true;
            let context = telemetry::context().map(Arc::new);
            drop(context.and_then(|context| self.visit(|entry, _| entry.set_wait_context(id, context))));
        }
        let waits = matches!(admission, Admission::Wait(_));
        self.command_wait_since = waits.then(|| self.command_wait_since.unwrap_or_else(|| at.by_tokio()));
        *again = match admission {
            Admission::Ask(pending) => return Poll::Ready(Ok(Continue(pending))),
            Admission::Granted(granted, _drop_unlocked) => {
                return Poll::Ready(Ok(Break(self.guard(granted))));
            }
            Admission::Yield => return Poll::Pending,
            Admission::Lost(loss) => return Poll::Ready(Err(Error::lost(loss).into())),
            Admission::Unfenced => return Poll::Ready(Err(Error::new(ErrorKind::Misuse, UNFENCED).into())),
            Admission::Ambiguous => return Poll::Ready(Err(ambiguous().into())),
            Admission::Refused(until) => self.wait_for_others(until, at)?,
            Admission::Wait(until) => self.wait_for_command(until, at)?,
        };
        // Otherwise: 1. This request looks whether the `Locks` is open. 2. `close` wakes all requests in the queue. 3. This one enters it,
        // and sleeps for as long as another owner of this process holds the lock.
        self.options.handle.check_open()?;
        Poll::Pending
    }

    /// Decides, in a visit, what the request does now: sets `admission`. Returns its number, and a waker, which is dropped once nothing is
    /// locked. An error means that it has not entered the queue, or that an outage ends its wait.
    fn decide(
        &self,
        entry: &mut LockEntry,
        waker: &Waker,
        polled_before: bool,
        at: Moment,
        admission: &mut Admission,
    ) -> Result<(u64, Option<Waker>)> {
        let session = &self.options.handle;
        // A lasting outage ends every waiter: otherwise they would notice it one after the other, each by an attempt of its own. If
        // `unavailable_after` is zero, each makes one attempt.
        let (patience, longest) = (session.timing.patience, session.config.unavailable_after);
        if !longest.is_zero()
            && let Some(failures) = entry.outage.fresh(patience, at.by_tokio())
            && let Some(error) = failures.outlast(longest, self.began, at.by_tokio())
        {
            return Err(error);
        }
        let id = self.id.map_or_else(|| self.enter(entry, waker, at), Ok)?;
        let drop_unlocked = entry.polled(id, waker, at.now);
        *admission = self.admit(entry, id, polled_before, at);
        match *admission {
            // It need not be the head, and only the head is woken when the command that it waits for is answered.
            Admission::Wait(_) if self.single_attempt => entry.wake_on_command_end(waker),
            Admission::Refused(_) if !self.single_attempt => {
                entry.warn_of_self_wait(id, Owner::surrounds);
                if !self.was_refused {
                    entry.schedule_wait_report(id, self.options.call.location, at.now);
                }
            }
            _ => {}
        }
        Ok((id, drop_unlocked))
    }

    /// Asks the entry whether it is this request's turn. `polled_before`: only then may it take over a hold that another owner of this
    /// process offers. The child of a fork takes nothing over, as it sends no commands either.
    fn admit(&self, entry: &mut LockEntry, id: u64, polled_before: bool, at: Moment) -> Admission {
        let AcquireOptions { handle: session, keys, call, part } = &self.options;
        let is_copy = || session.quorum.check_process().is_err();
        let (fence, connected) =
            (|| self.options.fence(), || session.quorum.is_connected(keys) && !is_copy());
        let config = &session.config;
        // A `run` may always enter locally: each has an owner of its own, so no branch looks nested.
        let enters_locally =
            !config.confirm_reentry && (!call.bare || config.bare_reentry == BareReentry::Local);
        // If several names are requested, only the one that is waited for enters the line: otherwise the others would be handed over as
        // well, and be held for nothing.
        let may_enter_line = part.as_ref().is_none_or(|part| part.is_waiting());
        let ask = AcquireParams {
            new: self.new_level(session.numbers.next(), None),
            single_attempt: self.single_attempt,
            uuid: &session.uuid,
            fence: call.fenced.then_some(&fence as &dyn Fn() -> Arc<Fence>),
            takes_over: polled_before && !is_copy(),
            may_nest_locally: enters_locally.then_some(&connected as &dyn Fn() -> bool),
            refuses: config.bare_reentry == BareReentry::Refused,
            report_holder: self.reports_holder(at),
            // Read in the visit: if hints begin after this, a later visit notes that this request, which asks outside the line, has to
            // ask once more.
            line: session.hints.line(entry).filter(|_| may_enter_line),
            hints_refused: session.hints.are_refused(),
        };
        entry.admit(id, ask, at)
    }

    /// Enters the queue, and returns its number in it.
    fn enter(&self, entry: &mut LockEntry, waker: &Waker, at: Moment) -> Result<u64> {
        let CallOptions { owner, bare, fenced, .. } = &self.options.call;
        let id = self.options.handle.numbers.next();
        let mut request = Waiter::new(id, owner.clone().unwrap_or_else(Owner::current), *bare, at.now);
        request.first_polled = if *bare { Polled::first(waker) } else { Polled::default() };
        // Only a hold that is renewed and has no token can be taken over.
        request.accepts_handoff = !fenced && self.options.call.times().fixed_lease.is_none();
        // A level with a higher number was granted later, so this request is not nested in it.
        let began = self.options.part.as_ref().map_or(u64::MAX, |part| part.began_number);
        entry.enter(request, began).map_err(|Ambiguous| ambiguous())?;
        Ok(id)
    }

    /// Returns when a request that waits for others looks again: at `until` at the latest.
    fn wait_for_others(&mut self, until: Option<Instant>, at: Moment) -> Result<Option<Instant>, NotGranted> {
        let now = at.by_tokio();
        if self.single_attempt || self.limit.is_some_and(|limit| limit <= now) {
            return Err(self.over(None));
        }
        self.options.handle.quorum.check_process()?;
        self.mark_waiting();
        // It sleeps in slices, like every wait for the end of a lease, since the machine may sleep past it.
        let until = until.map(|until| at.nap(until));
        // Ten times as rarely as in `wait_for_command`, since others usually end this wait, and not the background task.
        let again = self.options.handle.takeover_pause().map(|pause| after(now, 10 * pause));
        Ok(until.into_iter().chain(self.limit).chain(again).min())
    }

    /// Returns when a request that waits for a command of this process looks again: at `until` at the latest.
    fn wait_for_command(
        &mut self,
        until: Option<Instant>,
        at: Moment,
    ) -> Result<Option<Instant>, NotGranted> {
        let now = at.by_tokio();
        let session = &self.options.handle;
        session.quorum.check_process()?;
        // It gives up even if the server answers, since a full server may defer the command before this one for ever.
        let patience = session.timing.patience.max(session.config.unavailable_after);
        let stuck = self.command_wait_since.is_some_and(|since| after(since, patience) <= now);
        if let Some(error) =
            session.outage_since(&self.options.keys, self.began).or_else(|| stuck.then(unanswered))
        {
            return Err(error.into());
        }
        if self.limit.is_some_and(|limit| limit <= now) {
            return Err(self.over(Some(unanswered())));
        }
        let until = until.map(|until| at.nap(until)).filter(|until| *until > now);
        let node_timeout = session.config.node_timeout;
        let again = session.takeover_pause().map_or(node_timeout, |pause| pause.min(node_timeout));
        Ok(until.into_iter().chain(self.limit).chain([after(now, again)]).min())
    }

    /// Returns whether an attempt that is made now also asks who has the lock: each attempt after a refusal or a failure, one whose answer
    /// may be the last before the time is over, and a single attempt for which "busy" is an error. Others do not, since the answer costs
    /// the server twice the work, and most requests end with a grant or with `None`.
    fn reports_holder(&self, at: Moment) -> bool {
        const SOON: Duration = Duration::from_secs(1);
        let ends_soon = || self.limit.is_some_and(|limit| limit <= after(at.by_tokio(), SOON));
        if self.single_attempt {
            self.options.call.busy_is_error
        } else {
            self.has_asked_in_vain() || ends_soon()
        }
    }

    /// Sends one acquire, and returns the guard if it was granted. The undo is armed before the command is sent, since a dropped
    /// future may leave the command running. Each poll is reported to the queue, which shows that this request responds when it is
    /// woken. So it is not passed over if its answer is late: a slow server would be just as slow for the next request.
    ///
    /// An answer that arrives during the first poll is returned in the next one. Otherwise: 1. Two branches of a `join!` ask in one
    /// poll of their task. 2. The first one is answered by another thread before its poll ends, and holds the lock. 3. The second one
    /// asks, and is taken for a re-entry: nothing proves that they are branches.
    fn attempt(
        &mut self,
        pending: Pending,
    ) -> impl Future<Output = Result<Option<Guard>, NotGranted>> + Send {
        let session = self.options.handle.clone();
        // Not an `async fn`, which would need space for the command twice.
        async move {
            let mut sent = Sent::new(&session, &pending);
            let answered = {
                let mut asking = pin!(session.ask(&pending));
                // Boxed, since an early answer is rare.
                let (mut first, mut early) = (true, None::<Box<_>>);
                // No attempt takes longer than `patience`, so a later limit needs no timer.
                let is_sooner = |limit: &Instant| *limit < after(Instant::now(), session.timing.patience);
                let mut over = pin!(self.limit.filter(is_sooner).map(sleep_until));
                poll_fn(|cx| {
                    if let Some(answer) = early.take() {
                        return Poll::Ready(Some(*answer));
                    }
                    let answer = asking.as_mut().poll(cx);
                    let first = std::mem::take(&mut first);
                    if let Poll::Ready(answer) = answer {
                        if !first {
                            return Poll::Ready(Some(answer));
                        }
                        early = Some(Box::new(answer));
                        cx.waker().wake_by_ref();
                    } else if over.as_mut().as_pin_mut().is_some_and(|over| over.poll(cx).is_ready()) {
                        return Poll::Ready(None);
                    } else if !first {
                        // Dropped while nothing is locked: dropping a waker may drop its task.
                        let at = session.glance(Instant::now());
                        drop(session.visit_at(at, &self.options.keys, |entry, at| {
                            entry.polled(self.id(), cx.waker(), at.now)
                        }));
                    }
                    Poll::Pending
                })
                .await
            };
            // The stragglers are dropped last, after the entry was updated.
            let Some((verdict, _stragglers)) = answered else {
                // The command is undone like that of a dropped request.
                drop(sent);
                return Err(self.over(Some(self.not_in_time())));
            };
            sent.is_armed = false;
            let Verdict { result, spread, split, token } = verdict;
            match result {
                Ok(ref reply @ (Reply::Busy(left, _) | Reply::InLine(left, ..))) => {
                    self.busy(&sent, reply, left, spread, split);
                    self.failures_end();
                }
                Ok(reply) => {
                    if let Some(guard) = self.answered(&sent, &reply, spread, token)? {
                        return Ok(Some(guard));
                    }
                }
                Err(Failure { outcome, error }) => {
                    // Masters that have not answered yet may still grant it.
                    sent.conclude(Err(outcome), spread);
                    let leaves_traces = !spread.remains.union(spread.unanswered).is_empty();
                    self.unsuccessful(&pending, error, leaves_traces)?;
                }
            }
            match self.is_over() && self.last_failure().is_none() {
                true => Err(self.busy_too_long()),
                false => Ok(None),
            }
        }
    }

    /// Handles every answer of the masters other than `Busy` and `InLine`, which `busy` handles.
    fn answered(
        &mut self,
        sent: &Sent,
        reply: &Reply,
        spread: Spread,
        token: Option<Token>,
    ) -> Result<Option<Guard>, NotGranted> {
        if let Some(foreign) = self.options.foreign(reply) {
            sent.conclude(Ok(reply), spread);
            return Err(foreign.into());
        }
        if *reply == Reply::Gone {
            // This was a re-entry, and its hold is gone or was given up.
            let meaning = self.visit(|entry, at| {
                entry.back_to_waiting(self.id());
                entry.conclude(sent.pending, Ok(reply), spread, at)
            });
            if let Meaning::Lost(loss) = meaning {
                return Err(Error::lost(loss).into());
            }
            self.failures_end();
            return Ok(None);
        }
        // Granted, maybe with a token. If the `Locks` was closed in the meantime, nobody will renew the hold, so it is undone.
        if let Err(closed) = self.options.handle.check_open() {
            sent.conclude(Err(Outcome::Unknown), spread);
            return Err(closed.into());
        }
        match self.granted(sent.pending, spread, token) {
            Ok(guard) => return Ok(Some(guard)),
            Err(NotHeld::Taken) => self.failures_end(),
            // This attempt does not count as answered. Otherwise: 1. The masters take longer than the lease. 2. Each grant is
            // over before its answer is read, and is undone. 3. The next attempt is made at once, and so on for ever.
            Err(NotHeld::Late) => self.unsuccessful(sent.pending, self.too_late(), true)?,
        }
        Ok(None)
    }

    fn granted(&mut self, pending: &Pending, spread: Spread, token: Option<Token>) -> Result<Guard, NotHeld> {
        let mut granted = Err(NotHeld::Taken);
        self.visit(|entry, at| {
            let new = self.new_level(self.options.handle.numbers.next(), token.map(|token| token.highest));
            granted = entry.granted(&Grantee::Waiter(self.id()), pending, &new, spread, at);
        });
        let (granted, _drop_unlocked) = granted?;
        let fallback_poll = self.attempts.as_ref().and_then(|attempts| attempts.fallback_poll);
        if fallback_poll.is_some_and(|at| at <= pending.sent) {
            // No message announced that the lock is free, so messages may no longer arrive. For example: 1. This process is
            // subscribed at a node, which leaves the cluster. 2. The lock is released, and no message arrives. 3. This poll finds it
            // free.
            self.options.handle.quorum.doubt_messages();
        }
        Ok(self.guard(granted))
    }

    fn new_level(&self, level: u64, token: Option<u64>) -> NewLevel {
        let Times { fixed_lease, max_hold, at_least } = self.options.call.times();
        NewLevel { level, lease: self.lease, fixed: fixed_lease.is_some(), max_hold, at_least, token }
    }

    fn guard(&mut self, granted: Arc<Grant>) -> Guard {
        // The grant took the request out of the queue.
        self.id = None;
        let (keys, depth) = (&self.options.keys, granted.depth);
        // Made before the program's recorder and subscriber are called: if one of them panics, the guard is dropped.
        let guard = Guard::new(self.options.handle.clone(), granted);
        if meter::ON && depth == 1 {
            self.options.handle.measure(&keys.name, Sample::Waited(self.began.elapsed()));
        }
        if telemetry::has_spans() {
            telemetry::granted(guard.hold_id(), depth);
        }
        if self.has_asked_in_vain() {
            telemetry::acquired_after_waiting(&keys.name, guard.hold_id(), self.began.elapsed());
        }
        guard
    }

    /// Handles the answer that somebody else holds the lock. With a subscription the message of a release wakes the request; without
    /// one it polls.
    fn busy(&mut self, sent: &Sent, reply: &Reply, left: Duration, spread: Spread, split: bool) {
        if self.single_attempt {
            sent.conclude(Ok(reply), spread);
            return;
        }
        let pending = sent.pending;
        let was_part = self.options.part.as_ref().is_some_and(|part| !part.is_waiting());
        self.mark_waiting();
        let (id, asked_before, session) = (self.id(), self.has_asked_in_vain(), &self.options.handle);
        let attempts = self.attempts.get_or_insert_default();
        let pause = attempts.next_pause(pending.sent, session);
        // Counted from the send, since this future may be polled long after the answer, and no message is published at the end of a lease.
        let lease_end = after(pending.sent, left + Duration::from_millis(1));
        // The server sends a hint to a request in its line.
        let in_line = matches!(reply, Reply::InLine(..));
        let (fallback_poll, paused) = session.visit(&self.options.keys, |entry, at| {
            // After a split vote no message wakes the request. Otherwise: 1. A majority refuses it, and it sleeps. 2. Another master
            // grants it; that grant is ended, and the end is published. 3. Woken by that message, it asks again at once, and so on,
            // as fast as the masters answer.
            let split = entry.was_split() || split;
            let is_hinted = in_line && session.hints.line(entry).is_some_and(|line| !line.polls);
            let (pause, is_notified) = (after(at.now, pause), entry.is_subscribed() || is_hinted);
            let fallback_poll = after(at.now, session.config.poll_interval);
            let latest = lease_end.min(fallback_poll);
            entry.conclude(pending, Ok(reply), spread, at);
            let in_line_poll =
                entry.polls_after(pending, reply).map(|pause| after(at.now, pause).min(latest));
            // One of several names was asked for outside the line, and the subscription of an earlier wait lasts on. Releases that hand the
            // lock to the next in the line are not published, so nothing would wake the request before it polls. It enters the line soon,
            // unless another name turns out to be the one to wait for: then it is dropped until that one is granted.
            let enters_soon =
                was_part && !split && entry.is_subscribed() && session.hints.line(entry).is_some();
            let early_poll =
                if enters_soon { Some(after(at.now, Duration::from_millis(1))) } else { in_line_poll };
            let refusal = Refusal { latest, pause, is_notified, split };
            entry.refused(id, early_poll.map_or(refusal, Refusal::until));
            // After its first refusal the request is about to subscribe, and it is woken once it has.
            let pauses = split || (!is_notified && asked_before && early_poll.is_none());
            let falls_back = is_notified && fallback_poll < lease_end;
            (falls_back.then_some(fallback_poll), pauses.then_some(pause))
        });
        attempts.fallback_poll = fallback_poll;
        if let Some(until) = paused {
            attempts.note_pause(until);
        }
    }

    /// Handles a failed attempt: another one follows after a pause, unless the time for the request is over. `leaves_traces`: the
    /// attempt may have left something on a master, which is ended there.
    fn unsuccessful(&mut self, pending: &Pending, error: Error, leaves_traces: bool) -> Result<()> {
        let (id, is_over, session) = (self.id(), self.is_over(), &self.options.handle);
        let now = Instant::now();
        // The lock's outage alone does not bound this: 1. A full server refuses a re-entry. 2. It answers the renewal of the hold.
        // 3. That answer ends the outage, and the request would go on for ever.
        let attempts = self.attempts.get_or_insert_default();
        let failing_until =
            after(*attempts.failing_since.get_or_insert(now), session.config.unavailable_after);
        if error.kind() != ErrorKind::Unavailable
            || is_over
            || failing_until <= now
            || session.outage_since(&self.options.keys, self.began).is_some()
        {
            return Err(error);
        }
        let pause = attempts.next_pause(pending.sent, session);
        let until = session.visit(&self.options.keys, |entry, at| {
            let until = after(at.now, pause);
            match leaves_traces {
                // The master publishes the end of whatever the attempt left. If that message woke the request, it would ask again
                // at once, and so on.
                true => entry.pause_request(id, until),
                false => entry.put_to_sleep(id, until),
            }
            until
        });
        telemetry::attempt_failed(&self.options.keys.name, &error);
        attempts.note_pause(until);
        attempts.last_failure = Some(error);
        self.mark_waiting();
        Ok(())
    }

    /// Called when an attempt was answered: failures before it no longer count.
    fn failures_end(&mut self) {
        if let Some(attempts) = &mut self.attempts {
            (attempts.last_failure, attempts.failing_since) = (None, None);
        }
    }

    /// Marks the request as waiting, since others are before it or its attempt failed: it may now take arbitrarily long.
    fn mark_waiting(&mut self) {
        if let Some(part) = &self.options.part {
            part.is_waiting.store(true, Relaxed);
        }
        self.waiting.begin(&self.options.keys.name, self.options.handle.config.grouping.as_ref());
    }

    fn too_late(&self) -> Error {
        let lease = self.lease.duration();
        let message = format!(
            "granted, but the answer was read only when the lease of {lease:?} was over: the masters answer slowly, or this future was \
             not polled for as long; ask for a longer lease"
        );
        Error::new(ErrorKind::Unavailable, message)
    }

    fn not_in_time(&self) -> Error {
        let limit = match self.options.call.within {
            Some(within) if !self.single_attempt => format!("the {within:?} that `within` allows"),
            _ => match &self.options.handle.config {
                config if config.replicas.is_some() => {
                    let longest = config.attempt_limit();
                    format!("the {longest:?} that `node_timeout` and `replicas` allow a single attempt")
                }
                // Connecting or earlier commands took part of the time: otherwise the master's own error would have come first
                // (see `GRACE`).
                Config { node_timeout, .. } => {
                    format!("the `node_timeout` of {node_timeout:?}, of which earlier commands took a part")
                }
            },
        };
        let why = self.limit.filter(|_| !self.options.handle.quorum.is_portable()).and_then(why_late);
        let why = why.as_deref().unwrap_or("check that the server runs, and the network, or allow more time");
        let message = format!("no answer to `acquire` within {limit}; {why}");
        Error::new(ErrorKind::Unavailable, message)
    }

    fn busy_too_long(&self) -> NotGranted {
        let (within, keys) = (self.options.call.within.unwrap_or_default(), &self.options.keys);
        let look = || self.options.handle.table(|table, at| table.entry_of(keys)?.holder(at).map(Box::new));
        let by = if self.options.call.busy_is_error { look() } else { None };
        // A request for several names counts once, as a whole.
        if self.options.part.is_none() && self.options.call.counts_timeout() {
            self.options.handle.measure(&keys.name, Sample::TimedOut);
        }
        NotGranted::Busy { name: keys.name.clone(), within, by }
    }

    /// Returns why its last attempt failed, if it did.
    fn last_failure(&self) -> Option<Error> {
        self.attempts.as_ref()?.last_failure.clone()
    }

    /// Returns whether an attempt of it was refused or failed.
    fn has_asked_in_vain(&self) -> bool {
        self.attempts.is_some()
    }

    /// Returns whether it makes no further attempt.
    fn is_over(&self) -> bool {
        self.single_attempt || self.limit.is_some_and(|limit| limit <= Instant::now())
    }

    /// Returns its number in the queue or, before it has entered, 0, which no request has.
    fn id(&self) -> u64 {
        self.id.unwrap_or_default()
    }

    /// Leaves the queue, if it is in it.
    fn leave(&mut self) {
        if let Some(id) = self.id.take() {
            drop(self.visit(|entry, at| entry.leave_queue(id, at.now)));
        }
    }

    fn visit<R>(&self, visit: impl FnOnce(&mut LockEntry, Moment) -> R) -> R {
        self.options.handle.visit(&self.options.keys, visit)
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        self.leave();
    }
}

fn unanswered() -> Error {
    let message = "an earlier command of this process for the same lock is not done yet: the server does not answer it, defers it or \
                   refuses it (the log says which, at level DEBUG); check the server, and try again";
    Error::new(ErrorKind::Unavailable, message)
}

fn ambiguous() -> Error {
    let message = "this request may be nested in a hold of its owner, or stand beside it in another branch of the same task, and the two \
                   look the same; take the lock with `run`, or put each branch, with its guards, into a `scope`";
    Error::new(ErrorKind::Ambiguous, message)
}

#[cfg(test)]
mod tests;
