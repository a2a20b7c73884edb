//! The lower layer: how many there are of an item.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nestlock::{Locks, Result};
use tokio::task::yield_now;

use crate::PATIENCE;

/// The shelf. Each method locks the item that it changes, whoever calls it.
#[derive(Clone)]
pub(crate) struct Shelf {
    locks: Locks,
    /// Stands in for a database: a read and the write after it are two steps, which only the lock keeps
    /// together.
    counts: Arc<Mutex<HashMap<String, u32>>>,
}

impl Shelf {
    pub(crate) fn new(locks: Locks) -> Shelf {
        Shelf { locks, counts: Arc::default() }
    }

    /// Returns the same shelf as another process sees it.
    #[cfg(test)]
    pub(crate) fn with(&self, locks: Locks) -> Shelf {
        Shelf { locks, counts: self.counts.clone() }
    }

    pub(crate) async fn count(&self, item: &str) -> u32 {
        yield_now().await; // other tasks run here, as they do during a call to a database
        self.counts().get(item).copied().unwrap_or(0)
    }

    /// Takes one unit, and returns how many are left.
    pub(crate) async fn take(&self, item: &str) -> Result<u32> {
        self.change(item, |count| count.saturating_sub(1)).await
    }

    /// Adds units, and returns how many there are.
    pub(crate) async fn put(&self, item: &str, more: u32) -> Result<u32> {
        self.change(item, |count| count.saturating_add(more)).await
    }

    async fn change(&self, item: &str, change: impl FnOnce(u32) -> u32) -> Result<u32> {
        let work = async {
            let count = change(self.count(item).await);
            yield_now().await;
            self.counts().insert(item.to_owned(), count);
            count
        };
        self.locks.mutex(item).lock().within(PATIENCE).run(|_| work).await
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
