//! `Guard`: one level of a hold, until it is released or dropped.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::base::telemetry::{self, HeldSpan};
use crate::base::{after, unless_it_panics};
use crate::client::claim::Claim;
use crate::client::hold::{Held, Hold};
use crate::client::kind::{Fenced, Kind, Plain};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::owner::Owner;
use crate::session::{Handle, check_runtime};
use crate::table::{Grant, Meaning, Obstacle};

/// One level of a hold of a lock. Dropping it releases the level, and with the last one the lock, without waiting;
/// [`release`](Guard::release) releases it and reports the outcome.
///
/// A guard is `Send + Sync + 'static` and borrows nothing from the mutex, so it can be stored in a struct. It may be moved to another
/// task and released there. It may be dropped anywhere: inside a runtime, outside one, while a
/// panic unwinds, at the end of `main`. That never blocks and never panics. If nothing else is under way, the drop writes the
/// release to the socket; otherwise it is sent in the background, or [when the runtime
/// ends](crate::guide::cancellation#the-end-of-a-program).
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock");
/// let guard = stock.lock().await?;
/// let nested = stock.lock().await?; // the same task re-enters
/// assert_eq!((guard.depth(), nested.depth(), nested.name()), (1, 2, "stock"));
/// assert_eq!(guard.hold_id(), nested.hold_id()); // one hold, as Redis sees it
/// drop(nested);
/// guard.release().await
/// # }
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct Guard<K: Kind = Plain> {
    level: OwnLevel,
    kind: PhantomData<K>,
}

/// The level of a guard of either kind. Dropping it releases the level.
struct OwnLevel {
    held: Held,
    /// Whether the level was released or handed over, so that the drop has nothing left to do.
    has_left: bool,
    /// The span of the hold, at its outermost level and if somebody records it. Boxed, since a guard is moved more often than its span
    /// is used.
    span: Option<Box<HeldSpan>>,
}

impl Guard {
    /// Releases this hold at the end of a run, which reports its work: a release that is not confirmed is logged.
    pub(super) async fn release_logged(self) -> Result<()> {
        let name = self.held().keys.name.clone();
        self.release().await.inspect_err(|error| telemetry::release_unconfirmed(&name, error))
    }

    pub(super) fn new(handle: Handle, grant: Arc<Grant>) -> Guard {
        let held = Held { handle, grant };
        Guard { level: OwnLevel { held, has_left: false, span: None }, kind: PhantomData }
    }
}

impl<K: Kind> Guard<K> {
    /// Returns the guard as another kind. Fails if that kind is fenced and the hold has no token; then its level is released.
    pub(super) fn into_kind<L: Kind>(self) -> Result<Guard<L>> {
        self.held().check_kind::<L>()?;
        Ok(Guard { level: self.level, kind: PhantomData })
    }

    pub(super) fn held(&self) -> &Held {
        &self.level.held
    }

    /// Begins the span of the outermost level: a hold has a span, its nested levels do not.
    #[cold]
    pub(super) fn begin_span(&mut self) {
        let OwnLevel { held, span, .. } = &mut self.level;
        if held.depth == 1 {
            *span = HeldSpan::begin(&held.keys.name, &held.field, || held.handle.system()).map(Box::new);
        }
    }

    pub(super) fn span(&self) -> Option<&HeldSpan> {
        self.level.span.as_deref()
    }

    /// Releases a nested level, if nothing has to be sent or awaited for it. Returns whether it did.
    pub(super) fn ends_here(&mut self) -> bool {
        self.level.ends_here()
    }

