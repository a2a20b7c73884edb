//! Work that runs while several locks are held, as an owner of its own.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::client::acquire::NotGranted;
use crate::client::run::{HeldWork, Work};
use crate::client::several::acquire::RequestAll;
use crate::client::several::fenced_guards::Tokens;
use crate::client::several::requests::{FencedLockAll, FencedTryLockAll, LockAll, TryLockAll};
use crate::error::Result;

pin_project! {
    /// The future of [`Mutexes::run`](crate::Mutexes::run) and [`LockAll::run`]: work that runs while several locks are held.
    ///
    /// `Ok(output)` means that the work ran to its end. The releases are awaited like that of a [`Run`](crate::futures::Run).
    ///
    /// As soon as one of the holds is lost, the work is dropped at the `.await` where it stands.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{ErrorKind, Locks, Memory};
    /// let memory = Memory::new();
    /// let locks = Locks::builder().memory(&memory).connect().await?;
    /// let work = async {
    ///     memory.lose("account:2");
    ///     std::future::pending::<()>().await
    /// };
    /// let stopped = locks.mutexes(["account:1", "account:2"]).run(work).await.unwrap_err();
    /// assert_eq!((stopped.kind(), stopped.lock()), (ErrorKind::Lost, Some("account:2")));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost): a hold was lost, and the work was dropped before its end; or a hold above one of them was
    /// lost, and the work never started. Any other kind is one of [`LockAll`]'s, and the work never started.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work first, then releases the locks in the background.
    #[must_use = "futures do nothing unless polled"]
    pub struct RunAll<F: Future> {
        #[pin]
        held: HeldWork<RequestAll, F, Infallible>,
    }
}

pin_project! {
    /// The future of [`TryLockAll::run`]: work that runs while several locks are held, if nobody else holds one of them.
    ///
    /// `Ok(None)` means that somebody else holds one of the locks, and the work never started.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// let accounts = locks.mutexes(["account:1", "account:2"]);
    /// let guard = locks.mutex("account:2").lock().owner(&nestlock::Owner::new()).await?;
    /// assert_eq!(accounts.try_lock().run(async { 41 }).await?, None);
    /// guard.release().await?;
    /// assert_eq!(accounts.try_lock().run(async { 41 }).await?, Some(41));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`RunAll`], except for [`Timeout`](crate::ErrorKind::Timeout), which is `None` here.
    ///
    /// # Cancel safety
    ///
    /// Same as [`RunAll`].
    #[must_use = "futures do nothing unless polled"]
    pub struct TryRunAll<F: Future> {
        #[pin]
        held: HeldWork<RequestAll, F, Infallible>,
    }
}

pin_project! {
    /// The future of [`FencedMutexes::run`](crate::FencedMutexes::run) and [`FencedLockAll::run`]: work that is made from the fencing
    /// tokens, and runs while several locks are held.
    ///
    /// Like [`RunAll`]. `W` makes the work, once all locks are held.
    ///
    /// # Errors
    ///
    /// Same as [`RunAll`], for a [`FencedLockAll`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`RunAll`].
    #[must_use = "futures do nothing unless polled"]
    pub struct FencedRunAll<W, F: Future> {
        #[pin]
        held: HeldWork<RequestAll, F, W>,
    }
}

pin_project! {
    /// The future of [`FencedTryLockAll::run`]: work that is made from the fencing tokens, and runs while several locks are held, if
    /// nobody else holds one of them.
    ///
    /// Like [`TryRunAll`]. `W` makes the work, once all locks are held.
    ///
    /// # Errors
    ///
    /// Same as [`TryRunAll`], for a [`FencedTryLockAll`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`RunAll`].
    #[must_use = "futures do nothing unless polled"]
    pub struct FencedTryRunAll<W, F: Future> {
        #[pin]
        held: HeldWork<RequestAll, F, W>,
    }
}

