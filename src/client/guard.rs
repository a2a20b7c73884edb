//! `Guard`: one level of a hold, until it is released or dropped.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::base::telemetry::HeldSpan;
use crate::base::{Fate, Outcome, Spread, after};
use crate::client::claim::Claim;
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::owner::{Owner, Tree};
use crate::session::Handle;
use crate::session::clock::sleep_until;
use crate::table::{Granted, HandOver, LockEntry, Meaning, ReleaseStep};
use crate::wire::keys::Keys;
use crate::wire::{Pending, Reply};

/// A hold of a lock. Dropping it releases the hold without a wait; [`release`](Guard::release) releases it and reports the outcome.
///
/// A guard may be moved to another task and released there. It may be dropped anywhere: inside a runtime, outside one, while a panic
/// unwinds, at the end of `main`. That never blocks and never panics. If nothing else is under way, the drop writes the release to the
/// socket; else it is sent in the background, or [when the runtime ends](crate::guide::cancellation#the-end-of-a-program).
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock");
/// let guard = stock.lock().await?;
/// let nested = stock.lock().await?; // the same task re-enters
/// assert_eq!((guard.depth(), nested.depth(), nested.name()), (1, 2, "stock"));
/// assert_eq!(guard.field(), nested.field()); // one hold, as Redis sees it
/// drop(nested);
/// guard.release().await
/// # }
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    handle: Handle,
    keys: Arc<Keys>,
    field: Arc<str>,
    fate: Arc<Fate>,
    hold: u64,
    level: u64,
    depth: u32,
    token: Option<u64>,
    /// Its level has been taken out of the hold: the drop has nothing left to do.
    released: bool,
    /// `None` if nothing is noted. Boxed: a guard is moved more often than its notes are read.
    notes: Option<Box<Notes>>,
}

/// What a guard notes outside the table.
#[derive(Default)]
struct Notes {
    /// The span of the hold, at its outermost level and if somebody records it.
    span: Option<HeldSpan>,
    /// If the order of locks is watched: the tree of the owner that asked, until the level is out.
    in_order: Option<Tree>,
}

impl Guard {
    pub(super) fn new(handle: Handle, keys: Arc<Keys>, granted: Granted) -> Guard {
        let Granted { hold, level, depth, token, field, fate } = granted;
        Guard { handle, keys, field, fate, hold, level, depth, token, released: false, notes: None }
    }

    /// Begins the span of the outermost level: a hold has a span, its nested levels do not.
    #[cold]
    pub(super) fn begin_span(&mut self) {
        if self.depth == 1 {
            let span = HeldSpan::begin(&self.keys.name, &self.field, || self.handle.system());
            if span.is_some() {
                self.notes.get_or_insert_default().span = span;
            }
        }
    }

    pub(super) fn span(&self) -> Option<&HeldSpan> {
        self.notes.as_ref()?.span.as_ref()
    }

    /// Called if the order of locks is watched. `tree` is what the level was noted by.
    #[cold]
    pub(super) fn set_in_order(&mut self, tree: Tree) {
        self.notes.get_or_insert_default().in_order = Some(tree);
    }

    /// Notes that its level is out: what is asked for from now on is not nested in it.
    #[cold]
    fn leaves_order(&mut self) {
        let tree = self.notes.as_mut().and_then(|notes| notes.in_order.take());
        if let Some(tree) = tree {
            self.handle.leaves_order(tree, self.level);
        }
    }

    #[cold]
    fn end_notes(&mut self) {
        self.leaves_order();
        if let (Some(span), Some(loss)) = (self.span(), self.fate.loss()) {
            span.lost(loss);
        }
    }