    /// Releases this hold, and reports whether it was still held. The outermost release frees the lock.
    ///
    /// If another task of this process waits for the lock, the hold may pass to it without a command
    /// ([`local_handoff`](crate::Builder::local_handoff)). In that case `Ok` means that it was held as far as this process knows,
    /// and [`close`](crate::Locks::close) waits until the hold has ended. A nested level that was granted without a command is
    /// released without one, too.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{ErrorKind, Locks, Memory};
    /// let memory = Memory::new();
    /// let stock = Locks::builder(&memory).connect().await?.mutex("stock");
    /// stock.lock().await?.release().await?;
    ///
    /// let guard = stock.lock().await?;
    /// memory.faults().lose("stock");
    /// assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost): the hold was already over; nobody else's lock was touched. [`Unavailable`](ErrorKind::Unavailable),
    /// [`Denied`](ErrorKind::Denied): the server did not confirm within the node timeout (two of them after another command of the
    /// hold; with `replicas`, more), or refused; the release goes on in the background until the lease is over.
    /// [`Misuse`](ErrorKind::Misuse): called outside a tokio runtime; the release goes on in the background.
    /// [`Closed`](ErrorKind::Closed): the runtime that the `Locks` was connected on has ended; the release was written if the socket still
    /// took it, and otherwise the lease frees the lock.
    ///
    /// # Cancel safety
    ///
    /// The hold counts as released from the first poll on. If the future is dropped after that, the release goes on in the
    /// background; if it is dropped before, the guard is dropped with it, which has the same effect.
    pub async fn release(mut self) -> Result<()> {
        if self.ends_here() {
            return Ok(());
        }
        check_runtime().map_err(|error| error.on(&self.held().keys.name))?;
        let mut step = Break(Meaning::Done);
        let began = self.level.held.handle.visit(&self.level.held.keys, |entry, at| {
            self.level.has_left = true;
            let held = &self.level.held;
            step = entry.leave(held.hold, held.level, Some(held.handle.numbers.next()), at);
            at.by_tokio()
        });
        let held = self.held();
        let meaning = match &step {
            Break(meaning) => Ok(*meaning),
            // Passed by reference: if the command were moved out, each task that releases a lock would need space for it twice.
            Continue(pending) => held.command(pending).await,
        };
        let (limit, unanswered) = match meaning {
            Ok(Meaning::Done) => return Ok(()),
            Ok(Meaning::Lost(loss)) => return Err(held.lost(loss)),
            // The release has to wait, or was given up while this future was not polled. Then the background carries it out.
            Ok(Meaning::Void) => (held.limit(), None),
            // The background sends the release again. If only a connection broke, the answer may come soon.
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                (after(began, held.handle.config.node_timeout), Some(error))
            }
            Err(error) => return Err(error),
        };
        self.await_release(limit, unanswered).await
    }

    /// Waits for a release that the background carries out, after another command of the hold. `unanswered`: the error of the release
    /// that was sent before.
    async fn await_release(&self, limit: Instant, unanswered: Option<Error>) -> Result<()> {
        let held = self.held();
        loop {
            // Made before the signal is read, so that a change in between is not missed.
            let changed = held.signal.notified();
            // The runtime of the background may have ended while it carried the release out.
            held.handle.ensure_watchdog();
            if let Some(outcome) = held.signal.released() {
                return outcome.map_err(|loss| held.lost(loss));
            }
            let slice = held.handle.takeover_pause().map(|pause| after(Instant::now(), pause));
            let until = slice.map_or(limit, |slice| slice.min(limit));
            if timeout_at(until, changed).await.is_err() && limit <= Instant::now() {
                return Err(unanswered.unwrap_or_else(|| {
                    let message = "the release could not be confirmed in time (the log says why, at level DEBUG); it goes on in the background \
                                   until the lease is over";
                    Error::new(ErrorKind::Unavailable, message).on(&held.keys.name)
                }));
            }
        }
    }

    /// Waits until the hold is lost, and returns the reason. Pending while the hold is good.
    ///
    /// It has its own timer for the hold's end, so it completes in time even if nothing else runs. If the machine slept past that
    /// end, it completes about a second after the machine woke, with [`Loss::Suspended`] (on Linux). Outside a tokio runtime it has no
    /// timer, and completes when the background task finds the loss.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// # async fn recount() {}
    /// let guard = stock.lock().await?;
    /// tokio::select! {
    ///     () = recount() => {}
    ///     loss = guard.lost() => println!("stopped: {loss}"),
    /// }
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing. Any number of callers may wait at once.
    pub async fn lost(&self) -> Loss {
        self.held().watch().await
    }

    /// Returns whether the hold is lost, as far as this process knows now. Sends nothing.
    ///
    /// It is true from [`valid_until`](Guard::valid_until) on at the latest. Its example uses both.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns why the hold was lost, or `None` while it is good. Sends nothing.
    ///
    /// See the example of [`Loss`].
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.held().loss()
    }

    /// Returns until when the hold is good if nothing renews it.
    ///
    /// It counts from before the command that granted or renewed the hold was sent, less drift, and is never later than `max_hold`
    /// allows. Renewals, [`extend`](Guard::extend) and nested levels that the server was asked for move it forward. It is never in the
    /// future once the hold is lost.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    /// let guard = stock.lock().await?;
    /// // Right before a write that may take a second:
    /// if guard.is_lost() || guard.valid_until() < Instant::now() + Duration::from_secs(1) {
    ///     return Ok(()); // too late to write
    /// }
    /// guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.held().valid_until()
    }

    /// Makes the hold good for at least `lease` from now, in whole milliseconds, but not beyond the end that
    /// [`max_hold`](crate::futures::Request::max_hold) sets.
    ///
    /// It never shortens the hold. A hold that is renewed stays renewed. With several masters, `lease` must not be longer than
    /// [`restart_delay`](crate::Builder::restart_delay), which is the builder's lease by default.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// use std::time::Duration;
    /// let guard = stock.lock().await?;
    /// let before = guard.valid_until(); // 30 s from the send, less drift
    /// guard.extend(Duration::from_secs(120)).await?;
    /// assert!(guard.valid_until() > before + Duration::from_secs(60));
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config): a lease that is too short, too long, or longer than `restart_delay`; nothing was sent.
    /// [`Lost`](ErrorKind::Lost): the hold is over. [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied): the server did
    /// not answer within the node timeout (three of them after another command of the hold; with `replicas`, more), or refused; the hold
    /// is good at least until the earlier [`valid_until`](Guard::valid_until). [`Closed`](ErrorKind::Closed): after `close`, guards can
    /// only be released. [`Misuse`](ErrorKind::Misuse): called outside a tokio runtime; nothing was sent.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease may or may not have been extended.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        self.held().extend(lease).await
    }

    /// Asks the masters now whether the hold still stands.
    ///
    /// Use it right before a step that can't be undone: a payment, an email, a file that is overwritten. Since its last renewal the
    /// hold may have been deleted, evicted or released by force on the server, and this process may not know yet. `Ok` means that
    /// the hold stood at some time between the call and its answer; with several masters, on a majority of them. It promises nothing
    /// for the time after that: the step has to be done by [`valid_until`](Guard::valid_until), as without a check. Only a resource
    /// that refuses late writes, for example by a [fencing token](crate::Fenced), is safe from a process that stops between the
    /// check and the step.
    ///
    /// If the hold is renewed in the background, the check renews it too, so that it is good for a lease from now. A hold with a
    /// fixed lease is left as it is: nobody makes it longer. If the hold is gone, [`lost`](Guard::lost) reports that as well, to all
    /// guards of the hold.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{ErrorKind, Locks, Loss, Memory};
    /// let memory = Memory::new();
    /// let locks = Locks::builder(&memory).connect().await?;
    /// # async fn read_balance() {}
    /// # async fn pay() {}
    /// let guard = locks.mutex("account:7").lock().await?;
    /// read_balance().await;
    /// guard.check().await?; // still ours, as the server has it
    /// pay().await;
    ///
    /// memory.faults().lose("account:7"); // as if an operator had deleted the key
    /// let error = guard.check().await.unwrap_err();
    /// assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::Gone)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost): the hold is over. [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied): the
    /// server did not answer within the node timeout (three of them after another command of the hold; with `replicas`, more), or
    /// refused; with several masters, no majority answered. Nobody knows then whether the hold stands: don't do the step. The guard
    /// stays as it is, and the check may be repeated. [`Closed`](ErrorKind::Closed): after `close`, guards can only be released.
    /// [`Misuse`](ErrorKind::Misuse): called outside a tokio runtime; nothing was sent.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the hold stays, and its lease may or may not have been renewed.
    pub async fn check(&self) -> Result<()> {
        self.held().check().await
    }

    /// Keeps the lock from everybody else for `at_least` from now, whatever happens to this guard.
    pub(super) fn keep(&self, at_least: Duration) {
        let held = self.held();
        held.handle.visit(&held.keys, |entry, at| entry.keep(held.hold, at_least, at.now));
    }

    /// Returns the hold as the work of a [`run`](crate::Mutex::run) sees it, for functions that take a [`Hold`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// async fn deduct(hold: &nestlock::Hold) -> nestlock::Result<()> {
    ///     hold.check().await
    /// }
    /// stock.run(async |hold| deduct(&hold).await).await??;
    /// let guard = stock.lock().await?;
    /// deduct(&guard.hold()).await?;
    /// guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn hold(&self) -> Hold<K> {
        Hold::new(self.held())
    }

    /// Returns the level of this hold at its grant: 1 is the outermost. It never changes.
    ///
    /// See the example of [`Guard`].
    #[must_use]
    pub fn depth(&self) -> usize {
        self.level.held.depth as usize
    }

    /// Returns the lock's name, without the prefix.
    ///
    /// See the example of [`Guard`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.held().keys.name
    }

    /// Returns the id of this hold, which is its field in Redis: `<uuid>:<number>`, preceded by the
    /// [name of the holder](crate::Builder::holder_name) and a `:` if it has one.
    ///
    /// Nested holds share it, and so do holds that passed from task to task inside this process
    /// ([`local_handoff`](crate::Builder::local_handoff)).
    ///
    /// Use it in logs, and to compare with the output of `HGETALL`. See the example of [`Guard`].
    #[must_use]
    pub fn hold_id(&self) -> &str {
        &self.held().field
    }

    /// Returns the owner of the hold.
    ///
    /// It is the owner that asked for it or, once the last scope of that owner has ended, its nearest living ancestor.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// use nestlock::{Owner, scope};
    /// let guard = scope(async { stock.lock().await }).await?;
    /// assert_eq!(guard.owner(), Owner::current()); // the scope has ended
    /// guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.held().owner()
    }
}