impl LockAll {
    /// Runs `work` while all locks are held: [`Mutexes::run`](crate::Mutexes::run), with this request's options.
    ///
    /// See [`RunAll`] for its result and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// use std::time::Duration;
    /// let accounts = locks.mutexes(["account:1", "account:2"]);
    /// let moved = accounts.lock().within(Duration::from_secs(5)).run(async { 41 }).await?;
    /// assert_eq!(moved, 41);
    /// # Ok(()) }
    /// ```
    pub fn run<F: Future>(self, work: F) -> RunAll<F> {
        RunAll { held: HeldWork::new(self.0, Work::ToDo { work }) }
    }
}

impl TryLockAll {
    /// Runs `work` while all locks are held, if nobody else holds one of them. Otherwise resolves to `None`.
    ///
    /// See [`TryRunAll`] for an example and cancel safety.
    pub fn run<F: Future>(self, work: F) -> TryRunAll<F> {
        TryRunAll { held: HeldWork::new(self.0, Work::ToDo { work }) }
    }
}

impl FencedLockAll {
    /// Runs the future that `work` makes from the tokens while all locks are held: [`FencedMutexes::run`](crate::FencedMutexes::run),
    /// with this request's options.
    ///
    /// See [`FencedRunAll`] for errors and cancel safety.
    pub fn run<W, F>(self, work: W) -> FencedRunAll<W, F>
    where
        W: FnOnce(Tokens) -> F,
        F: Future,
    {
        FencedRunAll { held: HeldWork::new(self.0, Work::Unmade { make: Some(work) }) }
    }
}

impl FencedTryLockAll {
    /// Runs the future that `work` makes from the tokens while all locks are held, if nobody else holds one of them. Otherwise
    /// resolves to `None`.
    ///
    /// See [`FencedTryRunAll`] for errors and cancel safety.
    pub fn run<W, F>(self, work: W) -> FencedTryRunAll<W, F>
    where
        W: FnOnce(Tokens) -> F,
        F: Future,
    {
        FencedTryRunAll { held: HeldWork::new(self.0, Work::Unmade { make: Some(work) }) }
    }
}

impl<F: Future> Future for RunAll<F> {
    type Output = Result<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().held.poll(cx, |never, _| match never {}).map_err(NotGranted::into_error)
    }
}

impl<F: Future> Future for TryRunAll<F> {
    type Output = Result<Option<F::Output>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().held.poll(cx, |never, _| match never {}).map(NotGranted::or_none)
    }
}

impl<W: FnOnce(Tokens) -> F, F: Future> Future for FencedRunAll<W, F> {
    type Output = Result<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = self.project().held.poll(cx, |work, guards| Tokens::of(guards).map(work));
        ended.map_err(NotGranted::into_error)
    }
}

impl<W: FnOnce(Tokens) -> F, F: Future> Future for FencedTryRunAll<W, F> {
    type Output = Result<Option<F::Output>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = self.project().held.poll(cx, |work, guards| Tokens::of(guards).map(work));
        ended.map(NotGranted::or_none)
    }
}

impl<F: Future> fmt::Debug for RunAll<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunAll").finish_non_exhaustive()
    }
}

impl<F: Future> fmt::Debug for TryRunAll<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryRunAll").finish_non_exhaustive()
    }
}

impl<W, F: Future> fmt::Debug for FencedRunAll<W, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedRunAll").finish_non_exhaustive()
    }
}

impl<W, F: Future> fmt::Debug for FencedTryRunAll<W, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedTryRunAll").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::client::run::tests::assert_one_owner;
    use crate::{Locks, Owner};

    #[tokio::test]
    async fn a_run_that_waits_for_several_names_asks_as_one_owner() {
        let locks = Locks::in_memory();
        let _held = locks.mutex("b").lock().owner(&Owner::new()).await.unwrap();
        assert_one_owner(locks.mutexes(["a", "b"]).lock().0);
    }
}
