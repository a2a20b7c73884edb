//! The handle for one lock.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::base::Failure;
use crate::client::call::CallOptions;
use crate::client::claim::Claim;
use crate::client::guard::Guard;
use crate::client::hold::Hold;
use crate::client::kind::{Fenced, Kind, Plain};
use crate::client::request::{AskOne, Request};
use crate::client::resume::resume;
use crate::client::run::Run;
use crate::error::{Error, ErrorKind, Result, shown};
use crate::holder::{Holder, WaitingProcess};
use crate::owner::Owner;
use crate::session::Handle;
use crate::table;
use crate::wire::keys::{self, Keys};
use crate::wire::{Reply, Rule};

/// A lock with a name. A handle is cheap to create and to clone, and holds nothing by itself.
///
/// All handles with the same name are the same lock, in this process and in all others that use the same Redis. It contains no value:
/// what it protects is in a database or a service.
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
pub struct Mutex<K: Kind = Plain> {
    handle: Handle,
    keys: Arc<Keys>,
    kind: PhantomData<K>,
}

impl Mutex {
    pub(super) fn new(handle: Handle, name: &str) -> Mutex {
        let keys = Arc::new(Keys::new(&handle.config.prefix, name));
        Mutex { handle, keys, kind: PhantomData }
    }

    /// Returns the same lock, with a fencing token for each hold.
    ///
    /// Use it if the resource refuses late writes: see [`Fenced`]. A plain `Mutex` in place of a fenced one does not compile:
    ///
    /// ```compile_fail,E0308
    /// use nestlock::{Fenced, Mutex};
    /// fn writes(stock: &Mutex<Fenced>) {}
    /// writes(&nestlock::Locks::in_memory().mutex("stock:42"));
    /// ```
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// let stock = locks.mutex("stock:42").fenced();
    /// let guard = stock.lock().await?;
    /// println!("write it with {}", guard.token());
    /// guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn fenced(self) -> Mutex<Fenced> {
        Mutex { handle: self.handle, keys: self.keys, kind: PhantomData }
    }

    /// Takes over a hold that another process gave up as a [`Claim`].
    ///
    /// The masters decide: the first process to ask moves the hold to a field of its own, in one step on each master, and all
    /// others are refused. So a claim can be used once. The guard is a hold of the current owner with one level. From then on it is
    /// renewed with the lease of this `Locks`, even if its lease was fixed before. Nobody else gets the lock in between.
    ///
    /// If the owner has a `lock` or `try_lock` under way at that moment, the two count as branches of one task. That request waits, and
    /// does not re-enter the resumed hold.
    ///
    /// See the example of [`Claim`].
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) with [`Loss::Gone`](crate::Loss::Gone): the claim was used before, its lease was over, or the lock
    /// was released by force; or several resumed it at once and none of them was first on a majority of the masters, which frees
    /// the lock. [`Misuse`](ErrorKind::Misuse): a claim of another lock, or a call outside a tokio runtime; nothing was sent.
    /// [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied): no answer within the node timeout (with several
    /// masters: from no majority), or a refusal. A hold that was moved is then ended, which frees the lock; if nothing was moved,
    /// the claim is still good. [`InvalidInput`](ErrorKind::InvalidInput): a bad name. [`Closed`](ErrorKind::Closed): the `Locks` was
    /// closed, or the runtime that it was connected on has ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a hold that its command moved is ended in the background, which frees the lock. If the command never
    /// reached a server, the claim is still good until its lease ends.
    pub async fn resume(&self, claim: &Claim) -> Result<Guard> {
        resume(self.handle.clone(), self.keys.clone(), claim).await
    }
}

impl Mutex<Fenced> {
    /// Returns the token of the hold that the current owner or an ancestor has, as far as this process knows. Sends nothing.
    ///
    /// Use it in code that is called under the hold but is not given the token. Returns `None` if there is no hold, if its loss is
    /// known, or if it was taken by a plain [`Mutex`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock").fenced();
    /// assert_eq!(stock.token(), None);
    /// let guard = stock.lock().await?;
    /// assert_eq!(stock.token(), Some(guard.token()));
    /// guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.held(|hold, _| hold.token()).flatten()
    }
}

