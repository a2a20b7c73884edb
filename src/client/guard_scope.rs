//! Work that re-enters a guard's hold.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::client::guard::Guard;
use crate::client::hold::Held;
use crate::client::kind::Kind;
use crate::owner::{Scope, scope};

pin_project! {
    /// The future of [`Guard::scope`]: work that runs as a child of the hold's owner.
    ///
    /// Not an `async` block, which would need space for the work twice.
    pub(super) struct GuardScope<'a, F: Future> {
        #[pin]
        scope: Scope<F>,
        // `None` after the first poll.
        held: Option<&'a Held>,
    }
}

impl<K: Kind> Guard<K> {
    /// Runs `work` as a child of this hold's owner, wherever the guard was moved to.
    ///
    /// Nested calls that take the same lock re-enter. The work is not dropped when the hold is lost:
    /// [`Mutex::run`](crate::Mutex::run) does that.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// let guard = stock.lock().await?;
    /// let there = async move { guard.scope(stock.run(async |_| {})).await }; // the new task alone would be a stranger
    /// tokio::spawn(there).await.unwrap()
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, inside the scope. The guard stays.
    pub fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> {
        GuardScope::of(Some(self.held()), work)
    }
}

impl<'a, F: Future> GuardScope<'a, F> {
    /// Runs `work` as a child of the owner of any of several guards: they all have the same owner.
    pub(super) fn of(held: Option<&'a Held>, work: F) -> GuardScope<'a, F> {
        GuardScope { scope: scope(work), held }
    }
}

impl<F: Future> Future for GuardScope<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        if let Some(held) = this.held.take() {
            // Looked up only now, since the owner's last scope may have ended since `scope` was called.
            this.scope.as_mut().set_owner(held.owner().child());
        }
        this.scope.poll(cx)
    }
}