    /// Releases this hold, and reports whether it was still held. The outermost release frees the lock.
    ///
    /// If another task of this process waits for the lock, the hold may pass to it without a command
    /// ([`local_handoff`](crate::Builder::local_handoff)). In that case it was held as far as this process knows, and
    /// [`close`](crate::Locks::close) waits for what becomes of it. Nor is a command sent for a nested level that was granted without
    /// one: it was held as far as this process knows.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{ErrorKind, Locks, Memory};
    /// let memory = Memory::new();
    /// let stock = Locks::builder().memory(&memory).connect().await?.mutex("stock");
    /// stock.lock().await?.release().await?;
    ///
    /// let guard = stock.lock().await?;
    /// memory.lose("stock");
    /// assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost): the hold was already over; nobody else's lock was touched. [`Unavailable`](ErrorKind::Unavailable),
    /// [`Denied`](ErrorKind::Denied): the server did not confirm within the node timeout (two of them after another command of the
    /// hold; with `replicas`, more), or refused; the release goes on in the background until the lease is over.
    ///
    /// # Cancel safety
    ///
    /// The hold counts as released from the first poll on. If the future is dropped after that, the release goes on in the
    /// background; if it is dropped before, the guard is dropped with it, which has the same effect.
    pub async fn release(mut self) -> Result<()> {
        if self.ends_here() {
            return Ok(());
        }
        let (step, began) = self.handle.visit(&self.keys, |entry, number, at| {
            self.released = true;
            (entry.leave(self.hold, self.level, Some(number()), at), at.by_tokio())
        });
        if self.notes.is_some() {
            self.leaves_order();
        }
        let lost = |loss| Err(Error::lost(loss).on(&self.keys.name));
        // By reference: if the command were moved out, it would take its room twice in each task that has a lock.
        match &step {
            ReleaseStep::Released => Ok(()),
            ReleaseStep::Lost(loss) => lost(*loss),
            ReleaseStep::Wait => self.await_release(self.handle.terms.patience).await?.or_else(lost),
            ReleaseStep::Send(pending) => match self.command(pending).await {
                Ok(Meaning::Done) => Ok(()),
                Ok(Meaning::Lost(loss)) => lost(loss),
                // Given up while this future was not polled: the background carries it out.
                Ok(Meaning::Void) => self.await_release(self.handle.terms.patience).await?.or_else(lost),
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    // The background sends it again and may be answered soon, as it is if only a connection broke.
                    let rest = self.handle.config.node_timeout.saturating_sub(began.elapsed());
                    self.await_release(rest).await.map_err(|_| error)?.or_else(lost)
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Releases a nested level, if nothing has to be sent or awaited for that. Returns whether it did.
    pub(super) fn ends_here(&mut self) -> bool {
        self.released = self.depth > 1 && self.handle.unnest(&self.keys, self.hold, self.level);
        if self.released && self.notes.is_some() {
            self.leaves_order();
        }
        self.released
    }

    /// Waits for a release that the background carries out, after another command of the hold.
    async fn await_release(&self, patience: Duration) -> Result<Result<(), Loss>> {
        let limit = after(Instant::now(), patience);
        loop {
            // Made before the fate is read, so that a change in between is not missed.
            let changed = self.fate.notified();
            // The runtime of the background may have ended while it carried the release out.
            self.handle.ensure_watchdog();
            if let Some(outcome) = self.fate.released() {
                return Ok(outcome);
            }
            let slice = self.handle.takeover_pause().map(|pause| after(Instant::now(), pause));
            let until = slice.map_or(limit, |slice| slice.min(limit));
            if timeout_at(until, changed).await.is_err() && limit <= Instant::now() {
                let message = "the release could not be confirmed in time; it goes on in the background until the lease is over";
                return Err(Error::new(ErrorKind::Unavailable, message).on(&self.keys.name));
            }
        }
    }

    /// Sends a command of this hold, and reports its outcome to the entry: as unknown, if the future is dropped before the answer.
    async fn command(&self, pending: &Pending) -> Result<Meaning> {
        let conclude = |at, answer, spread| {
            self.handle.visit_at(at, &self.keys, |entry, _, at| entry.conclude(pending, answer, spread, at))
        };
        let unknown = scopeguard::guard((), |()| {
            conclude(self.handle.moment(), Err(Outcome::Unknown), Spread::default());
        });
        // Dropped at the end, after the entry was updated.
        let (verdict, _stragglers) = self.handle.ask(pending).await;
        scopeguard::ScopeGuard::into_inner(unknown);
        let at = match verdict.result {
            // It was held until then, however long the machine has slept since.
            Ok(Reply::Done | Reply::Ended(_) | Reply::LeftToOthers(_)) if pending.is_end() => {
                self.handle.glance(Instant::now())
            }
            _ => self.handle.moment(),
        };
        let meaning = conclude(at, verdict.answer(), verdict.spread);
        verdict.result.map(|_| meaning).map_err(|failure| failure.error)
    }

    /// Waits until the hold is lost, and returns the reason. Pending for as long as the hold is good.
    ///
    /// It has its own timer for the hold's end, so it completes in time even if nothing else runs any more. If the machine slept past
    /// that end, it completes about a second after the machine woke, with [`Loss::Suspended`] (on Linux).
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
        loss(self.handle.clone(), self.keys.clone(), (self.hold, self.level), self.fate.clone()).await
    }

    /// Like `lost`, for a future that must not borrow the guard.
    pub(super) fn watch(&self) -> impl Future<Output = Loss> + Send + use<> {
        loss(self.handle.clone(), self.keys.clone(), (self.hold, self.level), self.fate.clone())
    }

    /// Returns whether the hold is lost, as far as this process knows now. Sends nothing.
    ///
    /// It is true from [`valid_until`](Guard::valid_until) on at the latest. The example there uses both.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns why the hold was lost, or `None` while it is good. Sends nothing.
    ///
    /// See the example of [`Loss`].
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        if self.fate.loss().is_none() && self.valid_until() <= Instant::now() {
            // Its end came a moment ago, or while the machine slept.
            self.handle.visit_known(&self.keys.name, |entry, _, at| entry.end_late(self.hold, at));
        }
        self.fate.loss()
    }

    /// Returns until when the hold is good if nothing renews it.
    ///
    /// It counts from before the command that granted or renewed the hold was sent, less drift, and is never later than `max_hold`
    /// allows. Renewals, [`extend`](Guard::extend) and nested holds that the server was asked for move it forward. It is in the past once
    /// the hold is lost.
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
        let seen = self.handle.table(|table, at| {
            let hold = table.entry_of(&self.keys)?.hold_of_guard(self.hold)?;
            Some(at.local(hold.end_of(self.level)))
        });
        seen.unwrap_or_else(Instant::now)
    }

