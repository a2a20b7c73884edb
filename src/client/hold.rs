//! `Hold`: what the work of a `run` can see of its hold, and do with it. A guard can do the same, and can also release the hold.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::base::{Lease, Moment, after};
use crate::client::kind::{Fenced, Kind, Plain, UNFENCED};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::owner::Owner;
use crate::session::clock::sleep_until;
use crate::session::{Handle, Sent};
use crate::table::{self, Grant, Level, LockEntry, Meaning};
use crate::wire::{Pending, Reply};

/// The hold of a `run`, as its work sees it. [`Mutex::run`](crate::Mutex::run) passes it to the work, and
/// [`Guard::hold`](crate::Guard::hold) returns that of a guard.
///
/// It holds no lock itself: the run releases the lock when the work has ended, even if a copy of this value lives on. Such a copy only keeps
/// the connections of its [`Locks`](crate::Locks) open. A function for fenced holds and plain ones takes a `&Hold<K>` with `K: Kind`.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// use std::time::Duration;
/// # async fn read_balance() {}
/// # async fn pay(_token: u64) {}
/// let account = locks.mutex("account:7").fenced();
/// account.run(async |hold| {
///     read_balance().await;
///     hold.extend(Duration::from_secs(60)).await?; // the payment may take a minute
///     hold.check().await?; // still ours, as the server has it
///     pay(hold.token()).await;
///     nestlock::Result::Ok(())
/// }).await? // the lock's result
/// # }
/// ```
#[derive(Clone)]
pub struct Hold<K: Kind = Plain> {
    held: Held,
    kind: PhantomData<K>,
}

/// A level of a hold, as this process knows it: what a [`Hold`] and a guard of either kind share.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) handle: Handle,
    pub(super) grant: Arc<Grant>,
}

impl Deref for Held {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.grant
    }
}

impl<K: Kind> Hold<K> {
    /// Fails if a fenced hold is requested and the level has no token.
    pub(super) fn of(held: &Held) -> Result<Hold<K>> {
        held.check_kind::<K>().map(|()| Hold::new(held))
    }

    pub(super) fn new(held: &Held) -> Hold<K> {
        Hold { held: held.clone(), kind: PhantomData }
    }

    /// Returns the lock's name, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.held.keys.name
    }

    /// Returns the id of this hold, which is its field in Redis. See [`Guard::hold_id`](crate::Guard::hold_id).
    #[must_use]
    pub fn hold_id(&self) -> &str {
        &self.held.field
    }

    /// Returns whether the hold is over, as far as this process knows now: it is lost, or its run has ended. Sends nothing.
    ///
    /// Work that waits at an `.await` need not ask, since it is dropped when the hold is lost. Tasks that it has spawned must ask,
    /// and so must code that computes or blocks.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// let hold = stock.run(async |hold| {
    ///     assert!(!hold.is_over());
    ///     hold
    /// });
    /// assert!(hold.await?.is_over()); // the lock is free
    /// # Ok(()) }
    /// ```
    #[doc(alias = "is_lost")]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.valid_until() <= Instant::now()
    }

    /// Returns until when the hold is good if nothing renews it. See [`Guard::valid_until`](crate::Guard::valid_until).
    ///
    /// It is never in the future once the hold is lost, or its run has ended.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// # async fn write(_within: std::time::Duration) {}
    /// stock.run(async |hold| write(hold.valid_until() - tokio::time::Instant::now()).await).await
    /// # }
    /// ```
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.held.valid_until()
    }

    /// Makes the hold good for at least `lease` from now, in whole milliseconds, but not beyond the end that
    /// [`max_hold`](crate::futures::Request::max_hold) sets. It never shortens the hold. With several masters, `lease` must not be longer
    /// than [`restart_delay`](crate::Builder::restart_delay), which is the builder's lease by default.
    ///
    /// See the example of [`Hold`].
    ///
    /// # Errors
    ///
    /// Same as [`Guard::extend`](crate::Guard::extend). Also [`Misuse`](ErrorKind::Misuse) if the run has ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease may or may not have been extended.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        self.held.extend(lease).await
    }

    /// Asks the masters now whether the hold still stands.
    ///
    /// [`Guard::check`](crate::Guard::check) describes what a check promises, and what it does not. See the example of [`Hold`].
    ///
    /// # Errors
    ///
    /// Same as [`Guard::check`](crate::Guard::check). Also [`Misuse`](ErrorKind::Misuse) if the run has ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the hold stays, and its lease may or may not have been renewed.
    pub async fn check(&self) -> Result<()> {
        self.held.check().await
    }
}

