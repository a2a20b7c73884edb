//! The handle of a lock with fencing tokens.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::client::mutex::Mutex;
use crate::client::request::{FencedLock, FencedTryLock};
use crate::client::run::FencedRun;
use crate::error::Result;
use crate::holder::{Holder, WaitingProcess};

/// A lock whose holds have fencing tokens. [`Mutex::fenced`] creates it.
///
/// A token is a number that is greater than that of every earlier hold of this lock, whoever had it. A resource that remembers the
/// highest one that it has seen, and refuses a write with a lower one, is safe from a holder that went on after its lease was over,
/// because it was paused or cut off. [`guide::fencing`](crate::guide::fencing) describes when a token is needed and how it is
/// checked.
///
/// It is the same lock as the [`Mutex`] of this name, and re-enters like it. A re-entry has the token of its hold. If the hold was
/// taken by a plain [`Mutex`] it has no token, and the re-entry is an error of kind [`Misuse`](crate::ErrorKind::Misuse): everybody
/// who takes a lock that guards such a resource has to take it fenced.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// let stock = locks.mutex("stock:42").fenced();
/// let first = stock.run(|token| async move {
///     // goes along with each write, and is checked where it is written
///     token
/// });
/// let first = first.await?;
///
/// let guard = stock.lock().await?;
/// assert!(guard.token() > first);
/// assert_eq!(stock.run(async |token| token).await?, guard.token()); // the same hold
/// guard.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct FencedMutex(Mutex);

impl Mutex {
    /// Returns the same lock, with a fencing token for each hold.
    ///
    /// For a resource that refuses late writes: see [`FencedMutex`]. A plain `Mutex` in place of a `FencedMutex` does not compile:
    ///
    /// ```compile_fail,E0308
    /// fn writes(stock: &nestlock::FencedMutex) {}
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
    pub fn fenced(self) -> FencedMutex {
        FencedMutex(self)
    }
}

impl FencedMutex {
    /// Returns the lock's name, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Waits for the lock like [`Mutex::lock`]. The guard has a [`token`](crate::FencedGuard::token).
    ///
    /// See [`FencedLock`] for options, errors and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock").fenced();
    /// # async fn write(_left: u32, _token: u64) {}
    /// let guard = stock.lock().await?;
    /// write(41, guard.token()).await;
    /// guard.release().await
    /// # }
    /// ```
    #[track_caller]
    pub fn lock(&self) -> FencedLock {
        FencedLock(self.0.request(None, true))
    }

    /// Tries to take the lock like [`Mutex::try_lock`]. Resolves to `None` if somebody else holds it.
    ///
    /// See [`FencedTryLock`] for options, errors and cancel safety.
    #[track_caller]
    pub fn try_lock(&self) -> FencedTryLock {
        FencedTryLock(self.0.request(Some(Duration::ZERO), true))
    }

    /// Waits for the lock, runs the future that `work` makes from the token, and releases the lock: [`Mutex::run`] with a token.
    ///
    /// `work` is called once the lock is held, as the owner that its future then runs as. This is short for
    /// [`lock()`](FencedMutex::lock)[`.run(work)`](FencedLock::run).
    ///
    /// See [`FencedRun`] for errors and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock").fenced();
    /// # async fn write(_left: u32, _token: u64) {}
    /// stock.run(|token| async move { write(41, token).await }).await
    /// # }
    /// ```
    #[track_caller]
    pub fn run<W, F>(&self, work: W) -> FencedRun<W, F>
    where
        W: FnOnce(u64) -> F,
        F: Future,
    {
        self.lock().run(work)
    }

    /// Returns the token of the hold that the current owner or an ancestor has, as far as this process knows. Sends nothing.
    ///
    /// For code that is called under the hold but is not given the token. `None` if there is no hold, if its loss is known, or if it
    /// was taken by a plain [`Mutex`].
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
        self.0.held(|hold, _| hold.token()).flatten()
    }

    /// Same as [`Mutex::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// Same as [`Mutex::hold_count`].
    #[must_use]
    pub fn hold_count(&self) -> usize {
        self.0.hold_count()
    }

    /// Same as [`Mutex::is_locked`].
    ///
    /// # Errors
    ///
    /// Same as [`Mutex::is_locked`].
    pub async fn is_locked(&self) -> Result<bool> {
        self.0.is_locked().await
    }

    /// Same as [`Mutex::remaining_lease`].
    ///
    /// # Errors
    ///
    /// Same as [`Mutex::is_locked`].
    pub async fn remaining_lease(&self) -> Result<Option<Duration>> {
        self.0.remaining_lease().await
    }

    /// Same as [`Mutex::holder`].
    ///
    /// # Errors
    ///
    /// Same as [`Mutex::holder`].
    pub async fn holder(&self) -> Result<Option<Holder>> {
        self.0.holder().await
    }

    /// Same as [`Mutex::waiters`].
    ///
    /// # Errors
    ///
    /// Same as [`Mutex::waiters`].
    pub async fn waiters(&self) -> Result<Vec<WaitingProcess>> {
        self.0.waiters().await
    }

    /// Same as [`Mutex::force_release`].
    ///
    /// # Errors
    ///
    /// Same as [`Mutex::force_release`].
    pub async fn force_release(&self) -> Result<bool> {
        self.0.force_release().await
    }
}

impl fmt::Debug for FencedMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedMutex").field("name", &self.name()).finish_non_exhaustive()
    }
}
