//! What callers do according to their programs, and what they expect of each answer.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::base::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::session::Session;
use crate::sim::allowed::Allowed;
use crate::sim::dice::Key;
use crate::sim::gate;
use crate::sim::history::{AnyGuard, Asked, Handle, History, LevelRecord, Promise, Reserved, field_of};
use crate::sim::phases::{Phase, Phases};
use crate::sim::polling::{Doing, neglected, together};
use crate::sim::program::{End, Locking, NAMES, Op, Resuming, Way};
use crate::sim::requests::Path;
use crate::wire::kept_field;
use crate::{Claim, Fenced, Guard, Hold, Locks, scope};

/// A guard's timers read the clock only once a second.
const REPORTED_AFTER: Duration = Duration::from_millis(1100);

pub(super) struct Caller {
    pub(super) id: u64,
    pub(super) process: usize,
    pub(super) locks: Locks,
    pub(super) session: Arc<Session>,
    pub(super) history: Arc<History>,
    pub(super) phases: Arc<Phases>,
    pub(super) allowed: Allowed,
    /// Guards that outlive their callers.
    pub(super) leaked: Arc<Mutex<Vec<Held>>>,
    /// This caller has leaked a guard, so its next requests are nested in that hold.
    pub(super) is_leaky: AtomicBool,
}

/// A guard whose level the history knows.
pub(super) struct Held {
    history: Arc<History>,
    level: u64,
    /// `None` once it is released.
    guard: Option<Arc<AnyGuard>>,
}

impl Held {
    fn guard(&self) -> Option<&Guard> {
        self.guard.as_ref().map(|guard| &***guard)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.history.left(self.level);
    }
}

/// The hold below which an operation runs.
#[derive(Clone, Copy)]
struct Outer<'a> {
    name: usize,
    field: &'a str,
    guard: Option<&'a Guard>,
    above: Option<&'a Outer<'a>>,
}

/// The position of an operation in its program.
#[derive(Clone, Copy)]
struct Place<'a> {
    outer: Option<&'a Outer<'a>>,
    owner: &'a OwnerScope,
}

impl<'a> Place<'a> {
    fn below(self, outer: &'a Outer<'a>) -> Place<'a> {
        Place { outer: Some(outer), ..self }
    }
}

/// A scope that the history knows.
struct OwnerScope {
    history: Arc<History>,
    path: Path,
}

impl OwnerScope {
    fn child(&self) -> OwnerScope {
        let path = self.path.iter().copied().chain([self.history.number()]).collect();
        OwnerScope { history: self.history.clone(), path }
    }
}

impl Drop for OwnerScope {
    fn drop(&mut self) {
        self.history.owner_ended(&self.path);
    }
}

/// A request, until it is granted, refused or dropped.
struct Asking {
    history: Arc<History>,
    asked: Asked,
    failed: bool,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.history.asks_no_more(self.asked.request, self.failed);
    }
}

macro_rules! with_options {
    ($request:expr, $locking:expr) => {{
        let mut request = $request;
        if let Some(fixed) = $locking.fixed {
            request = request.fixed_lease(fixed);
        }
        if let Some(most) = $locking.max_hold {
            request = request.max_hold(most);
        }
        if let Some(least) = $locking.at_least {
            request = request.at_least(least);
        }
        if let Way::Within(limit) = $locking.way {
            request = request.within(limit);
        }
        request
    }};
}

impl Caller {
    pub(super) async fn perform(self, ops: Vec<Op>) {
        let owner = OwnerScope { history: self.history.clone(), path: vec![self.history.number()] };
        self.ops(&ops, Place { outer: None, owner: &owner }).await;
        self.note(|| "is done".to_owned());
    }

    fn note(&self, line: impl FnOnce() -> String) {
        self.history.note(|| format!("caller {} of p{} {}", self.id, self.process, line()));
    }

    fn violated(&self, promise: Promise, text: &str) {
        self.history.violated(promise, format!("caller {} of p{}: {text}", self.id, self.process));
    }

    fn asks(&self, locking: &Locking, owner: &OwnerScope, bare: bool) -> Asking {
        let asked = self.history.asks(self.process, locking.name, &owner.path, bare);
        Asking { history: self.history.clone(), asked, failed: false }
    }

