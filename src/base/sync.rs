//! Locking that ignores poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex even if a panic poisoned it. Each critical section here leaves its data consistent before it can
/// panic, and a guard that is dropped while the thread unwinds must still be released.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