impl Held {
    /// Fails if a fenced level is required and it has no token.
    pub(super) fn check_kind<K: Kind>(&self) -> Result<()> {
        match K::FENCED && self.token.is_none() {
            true => Err(Error::new(ErrorKind::Misuse, UNFENCED).on(&self.keys.name)),
            false => Ok(()),
        }
    }

    /// Returns the token of a fenced level.
    pub(super) fn token(&self) -> u64 {
        // The token is never missing, since `check_kind` was called before.
        self.token.unwrap_or_default()
    }

    pub(super) fn valid_until(&self) -> Instant {
        self.look(|hold, _, at| at.local(hold.deadline_of(self.level))).unwrap_or_else(Instant::now)
    }

    /// Returns the owner that has the level now.
    pub(super) fn owner(&self) -> Owner {
        // The level is always found, since it stays in its hold for as long as its guard lives.
        self.look(|_, level, _| level.owner.clone()).unwrap_or_else(Owner::current)
    }

    /// Looks at the level and its hold, if they are still here.
    fn look<R>(&self, look: impl FnOnce(&table::Hold, &Level, Moment) -> R) -> Option<R> {
        self.handle.table(|table, at| {
            let hold = table.entry_of(&self.keys)?.hold_of_guard(self.hold)?;
            hold.level(self.level).map(|level| look(hold, level, at))
        })
    }

    pub(super) async fn extend(&self, lease: Duration) -> Result<()> {
        let lease = self.handle.config.lease("extend", lease).map_err(|error| error.on(&self.keys.name))?;
        self.check_call()?;
        self.confirm(Some(lease), self.limit()).await
    }

    pub(super) async fn check(&self) -> Result<()> {
        self.check_call()?;
        let limit = self.limit();
        loop {
            self.confirm(None, limit).await?;
            // The answer may be out of date: 1. The check runs. 2. The lock is released by force, and this process is notified. 3. The
            // answer to the check is read.
            let in_doubt = self.handle.visit(&self.keys, |entry, _| entry.is_in_doubt(self.hold));
            if !in_doubt {
                return Ok(());
            }
            if limit <= Instant::now() {
                return Err(self.stuck());
            }
        }
    }

    pub(super) fn check_call(&self) -> Result<()> {
        self.handle.check_call().map_err(|error| error.on(&self.keys.name))
    }

    /// Returns when a command of this hold that begins now is given up.
    pub(super) fn limit(&self) -> Instant {
        after(Instant::now(), self.handle.timing.patience)
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        if self.signal.loss().is_none() && self.valid_until() <= Instant::now() {
            // This reports an end that came a moment ago, or while the machine slept.
            self.handle.visit_known(&self.keys.name, |entry, at| entry.lose_late(self.hold, at));
        }
        self.signal.loss()
    }

    /// Waits for the loss of the level, which comes at its hold's end at the latest. The future borrows nothing.
    pub(super) fn watch(&self) -> impl Future<Output = Loss> + Send + use<> {
        let held = self.clone();
        async move {
            loop {
                // Made before the signal is read. Otherwise: 1. The signal is read. 2. It changes. 3. This waits for a change that
                // has already happened.
                let changed = held.signal.notified();
                if let Some(loss) = held.signal.announced_loss() {
                    return loss;
                }
                let end = held.handle.visit_known(&held.keys.name, |entry, at| {
                    entry.lose_late(held.hold, at);
                    entry.hold(held.hold).map(|hold| hold.deadline_of(held.level))
                });
                match end.flatten() {
                    // The loss is known, and its finder is about to count it.
                    _ if held.signal.loss().is_some() => {
                        if held.signal.announced_loss().is_none() {
                            changed.await;
                        }
                    }
                    // This has a timer of its own, since the runtime of the background may have ended or be stopped.
                    Some(end) => tokio::select! {
                        biased;
                        () = changed => {}
                        () = sleep_until(end, || held.handle.moment()) => {}
                    },
                    // The guard is gone, so nothing can be lost any more.
                    None => changed.await,
                }
            }
        }
    }

    /// Returns whether its level has not been released yet.
    fn is_known(&self, entry: &LockEntry) -> bool {
        entry.hold_of_guard(self.hold).is_some_and(|hold| hold.level(self.level).is_some())
    }