impl<K: Kind> Mutex<K> {
    /// Returns the lock's name, without the prefix.
    ///
    /// ```
    /// assert_eq!(nestlock::Locks::in_memory().mutex("stock:42").name(), "stock:42");
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.keys.name
    }

    /// Waits for the lock, without a limit while the servers answer, and returns a guard. The hold is renewed until the guard is released or
    /// dropped.
    ///
    /// The hold belongs to the current owner itself, by default the tokio task: while the guard lives, further requests of the task
    /// re-enter. Two branches of one task that take bare guards look like the same owner; [`run`](Mutex::run) is correct there too.
    ///
    /// See [`Request`] for options, errors and cancel safety.
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
    pub fn lock(&self) -> Request<Guard<K>> {
        Request::new(self.request(None))
    }

    /// Tries to take the lock: once or, with [`within`](Request::within), for that long. Resolves to `None` if somebody else holds
    /// it.
    ///
    /// See [`Request`] for options, errors and cancel safety.
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
    pub fn try_lock(&self) -> Request<Option<Guard<K>>> {
        Request::new(self.request(Some(Duration::ZERO)))
    }

    /// Waits for the lock, runs work while it is held, and releases it.
    ///
    /// `work` is a closure that gets the [`Hold`], and is called once the lock is held. Its future runs as a child of the current owner:
    /// calls nested in it re-enter, branches beside it wait. If the hold is lost, the future is dropped. This is short for
    /// [`lock()`](Mutex::lock)[`.run(work)`](Request::run).
    ///
    /// `Ok` means that the work ended. It does not mean that the lock was held to the end of the work: a loss that is found only by the
    /// release is logged. See [`Run`] for what to do about that, for its errors, and for its cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// let work = async |_hold| stock.run(async |_hold| 41 + 1).await; // nested: it re-enters
    /// let left = stock.run(work).await??; // the lock's result, then the work's
    /// assert_eq!(left, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// A closure in a variable that calls methods of its hold has to name the type: `async |hold: Hold| …`. A plain closure that
    /// returns a future works too: `|_hold| recount(shelf)`. Work that is spawned must own what it uses: write `move`, and clone the mutex
    /// if the work uses it:
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// # async fn recount(_shelf: u32) {}
    /// let shelf = 7;
    /// tokio::spawn(stock.run(move |_hold| recount(shelf))).await.unwrap()
    /// # }
    /// ```
    #[track_caller]
    pub fn run<W, F>(&self, work: W) -> Run<Guard<K>, W>
    where
        W: FnOnce(Hold<K>) -> F,
        F: Future,
    {
        self.lock().run(work)
    }

    /// Returns whether **this caller** holds the lock: the current owner or one of its ancestors, as far as this process knows. Sends
    /// nothing.
    ///
    /// It is false once a loss is known. [`is_locked`](Mutex::is_locked) covers all owners, and asks Redis.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// assert!(!stock.is_held());
    /// assert!(stock.run(async |_| stock.is_held()).await?);
    /// # Ok(()) }
    /// ```
    #[must_use]
    #[doc(alias = "isHeldByCurrentThread")]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many levels of the hold belong to the current owner and its ancestors, as far as this process knows. Sends nothing.
    ///
    /// It is 0 once a loss is known. Dropped guards no longer count.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// let guard = stock.lock().await?;
    /// assert_eq!(stock.run(async |_| stock.hold_count()).await?, 2);
    /// assert_eq!(stock.hold_count(), 1);
    /// guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn hold_count(&self) -> usize {
        self.held(|_, levels| levels).unwrap_or(0)
    }

    /// Passes the hold of the current owner and its ancestors to `look`, and how many of its levels are theirs.
    pub(super) fn held<R>(&self, look: impl FnOnce(&table::Hold, usize) -> R) -> Option<R> {
        let owner = Owner::current();
        self.handle.table(|table, at| {
            let hold = table.entry_of(&self.keys)?.live().filter(|hold| at.now < hold.deadline())?;
            let lives = |level: &&table::Level| level.max_hold.is_none_or(|end| at.now < end.at());
            let levels = hold.levels_of(&owner).filter(lives).count();
            (levels > 0).then(|| look(hold, levels))
        })
    }

    /// Returns whether **anybody** holds the lock, in this process or another one. Asks Redis.
    ///
    /// [`is_held`](Mutex::is_held) returns whether this caller holds it.
    ///
    /// It may still be true right after a lease has run out: a hold ends earlier in this process than on the server, by the drift.
    ///
    /// The answer may be out of date when it arrives. To do something only if nobody else does it, take the lock with
    /// [`try_lock`](Mutex::try_lock).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// assert!(!stock.is_locked().await?);
    /// assert!(stock.run(|_| stock.is_locked()).await??);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotALock`](ErrorKind::NotALock): the key holds something else. [`Unavailable`](ErrorKind::Unavailable): no answer within the
    /// node timeout. [`Denied`](ErrorKind::Denied): a right is missing. [`InvalidInput`](ErrorKind::InvalidInput): a bad name.
    /// [`Closed`](ErrorKind::Closed): the `Locks` was closed. [`Misuse`](ErrorKind::Misuse): called outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    #[doc(alias = "isLocked")]
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.look(Rule::IsHeld).await?.is_some())
    }

    /// Returns how long the lock stays held if nobody renews it, or `None` if it is free. Asks Redis.
    ///
    /// With several masters that is the time until a majority of them may be free: a hold on a minority does not count, and a master
    /// that does not answer counts as held for ever. It waits for a slow master only if the answer could change the result by more than
    /// 1 %, or 10 ms if that is more.
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
    /// Same as [`is_locked`](Mutex::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn remaining_lease(&self) -> Result<Option<Duration>> {
        Ok(self.look(Rule::HeldFor).await?.map(|(left, _)| left))
    }

    /// Returns who holds the lock, or `None` if it is free. Asks Redis.
    ///
    /// With several masters it is the holder whose field a majority has, with a count and a lease that a majority has too. It is
    /// also `None` if no majority has the same one: after a split vote, or while the last answers to a grant or a release are under
    /// way, everyone may be refused a lock that nobody holds.
    ///
    /// While [`at_least`](Request::at_least) keeps the lock, this returns the process that released it, with a
    /// [`hold_id`](Holder::hold_id) that ends in `:0`.
    ///
    /// The answer may be out of date when it arrives. Use it for logs and for people: nothing that you do because of it is guarded
    /// by the lock.
    ///
    /// See the example of [`Holder`]. The Redis user needs [a right](crate::guide::operations#rights-of-a-least-privilege-user),
    /// `+hscan`.
    ///
    /// # Errors
    ///
    /// Same as [`is_locked`](Mutex::is_locked). [`NotALock`](ErrorKind::NotALock) also for a plain string, which other libraries use
    /// as a lock: it does not say who made it. [`is_locked`](Mutex::is_locked) counts it as a lock if it has a TTL.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn holder(&self) -> Result<Option<Holder>> {
        Ok(self.look(Rule::Who).await?.and_then(|(_, holder)| holder))
    }

    /// Returns which processes wait for the lock, in the order in which they get it; of a very long line the first 1,000. Asks Redis.
    ///
    /// It is the [line](crate::guide::waiting) that one master keeps. Without such a line the result is empty: with several
    /// masters, with [`Builder::fair`](crate::Builder::fair) off, and without the
    /// [rights](crate::guide::operations#rights-of-a-least-privilege-user) for it. Clients that do not know the line, such as
    /// Redisson, are not in it either. A process that has ended in the meantime stays until its turn comes. The requests of this
    /// process are in [`Locks::status`](crate::Locks::status).
    ///
    /// The answer may be out of date when it arrives. Use it for logs and for people.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Memory};
    /// let memory = Memory::new();
    /// let process = async |name| Locks::builder(&memory).holder_name(name).connect().await;
    /// let (ours, theirs) = (process("web-1").await?, process("web-2").await?);
    /// let guard = ours.mutex("stock:42").lock().await?;
    /// let waits = tokio::spawn(theirs.mutex("stock:42").lock());
    /// let stock = ours.mutex("stock:42");
    /// while stock.waiters().await?.is_empty() {
    ///     tokio::task::yield_now().await;
    /// }
    /// for process in stock.waiters().await? {
    ///     println!("waits: {process}"); // waits: web-2 for 0 s
    /// #   assert_eq!(process.to_string(), "web-2 for 0 s");
    ///     assert!(!process.is_here()); // of `theirs` it would be true
    /// }
    /// guard.release().await?;
    /// # waits.await.unwrap()?.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`is_locked`](Mutex::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn waiters(&self) -> Result<Vec<WaitingProcess>> {
        self.check().await?;
        let Some(line) = self.handle.timing.line else { return Ok(Vec::new()) };
        let reply = self.reply(self.handle.quorum.waiters(&self.keys, line).await)?;
        let Reply::Waiters(waiters) = reply else { return Ok(Vec::new()) };
        Ok(waiters.into_iter().map(|process| process.seen_by(&self.handle.uuid)).collect())
    }

    /// Frees the lock, whoever holds it. Returns `false` if it was free already.
    ///
    /// Use it if the holder is known to be gone and its lease is too long to wait for. Waiters are woken, and the holder's guard is
    /// lost. A holder that is still alive notices at once if somebody waits for the lock in its process or, on one server, if that process
    /// has waited for any lock before; otherwise at its next renewal. A key that is no lock, or a lock of another kind (a plain string, a
    /// read-write lock of Redisson), is left alone, and the call fails. To tell them apart the Redis user needs
    /// [a right](crate::guide::operations#rights-of-a-least-privilege-user), `+hscan`.
    ///
    /// With several masters it frees the lock on those that answer, which must be a majority. **A master that is away at that
    /// moment is not asked again**: if it were asked later, it would free the lock of another process that has taken it by then.
    /// The old hold's field stays on that master until its lease ends, or until its holder, which may be alive after all, ends it.
    /// Meanwhile others get the lock from the majority. That master refuses the lock to everybody until the old lease ends. You notice
    /// only if other masters fail and its vote is needed: [`lock`](Mutex::lock) then waits for the rest of that lease. No call reports
    /// this: [`is_locked`](Mutex::is_locked) asks for a majority. `HGETALL` of the lock's key on that master shows the field, and `HDEL` of
    /// that one field is safe: no later hold of this crate has the same field. A second `force_release` is not safe: it frees the lock of
    /// the process that holds it by then.
    ///
    /// A server that hangs after it has received the command runs it once it resumes, and frees the lock of the process that holds
    /// it there by then. That holder is notified, or puts its field back if a majority still has it. A holder also puts its field back
    /// if the only masters that answer were restarted within [`restart_delay`](crate::Builder::restart_delay), since they may have forgotten
    /// it. In that case call `force_release` again after that time.
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
    /// Same as [`holder`](Mutex::holder). After [`Unavailable`](ErrorKind::Unavailable) the lock may have been freed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not have been freed.
    pub async fn force_release(&self) -> Result<bool> {
        self.check().await?;
        let was_held = self.reply(self.handle.force(&self.keys).await)? == Reply::Done;
        if was_held {
            // If the hold was this process's, it is checked at once. Waiters of this process are woken.
            self.handle.visit_known(&self.keys.name, |entry, at| {
                entry.doubt_all(at.now);
                entry.head_asks_once_more(at.now);
            });
        }
        Ok(was_held)
    }

    /// Returns for how long the lock is held, and who holds it as far as this look reports that; `None` if it is free.
    async fn look(&self, rule: Rule) -> Result<Option<(Duration, Option<Holder>)>> {
        self.check().await?;
        let reply = self.reply(self.handle.quorum.look(&self.keys, rule).await)?;
        let Reply::Busy(left, holder) = reply else { return Ok(None) };
        Ok(Some((left, holder.map(|holder| *holder))))
    }

    async fn check(&self) -> Result<()> {
        let checked = keys::check(&self.keys.name, &self.handle.config.prefix);
        checked.and_then(|()| self.handle.check_call()).map_err(|error| error.on(&self.keys.name))?;
        self.handle.opening(None).await.map_err(|error| error.on(&self.keys.name))
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
    pub(super) fn request(&self, within: Option<Duration>) -> AskOne {
        AskOne::new(self.handle.clone(), self.keys.clone(), CallOptions::new(within, K::FENCED), None)
    }
}

impl<K: Kind> fmt::Debug for Mutex<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("name", &self.name()).finish_non_exhaustive()
    }
}
