//! Work that runs while a lock is held, as an owner of its own.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::slice;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::base::telemetry::HeldSpan;
use crate::client::acquire::NotGranted;
use crate::client::answer::{Answer, Asks, Granted, Releasing, Watching, polled_again};
use crate::client::guard::Guard;
use crate::error::{Error, ErrorKind, Result};
use crate::owner::{Owner, inside};

impl Granted for Guard {
    fn guards(&self) -> &[Guard] {
        slice::from_ref(self)
    }

    fn watch(&self) -> Watching {
        Box::pin(self.held().watch())
    }

    fn ends_here(&mut self) -> bool {
        Guard::ends_here(self)
    }

    fn release_done(self) -> Releasing {
        Box::pin(self.release_logged())
    }
}

/// The work of a `run`: a closure that makes a future from the hold. All such closures implement it, async closures among them.
///
/// Not exported: `W: FnOnce(Hold) -> F` with `F: Future` says the same.
#[diagnostic::on_unimplemented(
    message = "the work of a `run` is a closure that gets the hold and returns a future",
    label = "not such a closure: write `async |_hold| job().await`, or `|_hold| job()`",
    note = "a function that passes work on to `run` takes `impl FnOnce(Hold) -> F` with `F: Future`; an `AsyncFnOnce(Hold) -> T` is not enough"
)]
pub trait Work<H> {
    /// The future that runs while the lock is held.
    type Future: Future;

    /// Makes the future.
    fn start(self, hold: H) -> Self::Future;
}

// One parameter for a closure and its future. With two parameters of `Run`, rustc would refuse to spawn a task whose closure
// borrows, since it forgets that their lifetimes are the same.
#[diagnostic::do_not_recommend]
impl<W: FnOnce(H) -> F, F: Future, H> Work<H> for W {
    type Future = F;

    fn start(self, hold: H) -> F {
        self(hold)
    }
}

