//! Work that runs while a lock is held, as an owner of its own.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::base::telemetry::{self, HeldSpan};
use crate::client::acquire::NotGranted;
use crate::client::fenced_guard;
use crate::client::guard::Guard;
use crate::client::request::{FencedLock, FencedTryLock, Lock, Request, TryLock};
use crate::error::{Error, Loss, Result};
use crate::owner::{Inside, Owner, inside};

pub(super) type Releasing = Pin<Box<dyn Future<Output = Result<()>> + Send>>;
pub(super) type Watching = Pin<Box<dyn Future<Output = Loss> + Send>>;

/// The request of a run: for one lock, or for several.
pub(super) trait Asks {
    type Held: Holds;

    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<Result<Self::Held, NotGranted>>;

    fn is_begun(&self) -> bool;

    /// Marks the request as one whose owner is the run's alone.
    fn set_not_bare(&mut self);

    fn owner(&mut self) -> &mut Option<Owner>;
}

/// What a run holds while it works.
pub(super) trait Holds: Sized {
    fn is_lost(&self) -> bool;

    /// Resolves when the hold is lost.
    fn watch(&self) -> Watching;

    /// The span in which the work runs, if somebody records it.
    fn span(&self) -> Option<&HeldSpan>;

    /// Returns the error of a run that this loss ended.
    fn lost(&self, loss: Loss) -> Error;

    /// Releases it, if nothing has to be awaited for that. Returns whether it did.
    fn ends_here(&mut self) -> bool {
        false
    }

    /// Releases it, and logs a release that is not confirmed.
    fn release_done(self) -> Releasing;
}

impl Asks for Request {
    type Held = Guard;

    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, NotGranted>> {
        self.poll(cx)
    }

    fn is_begun(&self) -> bool {
        Request::is_begun(self)
    }

    fn set_not_bare(&mut self) {
        self.set(|options| options.bare = false);
    }

    fn owner(&mut self) -> &mut Option<Owner> {
        &mut self.options.owner
    }
}

impl Holds for Guard {
    fn is_lost(&self) -> bool {
        Guard::is_lost(self)
    }

    fn watch(&self) -> Watching {
        Box::pin(Guard::watch(self))
    }

    fn span(&self) -> Option<&HeldSpan> {
        Guard::span(self)
    }

    fn lost(&self, loss: Loss) -> Error {
        Error::lost(loss).on(&self.name().into())
    }

    fn ends_here(&mut self) -> bool {
        Guard::ends_here(self)
    }

    fn release_done(self) -> Releasing {
        let name = self.name().to_owned();
        Box::pin(async move {
            self.release().await.inspect_err(|error| telemetry::release_unconfirmed(&name, error))
        })
    }
}

