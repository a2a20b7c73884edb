//! The handle of one lock.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::base::Failure;
use crate::client::acquire::AcquireOptions;
use crate::client::claim::Claim;
use crate::client::guard::Guard;
use crate::client::request::{Lock, Request, TryLock};
use crate::client::resume::resume;
use crate::client::run::Run;
use crate::error::{Error, ErrorKind, Result, shown};
use crate::holder::Holder;
use crate::owner::Owner;
use crate::session::Handle;
use crate::table::{Hold, Level};
use crate::wire::keys::{self, Keys};
use crate::wire::{Reply, Rule};

/// A lock by its name: cheap to make and to clone. A handle holds nothing.
///
/// All handles of one name are one lock, in this process and in all others that use the same Redis. It guards no value: what
/// it protects is in a database or a service.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// let (one, two) = (locks.mutex("stock:42"), locks.mutex("stock:42"));
/// let guard = one.lock().await?;
/// assert!(two.is_held()); // the same lock, held by this task
/// guard.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct Mutex {
    handle: Handle,
    keys: Arc<Keys>,
}

impl Mutex {
    pub(super) fn new(handle: Handle, name: &str) -> Mutex {
        let keys = Arc::new(Keys::new(&handle.config.prefix, name));
        Mutex { handle, keys }
    }

