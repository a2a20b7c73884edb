//! Locking that survives a panic elsewhere.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also where a panic poisoned the mutex: each critical section here leaves its data whole before it can
/// panic, and a guard that is dropped while the thread unwinds must be released all the same.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
