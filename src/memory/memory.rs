//! `Memory`: a master in this process.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::base::{Mutex, lock};
use crate::memory::store::Store;

/// A store for locks in this process, in place of a Redis server.
///
/// Use it for tests, for development, and for a service that never runs twice at once. [`Locks::builder`](crate::Locks::builder) takes
/// it in place of the address of a server. Several `Locks` may share one, as processes share a server.
/// [`Locks::in_memory`](crate::Locks::in_memory) has one of its own.
///
/// It answers as the scripts on a server do and, like a server, never in the first poll, so that code behaves the same over it and over
/// Redis. Leases follow tokio's clock, so a test that pauses it need not wait for them. The store ends with the process, and is not
/// shared with other processes.
///
/// [`faults`](Memory::faults) makes it fail, so that you can test how your code handles that. `Debug` shows the locks that are
/// held.
///
/// ```
/// use nestlock::{Locks, Memory};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> nestlock::Result<()> {
/// let store = Memory::new();
/// let ours = Locks::builder(&store).connect().await?;
/// let theirs = Locks::builder(&store).connect().await?; // as another process
///
/// let guard = ours.mutex("stock:42").lock().await?;
/// assert!(theirs.mutex("stock:42").try_lock().await?.is_none());
/// guard.release().await?;
/// assert!(theirs.mutex("stock:42").try_lock().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Memory(Arc<Inner>);

#[derive(Default)]
struct Inner {
    store: Mutex<Store>,
    /// Notified whenever commands were answered, or may be answered sooner than was known.
    progress: Notify,
}

impl Memory {
    /// Creates an empty store.
    ///
    /// See the example of [`Memory`].
    #[must_use]
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Returns whether both are the same store.
    pub(crate) fn is(&self, other: &Memory) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Changes the store, then notifies the clients concerned.
    pub(crate) fn visit<R>(&self, visit: impl FnOnce(&mut Store) -> R) -> R {
        let (result, deliveries, progressed) = {
            let mut store = lock(&self.0.store);
            (visit(&mut store), store.take_deliveries(), std::mem::take(&mut store.progressed))
        };
        // The store is unlocked by now, so the receiver of an event may visit it.
        deliveries.into_iter().for_each(|deliver| deliver());
        // Not notified after every visit: a task that waits for an answer visits the store to look, and two of them would wake
        // each other for ever.
        if progressed {
            self.0.progress.notify_waiters();
        }
        result
    }

    /// Returns a future that is ready once commands were answered, or may be answered sooner than was known, after this call.
    pub(crate) fn progress(&self) -> tokio::sync::futures::Notified<'_> {
        self.0.progress.notified()
    }
}