impl Guard {
    /// Hands the hold over to the process that [`resume`](crate::Mutex::resume)s the claim, another one or this one.
    ///
    /// The lock stays held. A lease that is renewed is renewed once more first. After that this process neither renews nor releases
    /// the hold: if nobody resumes it before the lease is over, the lock is free. So the claim has to be resumed by then: take the
    /// lock with a lease that is longer than the hand-over takes ([`Builder::lease`](crate::Builder::lease),
    /// [`fixed_lease`](crate::futures::Request::fixed_lease)), or [`extend`](Guard::extend) it first. `max_hold` and `at_least` end
    /// with this guard, and are not carried over.
    ///
    /// A fenced guard has no such method, since a token can't be handed over. So this fails for a plain guard of a hold that has a token.
    /// See the example of [`Claim`].
    ///
    /// # Errors
    ///
    /// On any error the guard is dropped, which releases this level in the background. [`Misuse`](ErrorKind::Misuse): the hold has
    /// other levels, whose guards rely on it; or it has a fencing token, which can't be handed over; or it was called
    /// outside a tokio runtime. [`Lost`](ErrorKind::Lost): the hold is over. [`Unavailable`](ErrorKind::Unavailable),
    /// [`Denied`](ErrorKind::Denied): as for [`check`](Guard::check). [`Closed`](ErrorKind::Closed): after `close`, guards can only be
    /// released.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the guard is dropped with it, which releases this level.
    pub async fn into_claim(mut self) -> Result<Claim> {
        let held = self.held();
        held.check_call()?;
        let first = held.handle.visit(&held.keys, |entry, _| entry.may_be_handed_over(held.hold, held.level));
        self.refuse_hand_over(first)?;
        let limit = held.limit();
        held.confirm(None, limit).await?;
        // Commands that have become due in the meantime go first, such as a settle or a re-entry.
        let given = poll_fn(|cx| {
            let given = held
                .handle
                .visit(&held.keys, |entry, at| entry.hand_over(held.hold, held.level, cx.waker(), at));
            if given == Err(Obstacle::Command) { Poll::Pending } else { Poll::Ready(given) }
        });
        let given = timeout_at(limit, given).await.map_err(|_| held.stuck())?;
        self.refuse_hand_over(given)?;
        let claim = Claim::new(held.field.clone(), held.keys.name.clone());
        self.level.has_left = true;
        Ok(claim)
    }