    /// Makes the hold good for at least `lease` from now, in whole milliseconds.
    ///
    /// It never shortens the hold. A hold that is renewed stays renewed.
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
    /// [`Config`](ErrorKind::Config): a lease that is too short or too long; nothing was sent. [`Lost`](ErrorKind::Lost): the hold is
    /// over. [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied): the server did not answer within the node
    /// timeout (two of them after another command of the hold; with `replicas`, more), or refused; the hold is good at least until
    /// the earlier [`valid_until`](Guard::valid_until). [`Closed`](ErrorKind::Closed): after `close`, guards can only be released.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease may or may not have been extended.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        let lease = self
            .handle
            .config
            .lease("extend", lease)
            .and_then(|lease| self.handle.check_open().map(|()| lease))
            .map_err(|error| error.on(&self.keys.name))?;
        let limit = after(Instant::now(), self.handle.terms.patience);
        let extension = |entry: &mut LockEntry, no, waker: &Waker, now| {
            entry.begin_extension((self.hold, self.level), lease, no, waker, now)
        };
        self.renew(limit, extension).await
    }

    /// Asks the masters now whether the hold still stands.
    ///
    /// Use it right before a step that can't be undone: a payment, an email, a file that is overwritten. Since its last renewal the
    /// hold may have been deleted, evicted or forced away on the server, and this process may not know yet. `Ok` means that the hold
    /// stood at some time between the call and its answer; with several masters, on a majority of them. It promises nothing for the
    /// time after that: the step has to be done by [`valid_until`](Guard::valid_until), as without a check. Only a resource that
    /// refuses late writes, for example by a [fencing token](crate::FencedMutex), is safe from a process that stops between the check
    /// and the step.
    ///
    /// If the hold is renewed in the background, the check renews it too, so that it is good for a lease from now. A hold with a
    /// fixed lease is left as it is: nobody makes it longer. If the hold is gone, [`lost`](Guard::lost) reports that as well, to all
    /// guards of the hold.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{ErrorKind, Locks, Loss, Memory};
    /// let memory = Memory::new();
    /// let locks = Locks::builder().memory(&memory).connect().await?;
    /// # async fn read_balance() {}
    /// # async fn pay() {}
    /// let guard = locks.mutex("account:7").lock().await?;
    /// read_balance().await;
    /// guard.check().await?; // still ours, as the server has it
    /// pay().await;
    ///
    /// memory.lose("account:7"); // as if an operator had deleted the key
    /// let error = guard.check().await.unwrap_err();
    /// assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::Gone)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost): the hold is over. [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied): the
    /// server did not answer within the node timeout (two of them after another command of the hold; with `replicas`, more), or
    /// refused; with several masters, no majority answered. Nobody knows then whether the hold stands: don't do the step. The guard
    /// stays as it is, and the check may be repeated. [`Closed`](ErrorKind::Closed): after `close`, guards can only be released.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the hold stays, and its lease may or may not have been renewed.
    pub async fn check(&self) -> Result<()> {
        self.handle.check_open().map_err(|error| error.on(&self.keys.name))?;
        let limit = after(Instant::now(), self.handle.terms.patience);
        loop {
            let check =
                |entry: &mut LockEntry, no, waker: &Waker, now| entry.begin_check(self.hold, no, waker, now);
            self.renew(limit, check).await?;
            // 1. The check runs. 2. The lock is forced away, and this process is notified. 3. The answer to the check is read.
            let in_doubt = self.handle.visit(&self.keys, |entry, _, _| entry.is_in_doubt(self.hold));
            if !in_doubt {
                return Ok(());
            }
            if limit <= Instant::now() {
                return Err(self.stuck());
            }
        }
    }

    /// Gives the hold up to whoever [`resume`](crate::Mutex::resume)s the claim, in another process or in this one.
    ///
    /// The lock stays held. A lease that is renewed is renewed once more first. After that this process neither renews nor releases
    /// the hold: if nobody resumes it before the lease is over, the lock is free. So whoever gets the claim has to resume it by then:
    /// take the lock with a lease that is longer than the hand-over takes ([`Builder::lease`](crate::Builder::lease),
    /// [`fixed_lease`](crate::futures::Lock::fixed_lease)), or [`extend`](Guard::extend) it before. `max_hold` and `at_least` end
    /// with this guard, and are not carried over.
    ///
    /// See the example of [`Claim`].
    ///
    /// # Errors
    ///
    /// On any error the guard is dropped, which releases this level in the background. [`Misuse`](ErrorKind::Misuse): the hold has
    /// other levels, whose guards rely on it; or it has a fencing token, which can't be handed over. [`Lost`](ErrorKind::Lost): the
    /// hold is over. [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied): as for [`check`](Guard::check).
    /// [`Closed`](ErrorKind::Closed): after `close`, guards can only be released.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the guard is dropped with it, which releases this level.
    pub async fn into_claim(mut self) -> Result<Claim> {
        self.handle.check_open().map_err(|error| error.on(&self.keys.name))?;
        let first =
            self.handle.visit(&self.keys, |entry, _, _| entry.may_be_handed_over(self.hold, self.level));
        self.refuse_hand_over(&first)?;
        let limit = after(Instant::now(), self.handle.terms.patience);
        let check =
            |entry: &mut LockEntry, no, waker: &Waker, now| entry.begin_check(self.hold, no, waker, now);
        self.renew(limit, check).await?;
        // Commands that have become due meanwhile go first: a settle, a re-entry.
        let given = poll_fn(|cx| {
            let given = self
                .handle
                .visit(&self.keys, |entry, _, at| entry.hand_over(self.hold, self.level, cx.waker(), at));
            if given == HandOver::Wait { Poll::Pending } else { Poll::Ready(given) }
        });
        let given = timeout_at(limit, given).await.map_err(|_| self.stuck())?;
        self.refuse_hand_over(&given)?;
        self.released = true;
        Ok(Claim::new(self.field.clone(), self.keys.name.clone()))
    }

    fn refuse_hand_over(&self, answer: &HandOver) -> Result<()> {
        let message = match answer {
            HandOver::Done | HandOver::Wait => return Ok(()),
            HandOver::Lost(loss) => return Err(Error::lost(*loss).on(&self.keys.name)),
            HandOver::Nested(levels) => format!(
                "the hold has {levels} levels, and is handed over with one alone; release the others first, or take the lock as an owner \
                 of its own"
            ),
            HandOver::Fenced => {
                "the hold has a fencing token, and can't be handed over; take the lock by a plain `mutex`, or have the other process take it"
                    .to_owned()
            }
        };
        Err(Error::new(ErrorKind::Misuse, message).on(&self.keys.name))
    }

    /// Sends the renewal that `begin` begins, as soon as no other command of the hold is under way. Fails if one still is at `limit`.
    async fn renew(
        &self,
        limit: Instant,
        begin: impl Fn(&mut LockEntry, u64, &Waker, Instant) -> Option<Pending>,
    ) -> Result<()> {
        let free = poll_fn(|cx| {
            if let Some(loss) = self.loss() {
                return Poll::Ready(Err(Error::lost(loss).on(&self.keys.name)));
            }
            let pending =
                self.handle.visit(&self.keys, |entry, number, at| begin(entry, number(), cx.waker(), at.now));
            pending.map_or(Poll::Pending, |pending| Poll::Ready(Ok(pending)))
        });
        let pending = timeout_at(limit, free).await.unwrap_or_else(|_| Err(self.stuck()))?;
        match self.command(&pending).await? {
            // The hold may have ended while the answer was on its way, and a loss is final.
            Meaning::Done => self.loss().map_or(Ok(()), |loss| Err(Error::lost(loss).on(&self.keys.name))),
            Meaning::Lost(loss) => Err(Error::lost(loss).on(&self.keys.name)),
            Meaning::Void => Err(self.stuck()),
        }
    }

    fn stuck(&self) -> Error {
        // The command that it waited for may have been refused again and again.
        self.handle.outage(&self.keys, Duration::MAX).unwrap_or_else(|| {
            let message = "the hold could not be renewed in time: an earlier command of it has had no answer yet; try again";
            Error::new(ErrorKind::Unavailable, message).on(&self.keys.name)
        })
    }

    /// Keeps the lock from everybody else for `at_least` from now, whatever becomes of this guard.
    pub(super) fn keep(&self, at_least: Duration) {
        self.handle.visit(&self.keys, |entry, _, at| entry.keep(self.hold, at_least, at.now));
    }

    /// The fencing token of the hold, if it has one.
    pub(super) fn token(&self) -> Option<u64> {
        self.token
    }

    /// Returns the level of this hold at its grant: 1 is the outermost. It never changes.
    ///
    /// See the example of [`Guard`].
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth as usize
    }

    /// Returns the lock's name, without the prefix.
    ///
    /// See the example of [`Guard`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.keys.name
    }

    /// Returns the field that stands for this hold in Redis: `<uuid>:<id>`, after a [label](crate::Builder::label) and a `:` if there
    /// is one.
    ///
    /// Nested holds share it, and so do holds that passed from task to task inside this process
    /// ([`local_handoff`](crate::Builder::local_handoff)).
    ///
    /// It is for logs, and to compare with what `HGETALL` shows. See the example of [`Guard`].
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
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
        let owner = self.handle.table(|table, _| {
            let hold = table.entry_of(&self.keys)?.hold_of_guard(self.hold)?;
            hold.level(self.level).map(|level| level.owner.clone())
        });
        // It is always found: a level stays in its hold for as long as its guard lives.
        owner.unwrap_or_else(Owner::current)
    }
}