    fn ops<'a>(&'a self, ops: &'a [Op], place: Place<'a>) -> Doing<'a> {
        Box::pin(async move {
            for op in ops {
                if self.phases.now() > Phase::Trouble {
                    return;
                }
                self.op(op, place).await;
                self.stays_lost(place.outer);
            }
        })
    }

    /// Checks that a lost hold stays lost.
    fn stays_lost(&self, outer: Option<&Outer<'_>>) {
        if let Some(guard) = outer.and_then(|outer| outer.guard)
            && guard.is_lost()
            && guard.valid_until() > Instant::now()
        {
            self.violated(Promise::Loss, "a lost hold is good again");
        }
    }

    fn op<'a>(&'a self, op: &'a Op, place: Place<'a>) -> Doing<'a> {
        Box::pin(async move {
            match op {
                Op::Stay(time) => self.phases.stay(*time).await,
                Op::Lock(locking) => self.lock(locking, place).await,
                Op::Run(locking) => self.run(locking, place).await,
                Op::Scope(inner) => {
                    let child = place.owner.child();
                    scope(self.ops(inner, Place { owner: &child, ..place })).await;
                }
                Op::Branches(order, branches) => {
                    let branches = branches.iter().map(|branch| self.ops(branch, place)).collect();
                    together(branches, Key::new(*order)).await;
                }
                Op::GivenUp(after, body) => {
                    let given_up = timeout(*after, self.ops(body, place)).await.is_err();
                    if given_up {
                        self.note(|| "gives up".to_owned());
                    }
                }
                Op::Neglected(how, body) => {
                    let (first, owner) = (self.history.number(), &place.owner.path);
                    let pause = async {
                        self.note(|| format!("does not poll for {:?}", how.pause));
                        self.history.neglects(first, owner, true);
                        self.phases.pause(how.pause).await;
                        self.history.neglects(first, owner, false);
                        self.note(|| "polls again".to_owned());
                    };
                    neglected(self.ops(body, place), how.polls, pause, how.dropped).await;
                }
                Op::Extend(lease) => self.extend(*lease, place.outer).await,
                Op::Check => self.check(place.outer).await,
                Op::Resume(locking, how) => self.resume(locking, how, place).await,
                Op::Force(name) => {
                    let began = Instant::now();
                    let forced = self.locks.mutex(NAMES[*name]).force_release().await;
                    self.in_time(began, "a forced release");
                    self.note(|| format!("forced {}: {forced:?}", NAMES[*name]));
                    forced.unwrap_or_else(|error| {
                        self.expect(&error, false);
                        false
                    });
                }
                Op::Look(name) => {
                    let (mutex, began) = (self.locks.mutex(NAMES[*name]), Instant::now());
                    let seen = mutex.remaining_lease().await;
                    self.in_time(began, "a look");
                    self.note(|| format!("looks at {}: {seen:?}", NAMES[*name]));
                    if let Err(error) = seen {
                        self.expect(&error, false);
                    }
                }
                Op::Close => {
                    let began = Instant::now();
                    let closed = self.locks.close().await;
                    self.in_time(began, "closing");
                    self.note(|| format!("closed: {closed:?}"));
                }
            }
        })
    }

    /// Checks that a call that began at `began` has ended in time.
    fn in_time(&self, began: Instant, what: &str) {
        let longest = self.allowed.answered_within;
        if longest.is_some_and(|longest| began + longest < Instant::now()) {
            self.violated(Promise::Liveness, &format!("{what} took {:?}", began.elapsed()));
        }
    }

    /// Checks that the error has a cause in this run.
    fn expect(&self, error: &Error, nested: bool) {
        let fine = match error.kind() {
            ErrorKind::Timeout => true,
            ErrorKind::Unavailable => {
                self.allowed.unavailable
                    && (self.allowed.unavailable_in_the_end || self.phases.now() < Phase::Over)
            }
            ErrorKind::Closed => self.allowed.closed,
            ErrorKind::Lost => nested || self.is_leaky.load(SeqCst),
            ErrorKind::NotALock => self.allowed.foreign,
            ErrorKind::Misuse => self.is_leaky.load(SeqCst),
            _ => false,
        };
        if !fine {
            self.violated(Promise::Errors, &format!("{error}"));
        }
    }

    /// Handles a request that has ended with this error.
    fn fails(&self, mut asking: Asking, locking: &Locking, error: &Error) {
        self.note(|| format!("fails: {error}"));
        // Only these errors can occur before the request is in its queue.
        asking.failed = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Closed);
        // The request's time was over before the answer arrived.
        let cut = matches!(locking.way, Way::Within(_)) && error.kind() == ErrorKind::Unavailable;
        let branches = asking.asked.ambiguous && error.kind() == ErrorKind::Ambiguous;
        if !(cut || branches) {
            self.expect(error, asking.asked.nested);
        }
    }

    async fn lock(&self, locking: &Locking, place: Place<'_>) {
        let (mutex, outer) = (self.locks.mutex(NAMES[locking.name]), place.outer);
        self.note(|| format!("asks for {} {:?}", NAMES[locking.name], locking.way));
        let asked = Instant::now();
        let asking = self.asks(locking, place.owner, true);
        let above = Self::beneath(locking.name, outer);
        // A guard that this caller has leaked may keep the hold.
        let lost_before = !self.is_leaky.load(SeqCst) && Self::is_all_lost(locking.name, outer);
        let granted: Result<Option<AnyGuard>> = match (locking.fenced, locking.way) {
            (false, Way::Tries) => {
                with_options!(mutex.try_lock(), locking).await.map(|got| got.map(AnyGuard::from))
            }
            (false, _) => with_options!(mutex.lock(), locking).await.map(AnyGuard::from).map(Some),
            (true, Way::Tries) => {
                with_options!(mutex.fenced().try_lock(), locking).await.map(|got| got.map(AnyGuard::from))
            }
            (true, _) => with_options!(mutex.fenced().lock(), locking).await.map(AnyGuard::from).map(Some),
        };
        let guard = match granted {
            Ok(Some(guard)) => Arc::new(guard),
            Ok(None) => return self.note(|| "is refused".to_owned()),
            Err(error) => return self.fails(asking, locking, &error),
        };
        if lost_before {
            self.violated(Promise::Loss, "a request below a lost hold is granted");
        }
        let token = guard.token;
        let level = self.history.granted(LevelRecord {
            name: locking.name,
            field: guard.hold_id().to_owned(),
            caller: self.id,
            process: self.process,
            owner: place.owner.path.clone(),
            request: asking.asked.request,
            branch: false,
            session: self.session.clone(),
            handle: Handle::Guard(Arc::downgrade(&guard)),
            depth: Some(guard.depth()),
            token,
            watched: locking.fixed.is_none() && locking.max_hold.is_none(),
            limited: locking.max_hold.is_some(),
            may_end_from: locking.may_end_from(asked),
        });
        drop(asking);
        let field = guard.hold_id().to_owned();
        if let Some(least) = locking.at_least {
            self.history.keep(&field, least);
        }
        let held = Held { history: self.history.clone(), level, guard: Some(guard) };
        self.re_enters(above, &field);
        self.uses(held, &field, locking, place).await;
    }

    /// Uses a guard until its end.
    async fn uses(&self, held: Held, field: &str, locking: &Locking, place: Place<'_>) {
        let outer = place.outer;
        let inner = Outer { name: locking.name, field, guard: held.guard(), above: outer };
        self.ops(&locking.inner, place.below(&inner)).await;
        match inner.guard.filter(|_| locking.watches) {
            Some(guard) => self.stay_watching(guard, locking.stays).await,
            None => self.phases.stay(locking.stays).await,
        }
        self.stays_lost(Some(&inner));
        match locking.end {
            End::Release => self.release(held, locking).await,
            End::Drop => drop(held),
            End::Leak => {
                self.note(|| "leaks its guard".to_owned());
                self.is_leaky.store(true, SeqCst);
                lock(&self.leaked).push(held);
            }
            // At the end nobody would resume the claim, and a request would have to wait for the lease.
            End::HandOver if self.phases.now() == Phase::Over => self.release(held, locking).await,
            End::HandOver => self.hand_over(held, locking).await,
        }
    }

    async fn hand_over(&self, mut held: Held, locking: &Locking) {
        let Some(guard) = held.guard.take() else { return };
        let (until, slept) = (guard.valid_until(), gate::slept());
        let good = until > Instant::now() && !guard.is_lost();
        let field = guard.hold_id().to_owned();
        let began = Instant::now();
        let claimed = match Arc::into_inner(guard) {
            Some(AnyGuard { guard, token: None }) => guard.into_claim().await,
            Some(_) => return,
            None => return self.violated(Promise::Sanity, "the guard is in use"),
        };
        // The owner has the hold until now: branches of its task that ask during the call are refused.
        self.history.left(held.level);
        self.in_time(began, "a hand-over");
        self.note(|| {
            format!("hands {} over: {:?}", NAMES[locking.name], claimed.as_ref().err().map(Error::kind))
        });
        let claim = match claimed {
            Ok(_) if !good => return self.violated(Promise::Loss, "a hold that was over is handed over"),
            Ok(claim) => claim,
            Err(error) if error.kind() == ErrorKind::Misuse => return,
            Err(error) => {
                let ends = locking.fixed.is_some() || locking.max_hold.is_some();
                return self.expect(&error, !good || ends || !self.allowed.calm);
            }
        };
        let text = claim.to_string();
        let claim = text.parse::<Claim>().ok();
        if claim.as_ref().is_none_or(|claim| claim.hold_id() != field) {
            self.violated(Promise::Sanity, &format!("the claim of {field} is {text}"));
        }
        let (name, stands_by) = (locking.name, field.clone());
        self.history.reserve(Reserved { name, field, stands_by, until, slept, claim, resumes: 0 });
    }

    async fn resume(&self, locking: &Locking, how: &Resuming, place: Place<'_>) {
        let limit = Instant::now() + how.waits;
        let (claim, good) = loop {
            match self.history.claim(locking.name, how.copies) {
                Some(claim) => break claim,
                None if limit <= Instant::now() || self.phases.now() > Phase::Trouble => return,
                None => self.phases.pause(Duration::from_millis(5)).await,
            }
        };
        self.note(|| format!("resumes {}", claim.hold_id()));
        let (began, mutex) = (Instant::now(), self.locks.mutex(NAMES[locking.name]));
        let mut resumed = None;
        let work = async { resumed = Some(mutex.resume(&claim).await) };
        match (how.neglect, how.given_up) {
            (Some(how), _) => neglected(work, how.polls, self.phases.pause(how.pause), how.dropped).await,
            (_, Some(after)) => drop(timeout(after, work).await),
            _ => work.await,
        }
        let guard = match resumed {
            Some(Ok(guard)) => Arc::new(AnyGuard::from(guard)),
            Some(Err(error)) => {
                self.in_time(began, "a resume");
                self.note(|| format!("fails: {error}"));
                let calm = self.allowed.calm && good;
                return match error.kind() {
                    ErrorKind::Unavailable if !calm => {}
                    _ => self.expect(&error, !calm),
                };
            }
            None => return self.note(|| "gives up".to_owned()),
        };
        self.in_time(began, "a resume");
        let level = self.history.granted(LevelRecord {
            name: locking.name,
            field: guard.hold_id().to_owned(),
            caller: self.id,
            process: self.process,
            owner: place.owner.path.clone(),
            request: self.history.number(),
            branch: false,
            session: self.session.clone(),
            handle: Handle::Guard(Arc::downgrade(&guard)),
            depth: Some(guard.depth()),
            token: None,
            watched: true,
            limited: false,
            may_end_from: None,
        });
        let field = guard.hold_id().to_owned();
        let held = Held { history: self.history.clone(), level, guard: Some(guard) };
        self.uses(held, &field, locking, place).await;
    }

    async fn check(&self, outer: Option<&Outer<'_>>) {
        let Some(guard) = outer.and_then(|outer| outer.guard) else { return };
        let began = Instant::now();
        let gone = guard.is_lost() || self.allowed.checks_see && self.history.was_forced(guard.hold_id());
        let checked = guard.check().await;
        self.in_time(began, "a check");
        self.note(|| format!("checks {}: {:?}", guard.name(), checked.as_ref().err().map(Error::kind)));
        match checked {
            Ok(()) if gone => self.violated(Promise::Loss, "a check confirms a hold that was gone"),
            Ok(()) => {}
            Err(error) => self.expect(&error, true),
        }
    }

    /// Stays for this time, or until the guard reports a loss.
    async fn stay_watching(&self, guard: &Guard, time: Duration) {
        tokio::select! {
            biased;
            loss = guard.lost() => {
                self.note(|| format!("is notified that {} is lost: {loss:?}", guard.name()));
                if !guard.is_lost() {
                    self.violated(Promise::Loss, "a good hold is reported as lost");
                }
            }
            () = self.phases.stay(time) => {
                // If a deadline passed while the machine slept, it is checked only when the machine runs again.
                let over = gate::woke().map_or(guard.valid_until(), |woke| woke.max(guard.valid_until()));
                if guard.is_lost() && over + REPORTED_AFTER < Instant::now() {
                    self.violated(Promise::Loss, "a loss is not reported");
                }
            }
        }
    }

    /// Returns the hold of this name below which a request runs.
    fn beneath<'a>(name: usize, outer: Option<&'a Outer<'a>>) -> Option<&'a Outer<'a>> {
        let mut at = outer;
        while let Some(outer) = at {
            if outer.name == name {
                return Some(outer);
            }
            at = outer.above;
        }
        None
    }

    /// Returns whether a request runs below levels of this name and all of them are lost. If one of them is valid, the request may
    /// re-enter.
    fn is_all_lost(name: usize, outer: Option<&Outer<'_>>) -> bool {
        let mut at = Self::beneath(name, outer);
        let nested = at.is_some();
        while let Some(outer) = at {
            if !outer.guard.is_some_and(Guard::is_lost) {
                return false;
            }
            at = Self::beneath(name, outer.above);
        }
        nested
    }

    /// Checks that a nested request has the same field as its outer hold. Otherwise the lock was silently acquired again.
    fn re_enters(&self, above: Option<&Outer<'_>>, field: &str) {
        if let Some(above) = above.filter(|above| above.field != field) {
            let text = format!("nested in {} it is granted {field}", above.field);
            self.violated(Promise::Loss, &text);
        }
    }

    async fn release(&self, mut held: Held, locking: &Locking) {
        let Some(guard) = held.guard.take() else { return };
        let until = guard.valid_until();
        let good = until > Instant::now();
        let loss = guard.loss();
        let field = guard.hold_id().to_owned();
        self.history.left(held.level);
        // 1. A nested release waits for its answer. 2. The fixed lease of the hold, which nothing renews any more, ends: this client ends
        // the key, and others enter. 3. A caller that has no answer yet is notified that the hold is lost.
        let may_end_from = self.history.may_end_from(&field);
        let began = Instant::now();
        let released = match Arc::into_inner(guard) {
            Some(held) => held.guard.release().await,
            None => return self.violated(Promise::Sanity, "the guard is in use"),
        };
        self.in_time(began, "a release");
        self.note(|| {
            format!("released {}: {:?}", NAMES[locking.name], released.as_ref().err().map(Error::kind))
        });
        let forced = self.history.was_forced(&field);
        match released {
            Ok(()) if loss.is_some() || !good => {
                self.violated(Promise::Loss, "a release of a hold that was over reports success");
            }
            Err(error) if error.kind() == ErrorKind::Lost => {
                let now = Instant::now();
                let over = may_end_from.is_some_and(|from| from <= now);
                let ends = locking.fixed.is_some() || locking.max_hold.is_some() || over;
                // Nobody else can have had the lock, and no master can have dropped it.
                let stood = good && now < until && !over && !self.allowed.forgets;
                if loss.is_none() && !forced && (stood || !ends && !self.allowed.losses) {
                    self.violated(Promise::Renewal, &format!("the release of a good hold fails: {error}"));
                }
            }
            Err(error) => self.expect(&error, false),
            Ok(()) => self.is_kept(locking.name, &field),
        }
    }

    /// Notes that the hold has ended and that its lock may have to be kept.
    fn is_kept(&self, name: usize, field: &str) {
        let Some(until) = self.history.kept_until(field) else { return };
        let (field, stands_by, slept) = (field.to_owned(), kept_field(field), Duration::ZERO);
        let claim = None;
        self.history.reserve(Reserved { name, field, stands_by, until, slept, claim, resumes: 0 });
    }

    async fn run(&self, locking: &Locking, place: Place<'_>) {
        let mutex = self.locks.mutex(NAMES[locking.name]);
        self.note(|| format!("asks to run under {} {:?}", NAMES[locking.name], locking.way));
        let asked = Instant::now();
        let child = place.owner.child();
        let asking = self.asks(locking, &child, false);
        let (place, request) = (Place { owner: &child, ..place }, asking.asked.request);
        let tries = locking.way == Way::Tries;
        let ran: Result<Option<()>> = match (locking.fenced, tries) {
            (false, false) => with_options!(mutex.lock(), locking)
                .run(|_| self.work(locking, place, (request, None, asked)))
                .await
                .map(Some),
            (false, true) => {
                with_options!(mutex.try_lock(), locking)
                    .run(|_| self.work(locking, place, (request, None, asked)))
                    .await
            }
            (true, false) => {
                let work =
                    |hold: Hold<Fenced>| self.work(locking, place, (request, Some(hold.token()), asked));
                with_options!(mutex.fenced().lock(), locking).run(work).await.map(Some)
            }
            (true, true) => {
                let work =
                    |hold: Hold<Fenced>| self.work(locking, place, (request, Some(hold.token()), asked));
                with_options!(mutex.fenced().try_lock(), locking).run(work).await
            }
        };
        match ran {
            Ok(Some(())) => self.note(|| "ran".to_owned()),
            Ok(None) => self.note(|| "is refused".to_owned()),
            // Either the work was dropped, or the hold that the request would enter was already gone.
            Err(error) if error.kind() == ErrorKind::Lost => self.note(|| format!("fails: {error}")),
            Err(error) => self.fails(asking, locking, &error),
        }
    }

    async fn work<'a>(
        &'a self,
        locking: &'a Locking,
        place: Place<'a>,
        (request, token, asked): (u64, Option<u64>, Instant),
    ) {
        let Some(field) = field_of(&self.session, locking.name) else {
            return self.violated(Promise::Exclusion, "work runs, and nothing is held");
        };
        let level = self.history.granted(LevelRecord {
            name: locking.name,
            field: field.clone(),
            caller: self.id,
            process: self.process,
            owner: place.owner.path.clone(),
            request,
            branch: false,
            session: self.session.clone(),
            handle: Handle::Run(locking.max_hold.map(|most| Instant::now() + most)),
            depth: None,
            token,
            watched: locking.fixed.is_none() && locking.max_hold.is_none(),
            limited: locking.max_hold.is_some(),
            may_end_from: locking.may_end_from(asked),
        });
        if let Some(least) = locking.at_least {
            self.history.keep(&field, least);
        }
        let _held = Held { history: self.history.clone(), level, guard: None };
        self.re_enters(Self::beneath(locking.name, place.outer), &field);
        let inner = Outer { name: locking.name, field: &field, guard: None, above: place.outer };
        self.ops(&locking.inner, place.below(&inner)).await;
        self.phases.stay(locking.stays).await;
    }

    async fn extend(&self, lease: Duration, outer: Option<&Outer<'_>>) {
        let Some(guard) = outer.and_then(|outer| outer.guard) else { return };
        let began = Instant::now();
        let extended = guard.extend(lease).await;
        self.in_time(began, "an extension");
        self.note(|| {
            format!("extends {} by {lease:?}: {:?}", guard.name(), extended.as_ref().err().map(Error::kind))
        });
        match extended {
            Ok(()) if guard.loss().is_some() => self.violated(Promise::Loss, "a lost hold is extended"),
            Ok(()) if guard.valid_until() < began => {
                self.violated(Promise::Renewal, "what was extended is over before");
            }
            Ok(()) => {}
            Err(error) => self.expect(&error, true),
        }
    }
}
