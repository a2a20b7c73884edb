//! Decides who may work on a name: one task at a time or, to show what happens then, every task.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use nestlock::{Locks, Mutex};

use crate::Result;
use crate::places::Places;

/// How long a killed process blocks the others. It is short, so that the demo does not take long.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// With locks, or without.
#[derive(Clone)]
pub(crate) struct Exclusion {
    locks: Option<Locks>,
    prefix: String,
    reentries: Arc<AtomicU64>,
}

impl Exclusion {
    /// Locks on these masters; their keys begin with the prefix.
    pub(crate) async fn locked(places: &Places, prefix: &str) -> Result<Exclusion> {
        let locks = Locks::quorum(&places.masters).lease(LEASE).connect().await?;
        Ok(Exclusion { locks: Some(locks), ..Exclusion::none(prefix) })
    }

    /// No locks at all: work simply runs.
    pub(crate) fn none(prefix: &str) -> Exclusion {
        Exclusion { locks: None, prefix: prefix.to_owned(), reentries: Arc::default() }
    }

    /// Waits until these masters grant locks. A master that was just started has no vote for one lease: after
    /// that, any lock that it may have forgotten is over.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.hold("lock:first", async { Ok(()) }).await
    }

    fn mutex(&self, name: &str) -> Option<Mutex> {
        let mutex = self.locks.as_ref()?.mutex(format!("{}{name}", self.prefix));
        if mutex.is_held() {
            self.reentries.fetch_add(1, Ordering::Relaxed);
        }
        Some(mutex)
    }

    /// Waits for the name's lock and runs the work under it.
    pub(crate) async fn hold<T>(&self, name: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self.mutex(name) {
            Some(mutex) => mutex.run(|_| work).await?,
            None => work.await,
        }
    }

    /// Runs the work if the name's lock is free. Otherwise returns `None` at once.
    pub(crate) async fn try_hold<T>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        match self.mutex(name) {
            Some(mutex) => mutex.try_lock().run(|_| work).await?.transpose(),
            None => work.await.map(Some),
        }
    }

    /// Runs the work under the locks of all the names, taken one after the other.
    ///
    /// Two callers whose names overlap must not take them in different orders, or each would wait for ever for a lock that the other holds.
    /// So all callers pass them in the order of the catalogue.
    pub(crate) fn hold_all<'a, T: Send + 'a>(
        &'a self,
        names: &'a [String],
        work: BoxFuture<'a, Result<T>>,
    ) -> BoxFuture<'a, Result<T>> {
        match names {
            [] => work,
            [first, others @ ..] => self.hold(first, self.hold_all(others, work)).boxed(),
        }
    }

    /// Returns how often a lock was taken by an owner that held it already.
    pub(crate) fn reentries(&self) -> u64 {
        self.reentries.load(Ordering::Relaxed)
    }

    /// Returns what is left of the lease of a name's lock, if it is locked.
    pub(crate) async fn remaining_lease(&self, name: &str) -> Result<Option<Duration>> {
        match self.mutex(name) {
            Some(mutex) => Ok(mutex.remaining_lease().await?),
            None => Ok(None),
        }
    }

    /// Waits until all locks that were held are released.
    pub(crate) async fn close(&self) -> Result<()> {
        if let Some(locks) = &self.locks {
            locks.close().await?;
        }
        Ok(())
    }
}
