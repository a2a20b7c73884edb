//! `Memory`: a master in this process.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::base::lock;
use crate::memory::store::{Notice, Store};

/// A store for locks in this process, in place of a Redis server.
///
/// For tests, for development, and for services that run as one copy. [`Builder::memory`](crate::Builder::memory) keeps the
/// locks of a `Locks` in it. Several may share one: they stand to each other as processes do that share a server.
/// [`Locks::in_memory`](crate::Locks::in_memory) has one of its own.
///
/// It answers as the scripts on a server do, and as them never at once, so that code which works over it works the
/// same over Redis. Leases are counted by tokio's clock: in tests that pause it, they pass in no time. Nothing is
/// kept when the process ends, and nothing is shared with other processes.
///
/// The methods below make trouble, to see how one's own code takes it: [`guide::testing`](crate::guide::testing) has tests
/// with each of them. `Debug` shows the locks that are held.
///
/// ```
/// use nestlock::{Locks, Memory};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> nestlock::Result<()> {
/// let store = Memory::new();
/// let ours = Locks::builder().memory(&store).connect().await?;
/// let theirs = Locks::builder().memory(&store).connect().await?; // as another process
///
/// let guard = ours.mutex("stock:42").lock().await?;
/// assert!(theirs.mutex("stock:42").try_lock().await?.is_none());
///
/// store.lose("stock:42"); // what `DEL stock:42` would do on a server
/// assert_eq!(guard.lost().await, nestlock::Loss::Gone);
/// assert!(theirs.mutex("stock:42").try_lock().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Memory(Arc<Inner>);

#[derive(Default)]
struct Inner {
    store: Mutex<Store>,
    /// NoticeKind whenever commands were answered, or may be sooner than was known.
    worked: Notify,
}

impl Memory {
    /// An empty store.
    ///
    /// The example of [`Memory`] has it.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Whether it is this very store.
    pub(crate) fn is(&self, other: &Memory) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Changes the store, then tells what follows from it.
    pub(crate) fn visit<R>(&self, visit: impl FnOnce(&mut Store) -> R) -> R {
        let (result, news, worked) = {
            let mut store = lock(&self.0.store);
            (visit(&mut store), store.news(), std::mem::take(&mut store.worked))
        };
        // Nothing is locked any more: who hears of it may visit the store in turn.
        news.into_iter().for_each(Notice::tell);
        // Only then: those who wait for an answer visit the store to see, and would wake each other for ever.
        if worked {
            self.0.worked.notify_waiters();
        }
        result
    }

    /// Ready when, after this call, commands were answered or may be sooner than was known.
    pub(crate) fn worked(&self) -> tokio::sync::futures::Notified<'_> {
        self.0.worked.notified()
    }
}
