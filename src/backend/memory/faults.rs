//! The faults of a `Memory`, by which a test sees what its code does when a lock is lost or a server fails.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::after;
use crate::memory::Memory;

/// Makes a [`Memory`] fail, so that you can test how your code handles it: see [`Memory::faults`].
///
/// [`guide::testing`](crate::guide::testing) has a test with each fault.
///
/// ```
/// use nestlock::{Locks, Memory};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> nestlock::Result<()> {
/// let store = Memory::new();
/// let stock = Locks::builder(&store).connect().await?.mutex("stock:42");
/// let guard = stock.lock().await?;
/// store.faults().lose("stock:42"); // what `DEL stock:42` would do on a server
/// assert_eq!(guard.lost().await, nestlock::Loss::Gone);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Faults(Memory);

impl Memory {
    /// Returns what makes this store fail, for tests.
    ///
    /// [`Faults`] has an example.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults(self.clone())
    }
}

impl Faults {
    /// Deletes the key of a lock, as `DEL` would on a server. Returns false if it was free.
    ///
    /// The holder is notified of the loss ([`Loss::Gone`](crate::Loss::Gone)) at once, and waiters try again at once. `key`
    /// is the prefix, if there is one, followed by the lock's name: those that share a store may have different prefixes. Unlike
    /// [`force_release`](crate::Mutex::force_release) it needs no `Locks`, and no await.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Memory};
    /// let store = Memory::new();
    /// let locks = Locks::builder(&store).prefix("app:").connect().await?;
    /// let guard = locks.mutex("stock").lock().await?;
    /// assert!(!store.faults().lose("stock")); // no such key
    /// assert!(store.faults().lose("app:stock"));
    /// assert_eq!(guard.lost().await, nestlock::Loss::Gone);
    /// # Ok(()) }
    /// ```
    pub fn lose(&self, key: impl AsRef<str>) -> bool {
        self.0.visit(|store| store.lose(key.as_ref(), Instant::now()))
    }

    /// Runs no command for `duration` from now on, like a server that was stopped.
    ///
    /// Commands that arrive in that time run at its end. Leases continue to run out. A later call replaces an earlier one, and
    /// [`Duration::ZERO`] ends the stall.
    ///
    /// In a stall longer than the node timeout, commands fail with [`Unavailable`](crate::ErrorKind::Unavailable). In one longer
    /// than a lease, holds are lost, since they can't be renewed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
    /// use std::time::Duration;
    /// use nestlock::{ErrorKind, Locks, Loss, Memory};
    /// let store = Memory::new();
    /// let stock = Locks::builder(&store).connect().await?.mutex("stock");
    /// let guard = stock.lock().await?;
    /// store.faults().stall(Duration::from_secs(60));
    /// assert_eq!(stock.is_locked().await.unwrap_err().kind(), ErrorKind::Unavailable);
    /// assert_eq!(guard.lost().await, Loss::Expired);
    /// # Ok(()) }
    /// ```
    pub fn stall(&self, duration: Duration) {
        let now = Instant::now();
        self.0.visit(|store| {
            store.stalled_until = (!duration.is_zero()).then(|| after(now, duration));
            store.progressed = true;
            store.run_backlog(now);
        });
    }

    /// Runs the next `n` commands and drops their replies.
    ///
    /// Their sender can't know whether they ran. Each of them times out after the node timeout, and what it left is corrected
    /// in the background. Zero ends the effect of an earlier call.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Memory};
    /// let store = Memory::new();
    /// let stock = Locks::builder(&store).connect().await?.mutex("stock");
    /// store.faults().drop_replies(1);
    /// let guard = stock.lock().await?; // tries again after the node timeout
    /// assert_eq!(stock.hold_count(), 1);
    /// guard.release().await
    /// # }
    /// ```
    pub fn drop_replies(&self, n: usize) {
        self.0.visit(|store| store.unanswered = n);
    }

    /// Drops all locks at once, like a restart of a server without persistence.
    ///
    /// The fencing counters and the lines of waiting processes are dropped too. Holders are notified of the loss shortly after. A stall
    /// ends, and no more replies are dropped. If the store is one of several masters, a hold that a majority of them still has survives:
    /// it is written to the store again, which has no vote for a [`restart_delay`](crate::Builder::restart_delay).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Loss, Memory};
    /// let store = Memory::new();
    /// let guard = Locks::builder(&store).connect().await?.mutex("stock").lock().await?;
    /// store.faults().restart_empty();
    /// assert_eq!(guard.lost().await, Loss::Gone);
    /// # Ok(()) }
    /// ```
    pub fn restart_empty(&self) {
        let now = Instant::now();
        self.0.visit(|store| {
            store.restart(now);
            store.run_backlog(now);
        });
    }
}