pin_project! {
    /// The work of a run: before it is made, while it runs, and once it is done.
    #[project = DoingNow]
    enum Doing<W, F: Future> {
        /// No part of the work is made before the lock is held.
        Unmade { work: Option<W> },
        Running { #[pin] work: F },
        Done { output: Option<F::Output> },
    }
}

/// The stage of a run. The work is always dropped before the guard.
enum RunStage<A: Asks> {
    Asking { request: A, is_begun: bool },
    Working { guard: A::Granted, owner: Owner, watching: Option<Watching> },
    Releasing { releasing: Releasing },
    Over,
}

pin_project! {
    /// The future of `run`: work that runs while the lock, or each of several, is held.
    ///
    /// `W`, a closure `FnOnce(Hold) -> F` with `F: Future`, makes the work from the hold, once there is one. `Ok(output)` means that
    /// the work ran to its end, not that the lock was held to its end. The release is awaited. If it could not be confirmed, it goes on
    /// in the background, and a `tracing` warning reports it; a warning also reports a hold that is found gone only by the release. If
    /// that matters, end the work with [`hold.check()`](crate::Hold::check), or use a guard, whose [`release`](crate::Guard::release)
    /// fails with [`Lost`](crate::ErrorKind::Lost). The run of a `try_lock` resolves to `Ok(None)` if somebody else holds the lock, and
    /// the work never starts.
    ///
    /// As soon as the hold is lost, or one of several is, the work is dropped at the `.await` where it stands.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{ErrorKind, Locks, Memory};
    /// let memory = Memory::new();
    /// let locks = Locks::builder(&memory).connect().await?;
    /// let work = async |_hold| {
    ///     memory.faults().lose("stock");
    ///     std::future::pending::<()>().await
    /// };
    /// let stopped = locks.mutex("stock").run(work).await.unwrap_err();
    /// assert_eq!(stopped.kind(), ErrorKind::Lost);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost): the hold was lost, and the work was dropped before its end; or the hold above it was
    /// lost, and the work never started. All other kinds are those of [`Request`](crate::futures::Request), and the work never
    /// started, unless the future was polled after it was ready, or after the work panicked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work first, then releases the lock in the background.
    #[must_use = "futures do nothing unless polled"]
    #[project = RunNow]
    pub struct Run<A: Answer, W: Work<A::Hold>> {
        #[pin]
        doing: Doing<W, W::Future>,
        stage: RunStage<A::Asks>,
    }

    impl<A: Answer, W: Work<A::Hold>> PinnedDrop for Run<A, W> {
        fn drop(this: Pin<&mut Self>) {
            this.project().stop();
        }
    }
}

impl<A: Answer, W: Work<A::Hold>> Run<A, W> {
    pub(super) fn new(mut request: A::Asks, work: W) -> Run<A, W> {
        // Like any option, this drops a request under way, which asked as its owner and not as a child of it.
        request.options_mut().bare = false;
        let stage = RunStage::Asking { request, is_begun: false };
        Run { doing: Doing::Unmade { work: Some(work) }, stage }
    }
}

impl<A: Answer, W: Work<A::Hold>> RunNow<'_, A, W> {
    /// Asks for the lock, as a new child of the current owner. Ready with `Ok` once it is held, and from then on.
    fn ask(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NotGranted>> {
        let RunStage::Asking { request, is_begun } = &mut *self.stage else { return Poll::Ready(Ok(())) };
        if !mem::replace(is_begun, true) {
            let options = request.options_mut();
            let above = options.owner.take().unwrap_or_else(Owner::current);
            // If the run is dropped while it asks, nothing is left for an heir, since only the request has this owner.
            options.owner = Some(above.into_entered_child());
        }
        let granted = ready!(request.poll(cx));
        let owner = request.options_mut().owner.take().unwrap_or_else(Owner::current);
        *self.stage = RunStage::Working { guard: granted?, owner, watching: None };
        Poll::Ready(Ok(()))
    }

    /// Makes the work if there is none yet, and polls it, all as its owner and in one entry into the scope, since a recursion makes
    /// thousands of runs. Returns whether it is done now. Nothing is made or polled if the hold is lost. `begins`: whether this is the
    /// run's first poll, in which its grant has just checked for a loss.
    fn work(&mut self, begins: bool, cx: &mut Context<'_>) -> Result<bool> {
        let RunStage::Working { guard, owner, .. } = &*self.stage else { return Ok(false) };
        if !begins && guard.is_lost() {
            return Ok(false);
        }
        let _inside = inside(owner);
        let _entered = guard.span().map(HeldSpan::enter);
        if let DoingNow::Unmade { work } = self.doing.as_mut().project() {
            // Without this a run that is polled after its closure panicked would keep the lock, and never end.
            let panicked = || Error::new(ErrorKind::Misuse, "polled after the work's closure panicked");
            let work = work.take().ok_or_else(panicked)?;
            let work = work.start(A::hold(guard)?);
            self.doing.set(Doing::Running { work });
        }
        if let DoingNow::Running { work } = self.doing.as_mut().project()
            && let Poll::Ready(output) = work.poll(cx)
        {
            // The output is kept until the release is over.
            self.doing.set(Doing::Done { output: Some(output) });
            return Ok(true);
        }
        Ok(false)
    }

    /// Drops the work, as its owner; then the guard; then ends the scope, so that the hold is never the parent's.
    fn stop(&mut self) {
        if let RunStage::Working { owner, guard, .. } = &*self.stage {
            let owner = owner.clone();
            let inside = (inside(&owner), guard.span().map(HeldSpan::enter));
            self.doing.set(Doing::Done { output: None });
            drop(inside);
            *self.stage = RunStage::Over;
            owner.leave();
        }
    }

    /// Waits for the end of the run: the loss of the hold while the work goes on, the release once the work is done.
    fn end(&mut self, cx: &mut Context<'_>) -> Poll<Result<<W::Future as Future>::Output>> {
        match &mut *self.stage {
            RunStage::Working { guard, watching, .. } => {
                let watching = watching.get_or_insert_with(|| guard.watch());
                let loss = ready!(watching.as_mut().poll(cx));
                let error = guard.lost(loss);
                self.stop();
                return Poll::Ready(Err(error));
            }
            // The work is done, so a release that was not confirmed is only logged.
            RunStage::Releasing { releasing } => {
                drop(ready!(releasing.as_mut().poll(cx)));
                *self.stage = RunStage::Over;
            }
            RunStage::Asking { .. } | RunStage::Over => {}
        }
        match self.doing.as_mut().project() {
            DoingNow::Done { output } => Poll::Ready(output.take().ok_or_else(polled_again)),
            DoingNow::Unmade { .. } | DoingNow::Running { .. } => Poll::Ready(Err(polled_again())),
        }
    }

    /// Begins the release. Its first poll removes the level, and then the scope may end.
    fn release(&mut self, cx: &mut Context<'_>) {
        let stage = &mut *self.stage;
        let RunStage::Working { mut guard, owner, .. } = mem::replace(stage, RunStage::Over) else {
            return;
        };
        if !guard.ends_here() {
            let mut releasing = guard.release_done();
            if releasing.as_mut().poll(cx).is_pending() {
                *stage = RunStage::Releasing { releasing };
            }
        }
        owner.leave();
    }
}

impl<A: Answer, W: Work<A::Hold>> Future for Run<A, W> {
    type Output = Result<A::Ran<<W::Future as Future>::Output>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let begins = matches!(this.stage, RunStage::Asking { is_begun: false, .. });
        if let Err(why) = ready!(this.ask(cx)) {
            *this.stage = RunStage::Over;
            return Poll::Ready(A::ran(Err(why)));
        }
        if this.work(begins, cx).inspect_err(|_| this.stop())? {
            this.release(cx);
        }
        this.end(cx).map(|ended| A::ran(Ok(ended?)))
    }
}

impl<A: Answer, W: Work<A::Hold>> fmt::Debug for Run<A, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