/// Waits for the loss of a level, which comes at its hold's end at the latest.
async fn loss(handle: Handle, keys: Arc<Keys>, (id, level): (u64, u64), fate: Arc<Fate>) -> Loss {
    loop {
        // Made before the fate is read. Otherwise: 1. It is read. 2. It changes. 3. This waits for a change that has already
        // happened.
        let changed = fate.notified();
        if let Some(loss) = fate.announced_loss() {
            return loss;
        }
        let end = handle.visit_known(&keys.name, |entry, _, at| {
            entry.end_late(id, at);
            entry.hold(id).map(|hold| hold.end_of(level))
        });
        match end.flatten() {
            // Another thread has found the loss and is about to count it, or this one has.
            _ if fate.loss().is_some() => {
                if fate.announced_loss().is_none() {
                    changed.await;
                }
            }
            // Sleeps by itself: the runtime of the background may have ended, or stand still.
            Some(end) => tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(end, || handle.moment()) => {}
            },
            // The guard is gone, and with it what could be lost.
            None => changed.await,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released && !self.ends_here() {
            // The level is out at once. The release is sent here, or by the background.
            self.handle.let_go(&self.keys, self.hold, self.level);
        }
        if self.notes.is_some() {
            self.end_notes();
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Guard");
        out.field("name", &self.name()).field("field", &self.field).field("depth", &self.depth);
        out.field("loss", &self.fate.loss()).finish_non_exhaustive()
    }
}
