//! `Scope`: an owner is current while the work of its scope is polled or dropped.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::owner::owner::{Owner, inside};

/// Runs `work` as a new owner, a child of the owner that is current at the first poll.
///
/// Run each of several concurrent branches of one task in a scope: they exclude each other, and re-enter holds that were taken
/// before they began. The scope has to contain the whole branch, not the request alone: a guard that outlives its scope passes to the
/// owner around it, and the other branches, which belong to that owner, may then enter.
///
/// # Cancel safety
///
/// Dropping the future drops `work`, inside the scope.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock");
/// let one = nestlock::scope(async { stock.lock().await?.release().await });
/// let two = nestlock::scope(async { stock.lock().await?.release().await });
/// let (one, two) = tokio::join!(one, two); // one after the other, in either order
/// one.and(two)
/// # }
/// ```
pub fn scope<F: Future>(work: F) -> Scope<F> {
    Scope { work: Some(work), state: ScopeState::Unpolled(None) }
}

pin_project! {
    /// The future of [`scope`] and [`Owner::scope`]: work that runs as an owner. Resolves to the output of the work.
    ///
    /// ```
    /// # #[tokio::main] async fn main() {
    /// use nestlock::{Owner, scope};
    /// let task = Owner::current();
    /// assert_ne!(scope(async { Owner::current() }).await, task);
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, inside the scope.
    #[must_use = "futures do nothing unless polled"]
    #[project = ScopeNow]
    pub struct Scope<F: Future> {
        #[pin]
        work: Option<F>,
        state: ScopeState,
    }

    impl<F: Future> PinnedDrop for Scope<F> {
        fn drop(this: Pin<&mut Self>) {
            this.project().end();
        }
    }
}

impl<F: Future> Scope<F> {
    /// Sets the owner of the scope. Called before the first poll.
    pub(crate) fn set_owner(self: Pin<&mut Self>, owner: Owner) {
        *self.project().state = ScopeState::Unpolled(Some(owner));
    }
}

enum ScopeState {
    /// Not polled yet. Without an owner it becomes a new child of the owner that is current at the first poll.
    Unpolled(Option<Owner>),
    Entered(Owner),
    Ended,
}

impl Owner {
    /// Runs `work` as this owner, on whichever task it is polled.
    ///
    /// Two tasks with scopes of one owner do not exclude each other: give each of them a [`child`](Owner::child).
    ///
    /// When the last scope of an owner ends or is dropped, guards that outlive it pass to its nearest live ancestor.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// // Two requests that a server handles one after the other in one task.
    /// let kept = nestlock::Owner::new().scope(async { stock.lock().await }).await?;
    /// let next = nestlock::Owner::new().scope(async { stock.try_lock().await }).await?;
    /// assert!(next.is_none());
    /// kept.release().await
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, inside the scope.
    pub fn scope<F: Future>(&self, work: F) -> Scope<F> {
        Scope { work: Some(work), state: ScopeState::Unpolled(Some(self.clone())) }
    }
}

impl<F: Future> ScopeNow<'_, F> {
    /// Drops the work as its owner, then leaves the scope, once.
    fn end(mut self) {
        let state = std::mem::replace(self.state, ScopeState::Ended);
        let (ScopeState::Entered(owner) | ScopeState::Unpolled(Some(owner))) = &state else {
            return self.work.set(None);
        };
        let inside = inside(owner);
        self.work.set(None);
        drop(inside);
        if let ScopeState::Entered(owner) = state {
            owner.leave();
        }
    }
}

impl<F: Future> Future for Scope<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        if let ScopeState::Unpolled(owner) = this.state {
            let owner = owner.take().unwrap_or_else(|| Owner::current().child());
            owner.enter();
            *this.state = ScopeState::Entered(owner);
        }
        let ScopeState::Entered(owner) = &this.state else { return Poll::Pending };
        let Some(work) = this.work.as_mut().as_pin_mut() else { return Poll::Pending };
        let inside = inside(owner);
        let polled = work.poll(cx);
        drop(inside);
        if polled.is_ready() {
            this.end();
        }
        polled
    }
}

impl<F: Future> fmt::Debug for Scope<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