    /// Returns the error for a hold that can't be handed over, unless it only has to wait for a command.
    fn refuse_hand_over(&self, answer: Result<(), Obstacle>) -> Result<()> {
        let message = match answer {
            Ok(()) | Err(Obstacle::Command) => return Ok(()),
            Err(Obstacle::Lost(loss)) => return Err(self.held().lost(loss)),
            Err(Obstacle::Nested(levels)) => format!(
                "the hold has {levels} levels, and only a hold with one level can be handed over; release the other levels first, or take the \
                 lock with an owner of its own: `.owner(&Owner::new())`"
            ),
            Err(Obstacle::Fenced) => {
                "a hold with a fencing token can't be handed over; take the lock with a plain `mutex`, or let the other process take it"
                    .to_owned()
            }
        };
        Err(Error::new(ErrorKind::Misuse, message).on(&self.held().keys.name))
    }
}

impl Guard<Fenced> {
    /// Returns the fencing token of this hold. It never changes.
    ///
    /// It is greater than that of every earlier hold of the lock, as long as the server keeps its
    /// [counter](crate::guide::fencing). All levels of one hold have the same token.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock").fenced();
    /// let guard = stock.lock().await?;
    /// let nested = stock.lock().await?;
    /// assert_eq!(nested.token(), guard.token()); // one hold
    /// drop(nested);
    /// guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held().token()
    }
}