    /// Returns the error of a call for a level that has been released.
    fn over(&self) -> Error {
        let message = "the run or guard that this hold belongs to is gone; use the hold only while it lasts";
        Error::new(ErrorKind::Misuse, message).on(&self.keys.name)
    }

    pub(super) fn lost(&self, loss: Loss) -> Error {
        Error::lost(loss).on(&self.keys.name)
    }

    /// Sends a command of this hold, and reports its outcome to the entry; the outcome is unknown if the future is dropped before
    /// the answer.
    pub(super) async fn command(&self, pending: &Pending) -> Result<Meaning> {
        let mut sent = Sent::new(&self.handle, pending);
        let (verdict, stragglers) = self.handle.ask(pending).await;
        sent.is_armed = false;
        let at = match verdict.result {
            // The level was held until then, however long the machine has slept since.
            Ok(Reply::Done | Reply::Ended(_)) if pending.is_end() => self.handle.glance(Instant::now()),
            _ => self.handle.moment(),
        };
        let mut others_wait = false;
        let meaning = self.handle.visit_at(at, &self.keys, |entry, at| {
            others_wait = entry.others_wait_for_command();
            entry.conclude(pending, verdict.answer(), verdict.spread, at)
        });
        // Dropped after the entry was updated, and before anything is awaited: what is left of the command goes on without this future.
        drop(stragglers);
        // Ready in the next poll if others wait. Otherwise: 1. Two branches of a task call `check` again and again. 2. Each answer wakes
        // both, and the branch that has asked asks again in the same poll. 3. The other one never gets its turn, and fails though the
        // server answers.
        poll_fn(|cx| match std::mem::take(&mut others_wait) {
            true => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            false => Poll::Ready(()),
        })
        .await;
        verdict.result.map(|_| meaning).map_err(|failure| failure.error)
    }

    /// Makes the masters confirm the hold as soon as no other command of it is under way: for the longer lease in `extends`, or else for
    /// the rest of its lease. Fails if another command is still under way at `limit`.
    pub(super) async fn confirm(&self, extends: Option<Lease>, limit: Instant) -> Result<()> {
        let extends = extends.map(|lease| (self.level, lease));
        let free = poll_fn(|cx| {
            if let Some(loss) = self.loss() {
                return Poll::Ready(Err(self.lost(loss)));
            }
            let begun = self.handle.visit(&self.keys, |entry, at| {
                // Nothing is begun for a hold that ends, since the waker would never be called.
                let command_id = self.handle.numbers.next();
                self.is_known(entry)
                    .then(|| entry.begin_renewal(self.hold, extends, command_id, cx.waker(), at.now))
            });
            match begun {
                Some(Some(pending)) => Poll::Ready(Ok(pending)),
                Some(None) => Poll::Pending,
                None => Poll::Ready(Err(self.over())),
            }
        });
        let pending = timeout_at(limit, free).await.unwrap_or_else(|_| Err(self.stuck()))?;
        match self.command(&pending).await? {
            // The hold may have ended while the answer was on its way, and a loss is final.
            Meaning::Done => self.loss().map_or(Ok(()), |loss| Err(self.lost(loss))),
            Meaning::Lost(loss) => Err(self.lost(loss)),
            Meaning::Void => {
                let known = self.handle.visit(&self.keys, |entry, _| self.is_known(entry));
                Err(if known { self.stuck() } else { self.over() })
            }
        }
    }

    pub(super) fn stuck(&self) -> Error {
        // The command that it waited for may have been refused again and again.
        self.handle.outage(&self.keys, Duration::MAX).unwrap_or_else(|| {
            let message = "the hold could not be renewed in time: an earlier command of it has had no answer yet; try again";
            Error::new(ErrorKind::Unavailable, message).on(&self.keys.name)
        })
    }
}

/// Converts a fenced hold for code that treats both kinds alike, and does not need the token.
impl From<Hold<Fenced>> for Hold {
    fn from(hold: Hold<Fenced>) -> Hold {
        Hold { held: hold.held, kind: PhantomData }
    }
}

impl Hold<Fenced> {
    /// Returns the fencing token of this hold. It never changes. See [`Guard::token`](crate::Guard::token).
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.token()
    }
}

impl<K: Kind> fmt::Debug for Hold<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Hold");
        out.field("name", &self.name()).field("field", &self.held.field);
        if let Some(token) = self.held.token.filter(|_| K::FENCED) {
            out.field("token", &token);
        }
        out.field("loss", &self.held.signal.loss()).finish_non_exhaustive()
    }
}
