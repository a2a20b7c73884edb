//! Locking that ignores poison.

// The types of shared state. Under shuttle they are shuttle's own, so that it can run another thread at each use.
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, atomic};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, atomic};
#[cfg(not(shuttle))]
use std::sync::{MutexGuard, PoisonError};

#[cfg(shuttle)]
pub(crate) use testing::lock;

/// Locks a mutex even if a panic poisoned it. Each critical section of the crate leaves its data consistent before it can panic, and a
/// guard that is dropped while the thread unwinds must still be released.
#[cfg(not(shuttle))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(shuttle)]
mod testing;