/// Converts a fenced guard for code that treats both kinds alike, and does not need the token.
impl From<Guard<Fenced>> for Guard {
    fn from(guard: Guard<Fenced>) -> Guard {
        Guard { level: guard.level, kind: PhantomData }
    }
}

impl OwnLevel {
    /// Releases a nested level, if nothing has to be sent or awaited for it. Returns whether it did.
    fn ends_here(&mut self) -> bool {
        let Held { handle, grant } = &self.held;
        self.has_left = grant.depth > 1 && handle.unnest(grant);
        self.has_left
    }
}

impl Drop for OwnLevel {
    fn drop(&mut self) {
        if !self.has_left && !self.ends_here() {
            // The level is removed at once. The release is sent here or by the background.
            self.held.handle.let_go(&self.held.keys, self.held.hold, self.held.level);
        }
        if let Some(span) = self.span.take() {
            // A panic of a subscriber would end a program that already unwinds. Each is caught by itself: if the span were dropped while
            // the first panic unwinds, a second one would abort.
            unless_it_panics(|| self.held.signal.loss().into_iter().for_each(|loss| span.lost(loss)));
            unless_it_panics(|| drop(span));
        }
    }
}

impl<K: Kind> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Guard");
        out.field("name", &self.name())
            .field("field", &self.level.held.field)
            .field("depth", &self.level.held.depth);
        out.field("loss", &self.level.held.signal.loss()).finish_non_exhaustive()
    }
}
