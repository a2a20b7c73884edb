//! The handle of several locks with fencing tokens.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::client::several::fenced_guards::Tokens;
use crate::client::several::mutexes::Mutexes;
use crate::client::several::requests::{FencedLockAll, FencedTryLockAll};
use crate::client::several::run::FencedRunAll;

/// Several locks whose holds have fencing tokens, one for each name. [`Mutexes::fenced`] creates it.
///
/// Each is the same lock as the [`FencedMutex`](crate::FencedMutex) of its name, and is waited for as with [`Mutexes`].
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// # async fn write(_account: &str, _balance: u32, _token: u64) {}
/// let accounts = locks.mutexes(["account:1", "account:2"]).fenced();
/// let moved = accounts.run(|tokens| async move {
///     for (account, token) in tokens.iter() {
///         write(account, 41, token).await; // the token is checked where it is written
///     }
/// });
/// moved.await
/// # }
/// ```
#[derive(Clone)]
pub struct FencedMutexes(Mutexes);

impl Mutexes {
    /// Returns the same locks, with a fencing token for each hold.
    ///
    /// For resources that refuse late writes: see [`FencedMutex`](crate::FencedMutex). See the example of [`FencedMutexes`].
    #[must_use]
    pub fn fenced(self) -> FencedMutexes {
        FencedMutexes(self)
    }
}

impl FencedMutexes {
    /// Same as [`Mutexes::names`].
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.names()
    }

    /// Waits for all of the locks like [`Mutexes::lock`]. The guards have [`tokens`](crate::FencedGuards::tokens).
    ///
    /// See [`FencedLockAll`] for options, errors and cancel safety.
    #[track_caller]
    pub fn lock(&self) -> FencedLockAll {
        FencedLockAll(self.0.request(None, true))
    }

    /// Tries to take all of the locks like [`Mutexes::try_lock`]. Resolves to `None` if somebody else holds one of them.
    ///
    /// See [`FencedTryLockAll`] for options, errors and cancel safety.
    #[track_caller]
    pub fn try_lock(&self) -> FencedTryLockAll {
        FencedTryLockAll(self.0.request(Some(Duration::ZERO), true))
    }

    /// Waits for all of the locks, runs the future that `work` makes from the tokens, and releases the locks: [`Mutexes::run`] with
    /// tokens.
    ///
    /// `work` is called once all locks are held, as the owner that its future then runs as. This is short for
    /// [`lock()`](FencedMutexes::lock)[`.run(work)`](FencedLockAll::run).
    ///
    /// See [`FencedRunAll`] for errors and cancel safety, and the example of [`FencedMutexes`].
    #[track_caller]
    pub fn run<W, F>(&self, work: W) -> FencedRunAll<W, F>
    where
        W: FnOnce(Tokens) -> F,
        F: Future,
    {
        self.lock().run(work)
    }
}

impl fmt::Debug for FencedMutexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        f.debug_struct("FencedMutexes").field("names", &names).finish_non_exhaustive()
    }
}