    /// The lock's name, without the prefix.
    ///
    /// ```
    /// assert_eq!(nestlock::Locks::in_memory().mutex("stock:42").name(), "stock:42");
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.keys.name
    }

    /// Asks for the lock, for as long as it takes. The hold is renewed until its guard goes.
    ///
    /// The hold belongs to the current owner itself, by default the tokio task: what the task does while the guard lives
    /// re-enters. Two branches of one task that take bare guards look like one owner; [`run`](Mutex::run) is right there too.
    ///
    /// See [`Lock`] for options, errors and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// use std::time::Duration;
    /// let guard = stock.lock().within(Duration::from_secs(5)).await?;
    /// // … the work …
    /// guard.release().await
    /// # }
    /// ```
    #[track_caller]
    pub fn lock(&self) -> Lock {
        Lock(self.request(None, false))
    }

    /// Asks once, or for as long as [`within`](TryLock::within) allows. Resolves to `None` if somebody else holds the lock.
    ///
    /// See [`TryLock`] for options, errors and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// let Some(guard) = stock.try_lock().await? else {
    ///     return Ok(()); // somebody else holds it
    /// };
    /// guard.release().await
    /// # }
    /// ```
    #[track_caller]
    pub fn try_lock(&self) -> TryLock {
        TryLock(self.request(Some(Duration::ZERO), false))
    }

    /// Waits for the lock, runs `work` while it is held, and releases it.
    ///
    /// The work runs as a child of the current owner: calls nested in it re-enter, branches beside it wait. If the hold is
    /// lost, the work is dropped. Short for [`lock()`](Mutex::lock)[`.run(work)`](Lock::run).
    ///
    /// See [`Run`] for its result and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// let work = async { stock.run(async { 41 + 1 }).await }; // nested: it re-enters
    /// let left = stock.run(work).await??; // the lock's result, then the work's
    /// assert_eq!(left, 42);
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn run<F: Future>(&self, work: F) -> Run<F> {
        self.lock().run(work)
    }

    /// Whether the current owner or one of its ancestors holds the lock, by what this process knows. Sends nothing.
    ///
    /// False after a loss that is known. [`is_locked`](Mutex::is_locked) covers all owners, and asks Redis.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// assert!(!stock.is_held());
    /// assert!(stock.run(async { stock.is_held() }).await?);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many holds the current owner and its ancestors have, by what this process knows. Sends nothing.
    ///
    /// 0 after a loss that is known. Guards that were dropped don't count any more.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// let guard = stock.lock().await?;
    /// assert_eq!(stock.run(async { stock.hold_count() }).await?, 2);
    /// assert_eq!(stock.hold_count(), 1);
    /// guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn hold_count(&self) -> usize {
        self.held(|_, levels| levels).unwrap_or(0)
    }

    /// The hold of the current owner and its ancestors, and how many levels of it are theirs.
    pub(super) fn held<R>(&self, look: impl FnOnce(&Hold, usize) -> R) -> Option<R> {
        let owner = Owner::current();
        self.handle.table(|table, at| {
            let hold = table.entry_of(&self.keys)?.live().filter(|hold| at.now < hold.end())?;
            let lives = |level: &&Level| level.max_hold.is_none_or(|end| at.now < end.at());
            let levels = hold.levels_of(&owner).filter(lives).count();
            (levels > 0).then(|| look(hold, levels))
        })
    }

    /// Whether anybody holds the lock: asks Redis.
    ///
    /// Right after a lease has run out it may still be true: a hold ends in this process earlier than on the server, by the drift.
    ///
    /// The answer may be out of date when it arrives. To do something only if nobody else does, take the lock by
    /// [`try_lock`](Mutex::try_lock).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// assert!(!stock.is_locked().await?);
    /// assert!(stock.run(stock.is_locked()).await??);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotALock`](ErrorKind::NotALock): the key holds something else. [`Unavailable`](ErrorKind::Unavailable): no answer
    /// within the node timeout. [`Denied`](ErrorKind::Denied), [`Config`](ErrorKind::Config), [`Closed`](ErrorKind::Closed).
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.look(Rule::IsHeld).await?.is_some())
    }

    /// How long the lock stays held if nobody renews it; `None`: it is free. Asks Redis.
    ///
    /// Over several masters that is the time until a majority of them may be free: a hold on a minority does not count, and a
    /// master that does not answer counts as held for ever. A slow master is waited for only where its answer may change the
    /// result by more than 1 % of it, or 10 ms if that is more.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// assert_eq!(stock.remaining_lease().await?, None);
    /// let guard = stock.lock().await?;
    /// assert!(stock.remaining_lease().await?.is_some_and(|left| left.as_secs() <= 30));
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Mutex::is_locked).
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    pub async fn remaining_lease(&self) -> Result<Option<Duration>> {
        self.look(Rule::HeldFor).await
    }

    /// Who holds the lock; `None`: it is free. Asks Redis.
    ///
    /// Over several masters it is the holder whose field a majority has, with a count and a lease that a majority has too. `None` also
    /// where no majority has the same: after a split vote, or while the last answers to a grant or a release are under way, the lock may
    /// be refused to all and be nobody's.
    ///
    /// The answer may be out of date when it arrives. It is for logs and for people: what is done by its answer is not guarded.
    ///
    /// The example of [`Holder`] has it. The user needs [a right](crate::guide::operations#rights-of-a-least-privilege-user), `+hscan`.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Mutex::is_locked). [`NotALock`](ErrorKind::NotALock) also for a plain string, as other libraries make locks:
    /// it does not say who made it. [`is_locked`](Mutex::is_locked) counts it as a lock where it has a TTL.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    pub async fn holder(&self) -> Result<Option<Holder>> {
        self.check()?;
        match self.reply(self.handle.quorum.look(&self.keys, Rule::Who).await)? {
            Reply::Busy(_, holder) => Ok(holder.map(|holder| *holder)),
            _ => Ok(None),
        }
    }

    /// Frees the lock, whoever holds it. Returns false if it was free.
    ///
    /// For a lock whose holder is known to be gone, and its lease too long to wait for. Waiters wake, the holder's guard is
    /// lost. A key that is no lock, or a lock of another kind (a plain string, a read-write lock of Redisson), is left alone, and
    /// the call fails. To tell them apart the user needs [a right](crate::guide::operations#rights-of-a-least-privilege-user), `+hscan`.
    ///
    /// Over several masters it frees the lock on those that answer, which have to be a majority. **A master that is away at that
    /// moment is not asked again**: asked later, it would free the lock of whoever has taken it by then. The old hold's field stays
    /// there until its lease ends, or until its holder ends it, which may live after all. Others get the lock from the majority
    /// meanwhile. But that master refuses it: where so many others fail that it is needed, a [`lock`](Mutex::lock) waits for the rest of
    /// that lease. No call reports this: [`is_locked`](Mutex::is_locked) asks for a majority. `HGETALL` of the lock's key at that
    /// master shows the field, and `HDEL` of that one field is safe: no later hold of this crate has the same. A second
    /// `force_release` is not: it frees the lock of whoever holds it by then.
    ///
    /// A server that has received the command and hangs runs it when it goes on, and frees the lock of whoever holds it there by then.
    /// That holder is notified, or puts its field back where a majority still has it.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// let guard = stock.lock().await?;
    /// assert!(stock.force_release().await?);
    /// assert_eq!(guard.lost().await, nestlock::Loss::Gone);
    /// assert!(!stock.force_release().await?); // it is free
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`holder`](Mutex::holder). After [`Unavailable`](ErrorKind::Unavailable) the lock may have been freed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may have been freed or not.
    pub async fn force_release(&self) -> Result<bool> {
        self.check()?;
        match self.reply(self.handle.force(&self.keys).await)? {
            Reply::Done => {
                // A hold of this process, if it was one, is asked for at once, and its waiters are woken.
                self.handle.visit_known(&self.keys.name, |entry, _, at| {
                    entry.ask_all(at.now);
                    entry.freed(at.now);
                });
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Goes on with a hold that another process gave up as a [`Claim`].
    ///
    /// The masters are asked: whoever is first moves the hold to a field of its own, in one step on each master, and everybody else is
    /// refused. So a claim is good once. The guard is a hold of the current owner with one level, and is renewed from now on, by the lease
    /// of this `Locks`, also where the lease was a fixed one before. Nobody else gets the lock in between.
    ///
    /// A bare request of the same owner that is under way meanwhile is another branch of it, as beside another request: it waits.
    ///
    /// The example of [`Claim`] has it.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) with [`Loss::Gone`](crate::Loss::Gone): the claim was used before, or its lease was over, or the lock was
    /// forced away; or several resumed it at once, and none of them was first at a majority of the masters, which frees the lock.
    /// [`Misuse`](ErrorKind::Misuse): a claim of another lock; nothing was sent. [`Unavailable`](ErrorKind::Unavailable),
    /// [`Denied`](ErrorKind::Denied): no answer within the node timeout, of several masters none by a majority, or a refusal. What was
    /// moved is ended then, and frees the lock; where nothing was, the claim is still good. [`Config`](ErrorKind::Config): a bad name.
    /// [`Closed`](ErrorKind::Closed): the `Locks` was closed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have moved is ended in the background, which frees the lock.
    pub async fn resume(&self, claim: &Claim) -> Result<Guard> {
        resume(self.handle.clone(), self.keys.clone(), claim).await
    }

    async fn look(&self, rule: Rule) -> Result<Option<Duration>> {
        self.check()?;
        match self.reply(self.handle.quorum.look(&self.keys, rule).await)? {
            Reply::Busy(left, _) => Ok(Some(left)),
            _ => Ok(None),
        }
    }

    fn check(&self) -> Result<()> {
        let checked = keys::check(&self.keys.name, &self.handle.config.prefix);
        checked.and_then(|()| self.handle.check_open()).map_err(|error| error.on(&self.keys.name))
    }

    fn reply(&self, answer: Result<Reply, Failure>) -> Result<Reply> {
        match answer {
            Ok(Reply::NotALock(found)) => {
                let key = shown(&self.keys.key);
                let message = format!(
                    "the key `{key}` holds something that is no lock of this kind: {found}; it is left untouched"
                );
                Err(Error::new(ErrorKind::NotALock, message).on(&self.keys.name))
            }
            Ok(reply) => Ok(reply),
            Err(failure) => {
                self.handle.measure_failure(&self.keys.name, &failure.error);
                Err(failure.error)
            }
        }
    }

    #[track_caller]
    pub(super) fn request(&self, within: Option<Duration>, fenced: bool) -> Request {
        let (handle, keys) = (self.handle.clone(), self.keys.clone());
        Request::new(AcquireOptions::new(handle, keys, within, fenced))
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("name", &self.name()).finish_non_exhaustive()
    }
}
