//! The scope of an owner: for as long as its work is polled or dropped, that owner is the current one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::owner::owner::{Owner, inside};

/// Runs `work` as a new owner, a child of the owner that is current at the first poll.
///
/// Branches of one task that run side by side each take a scope, so that they exclude each other, and re-enter what was
/// held before they began.
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
    Scope { work: Some(work), stay: Stay::Child }
}

pin_project! {
    /// The future of [`scope`] and [`Owner::scope`]: work that runs as an owner. Ready with what the work gives.
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
        stay: Stay,
    }

    impl<F: Future> PinnedDrop for Scope<F> {
        fn drop(this: Pin<&mut Self>) {
            this.project().end();
        }
    }
}

impl<F: Future> Scope<F> {
    /// Makes it the scope of this owner, before the first poll.
    pub(crate) fn set_owner(self: Pin<&mut Self>, owner: Owner) {
        *self.project().stay = Stay::Of(owner);
    }
}

/// Whose scope it is, and whether it has begun.
enum Stay {
    Child,
    Of(Owner),
    Inside(Owner),
    Over,
}

impl Owner {
    /// Runs `work` as this owner: what it asks for is this owner's, on whichever task it is polled.
    ///
    /// One owner scoped in two tasks at once is one owner to all locks: hand out a [`child`](Owner::child) to each.
    ///
    /// When the last scope of an owner ends or is dropped, guards that outlive it belong to its nearest living ancestor.
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
        Scope { work: Some(work), stay: Stay::Of(self.clone()) }
    }
}

impl<F: Future> ScopeNow<'_, F> {
    /// Drops the work as its owner, then ends the stay, once.
    fn end(mut self) {
        let stay = std::mem::replace(self.stay, Stay::Over);
        let (Stay::Inside(owner) | Stay::Of(owner)) = &stay else { return self.work.set(None) };
        let inside = inside(owner);
        self.work.set(None);
        drop(inside);
        if let Stay::Inside(owner) = stay {
            owner.leave();
        }
    }
}

impl<F: Future> Future for Scope<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let begins = match &this.stay {
            Stay::Child => Some(Owner::current().child()),
            Stay::Of(owner) => Some(owner.clone()),
            _ => None,
        };
        if let Some(owner) = begins {
            owner.enter();
            *this.stay = Stay::Inside(owner);
        }
        let Stay::Inside(owner) = &this.stay else { return Poll::Pending };
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