pin_project! {
    #[project = WorkNow]
    pub(super) enum Work<F: Future, W> {
        /// Not made yet: the work of a fenced run is made from its token.
        Unmade { make: Option<W> },
        ToDo { #[pin] work: F },
        Done { output: Option<F::Output> },
    }
}

/// How far a run has come. The work is always dropped before the guard.
enum RunStage<A: Asks> {
    Asking { request: A },
    Working { guard: A::Held, owner: Owner, watching: Option<Watching> },
    Releasing { releasing: Releasing },
    Over,
}

pin_project! {
    /// Asks for the lock, polls the work, and releases the lock.
    #[project = HeldNow]
    pub(super) struct HeldWork<A: Asks, F: Future, W> {
        #[pin]
        work: Work<F, W>,
        stage: RunStage<A>,
    }

    impl<A: Asks, F: Future, W> PinnedDrop for HeldWork<A, F, W> {
        fn drop(this: Pin<&mut Self>) {
            this.project().stop();
        }
    }
}

impl<A: Asks, F: Future, W> HeldWork<A, F, W> {
    pub(super) fn new(mut request: A, work: Work<F, W>) -> HeldWork<A, F, W> {
        // Like any option, this drops a request under way, which asked as its owner and not as a child of it.
        request.set_not_bare();
        HeldWork { work, stage: RunStage::Asking { request } }
    }
}

impl<A: Asks, F: Future, W> HeldNow<'_, A, F, W> {
    /// Asks for the lock, as a new child of the current owner. Ready with `Ok` once it is held, and from then on.
    fn ask(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NotGranted>> {
        let RunStage::Asking { request } = &mut *self.stage else { return Poll::Ready(Ok(())) };
        if !request.is_begun() {
            let above = request.owner().take().unwrap_or_else(Owner::current);
            *request.owner() = Some(above.child());
        }
        let granted = ready!(request.poll_held(cx));
        let owner = request.owner().clone().unwrap_or_else(Owner::current);
        *self.stage = RunStage::Over;
        let guard = granted?;
        owner.enter();
        *self.stage = RunStage::Working { guard, owner, watching: None };
        Poll::Ready(Ok(()))
    }

    /// Enters the scope of the work's owner for one poll of the work. Returns `None` if the hold is lost: the work must not be
    /// polled. `begins`: this is the run's first poll, in which its grant has looked.
    fn inside(&self, begins: bool) -> Option<Inside> {
        match &*self.stage {
            RunStage::Working { guard, owner, .. } if begins || !guard.is_lost() => Some(inside(owner)),
            _ => None,
        }
    }

    /// Makes the work of a fenced run from its token, as its owner.
    fn make(&mut self, make: impl FnOnce(W, &A::Held) -> Result<F>) -> Result<()> {
        if let WorkNow::Unmade { make: unmade } = self.work.as_mut().project()
            && let RunStage::Working { guard, owner, .. } = &*self.stage
            && !guard.is_lost()
            && let Some(unmade) = unmade.take()
        {
            let _inside = inside(owner);
            let work = make(unmade, guard)?;
            self.work.set(Work::ToDo { work });
        }
        Ok(())
    }

    /// Keeps the output until the release is over.
    fn done(&mut self, output: F::Output, cx: &mut Context<'_>) {
        if let RunStage::Working { owner, .. } = &*self.stage {
            let _inside = inside(owner);
            self.work.set(Work::Done { output: Some(output) });
        }
        self.release(cx);
    }

    /// Drops the work, as its owner; then the guard; then ends the scope, so that the hold is never the parent's.
    fn stop(&mut self) {
        if let RunStage::Working { owner, guard, .. } = &*self.stage {
            let owner = owner.clone();
            let inside = (inside(&owner), guard.span().map(HeldSpan::enter));
            self.work.set(Work::Done { output: None });
            drop(inside);
            *self.stage = RunStage::Over;
            owner.leave();
        }
    }

    /// Waits for what ends it: the loss of the hold while the work goes on, the release when it is done.
    fn end(&mut self, cx: &mut Context<'_>) -> Poll<Result<F::Output>> {
        match &mut *self.stage {
            RunStage::Working { guard, watching, .. } => {
                let watching = watching.get_or_insert_with(|| guard.watch());
                let loss = ready!(watching.as_mut().poll(cx));
                let error = guard.lost(loss);
                self.stop();
                return Poll::Ready(Err(error));
            }
            // The work is done: a release that was not confirmed is logged.
            RunStage::Releasing { releasing } => drop(ready!(releasing.as_mut().poll(cx))),
            RunStage::Asking { .. } | RunStage::Over => {}
        }
        *self.stage = RunStage::Over;
        match self.work.as_mut().project() {
            WorkNow::Done { output } => output.take().map_or(Poll::Pending, |output| Poll::Ready(Ok(output))),
            WorkNow::Unmade { .. } | WorkNow::ToDo { .. } => Poll::Pending,
        }
    }

    /// Begins the release. From its first poll on the level is gone, and the scope may end.
    fn release(&mut self, cx: &mut Context<'_>) {
        let RunStage::Working { mut guard, owner, .. } = std::mem::replace(&mut *self.stage, RunStage::Over)
        else {
            return;
        };
        if !guard.ends_here() {
            let mut releasing = guard.release_done();
            if releasing.as_mut().poll(cx).is_pending() {
                *self.stage = RunStage::Releasing { releasing };
            }
        }
        owner.leave();
    }
}

impl<A: Asks, F: Future, W> HeldWork<A, F, W> {
    /// Polls the run. `make` makes the work of a fenced run, once it has its token.
    pub(super) fn poll(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        make: impl FnOnce(W, &A::Held) -> Result<F>,
    ) -> Poll<Result<F::Output, NotGranted>> {
        let mut this = self.project();
        let begins = matches!(this.stage, RunStage::Asking { request } if !request.is_begun());
        ready!(this.ask(cx))?;
        if let Err(error) = this.make(make) {
            this.stop();
            return Poll::Ready(Err(error.into()));
        }
        if let Some(inside) = this.inside(begins)
            && let WorkNow::ToDo { work } = this.work.as_mut().project()
        {
            let span = match &*this.stage {
                RunStage::Working { guard, .. } => guard.span(),
                _ => None,
            };
            let entered = span.map(HeldSpan::enter);
            let polled = work.poll(cx);
            drop((entered, inside));
            if let Poll::Ready(output) = polled {
                this.done(output, cx);
            }
        }
        this.end(cx).map_err(NotGranted::Failed)
    }
}

pin_project! {
    /// The future of [`Mutex::run`](crate::Mutex::run) and [`Lock::run`]: work that runs while the lock is held.
    ///
    /// `Ok(output)` means that the work ran to its end. The release is awaited. If it could not be confirmed it goes on in the
    /// background, and a `tracing` warning reports it; a warning also reports a hold that was found gone at that point.
    ///
    /// As soon as the hold is lost, the work is dropped at the `.await` where it stands.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{ErrorKind, Locks, Memory};
    /// let memory = Memory::new();
    /// let locks = Locks::builder().memory(&memory).connect().await?;
    /// let work = async {
    ///     memory.lose("stock");
    ///     std::future::pending::<()>().await
    /// };
    /// let stopped = locks.mutex("stock").run(work).await.unwrap_err();
    /// assert_eq!(stopped.kind(), ErrorKind::Lost);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost): the hold was lost, and the work was dropped before its end; or the hold above it was lost,
    /// and the work never started. Any other kind is one of [`Lock`]'s, and the work never started.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work first, then releases the lock in the background.
    #[must_use = "futures do nothing unless polled"]
    pub struct Run<F: Future> {
        #[pin]
        held: HeldWork<Request, F, Infallible>,
    }
}

pin_project! {
    /// The future of [`TryLock::run`]: work that runs while the lock is held, if nobody else holds it.
    ///
    /// `Ok(None)` means that somebody else holds the lock, and the work never started.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// let guard = stock.lock().owner(&nestlock::Owner::new()).await?;
    /// assert_eq!(stock.try_lock().run(async { 41 }).await?, None);
    /// guard.release().await?;
    /// assert_eq!(stock.try_lock().run(async { 41 }).await?, Some(41));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`Run`], except for [`Timeout`](crate::ErrorKind::Timeout), which is `None` here.
    ///
    /// # Cancel safety
    ///
    /// Same as [`Run`].
    #[must_use = "futures do nothing unless polled"]
    pub struct TryRun<F: Future> {
        #[pin]
        held: HeldWork<Request, F, Infallible>,
    }
}

pin_project! {
    /// The future of [`FencedMutex::run`](crate::FencedMutex::run) and [`FencedLock::run`]: work that is made from the fencing token,
    /// and runs while the lock is held.
    ///
    /// Like [`Run`]. `W` makes the work, once the lock is held.
    ///
    /// # Errors
    ///
    /// Same as [`Run`], for a [`FencedLock`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`Run`].
    #[must_use = "futures do nothing unless polled"]
    pub struct FencedRun<W, F: Future> {
        #[pin]
        held: HeldWork<Request, F, W>,
    }
}

pin_project! {
    /// The future of [`FencedTryLock::run`]: work that is made from the fencing token, and runs while the lock is held, if nobody
    /// else holds it.
    ///
    /// Like [`TryRun`]. `W` makes the work, once the lock is held.
    ///
    /// # Errors
    ///
    /// Same as [`TryRun`], for a [`FencedTryLock`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`Run`].
    #[must_use = "futures do nothing unless polled"]
    pub struct FencedTryRun<W, F: Future> {
        #[pin]
        held: HeldWork<Request, F, W>,
    }
}

impl Lock {
    /// Runs `work` while the lock is held: [`Mutex::run`](crate::Mutex::run), with this request's options.
    ///
    /// See [`Run`] for its result and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// use std::time::Duration;
    /// let left = stock.lock().within(Duration::from_secs(5)).run(async { 41 }).await?;
    /// assert_eq!(left, 41);
    /// # Ok(()) }
    /// ```
    pub fn run<F: Future>(self, work: F) -> Run<F> {
        Run { held: HeldWork::new(self.0, Work::ToDo { work }) }
    }
}

impl TryLock {
    /// Runs `work` while the lock is held, if nobody else holds it. Otherwise resolves to `None`.
    ///
    /// See [`TryRun`] for an example and cancel safety.
    pub fn run<F: Future>(self, work: F) -> TryRun<F> {
        TryRun { held: HeldWork::new(self.0, Work::ToDo { work }) }
    }
}

impl FencedLock {
    /// Runs the future that `work` makes from the token while the lock is held: [`FencedMutex::run`](crate::FencedMutex::run), with
    /// this request's options.
    ///
    /// See [`FencedRun`] for errors and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock").fenced();
    /// use std::time::Duration;
    /// let run = stock.lock().within(Duration::from_secs(5)).run(|token| async move { token });
    /// assert!(run.await? > 0);
    /// # Ok(()) }
    /// ```
    pub fn run<W, F>(self, work: W) -> FencedRun<W, F>
    where
        W: FnOnce(u64) -> F,
        F: Future,
    {
        FencedRun { held: HeldWork::new(self.0, Work::Unmade { make: Some(work) }) }
    }
}

impl FencedTryLock {
    /// Runs the future that `work` makes from the token while the lock is held, if nobody else holds it. Otherwise resolves to
    /// `None`.
    ///
    /// See [`FencedTryRun`] for errors and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock").fenced();
    /// let guard = stock.lock().owner(&nestlock::Owner::new()).await?;
    /// assert_eq!(stock.try_lock().run(|token| async move { token }).await?, None);
    /// guard.release().await
    /// # }
    /// ```
    pub fn run<W, F>(self, work: W) -> FencedTryRun<W, F>
    where
        W: FnOnce(u64) -> F,
        F: Future,
    {
        FencedTryRun { held: HeldWork::new(self.0, Work::Unmade { make: Some(work) }) }
    }
}

impl<F: Future> Future for Run<F> {
    type Output = Result<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().held.poll(cx, |never, _| match never {}).map_err(NotGranted::into_error)
    }
}

impl<F: Future> Future for TryRun<F> {
    type Output = Result<Option<F::Output>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().held.poll(cx, |never, _| match never {}).map(NotGranted::or_none)
    }
}

impl<W: FnOnce(u64) -> F, F: Future> Future for FencedRun<W, F> {
    type Output = Result<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = self.project().held.poll(cx, |work, guard| fenced_guard::token(guard).map(work));
        ended.map_err(NotGranted::into_error)
    }
}

impl<W: FnOnce(u64) -> F, F: Future> Future for FencedTryRun<W, F> {
    type Output = Result<Option<F::Output>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = self.project().held.poll(cx, |work, guard| fenced_guard::token(guard).map(work));
        ended.map(NotGranted::or_none)
    }
}

impl<W, F: Future> fmt::Debug for FencedRun<W, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedRun").finish_non_exhaustive()
    }
}

impl<W, F: Future> fmt::Debug for FencedTryRun<W, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedTryRun").finish_non_exhaustive()
    }
}

impl<F: Future> fmt::Debug for Run<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

impl<F: Future> fmt::Debug for TryRun<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryRun").finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests;
