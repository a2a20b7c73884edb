//! Calls the user's code, which may panic, in the middle of other work: functions given as options, wakers, the program's recorder of
//! metrics, and its `tracing` subscriber.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Returns what the code returns, or `None` if it panics; the panic hook has reported the panic by then. Without this:
///
/// 1. A request is granted, which is counted.
/// 2. The user's code panics.
/// 3. The request unwinds, and nobody has the guard of a hold that is renewed for ever.
///
/// In a task of this crate a panic would also end everything else that the task does.
pub(crate) fn unless_it_panics<T>(code: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(code)).ok()
}

/// Wakes tasks of the program. A waker that panics neither leaves the others asleep nor unwinds into the caller.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        unless_it_panics(|| waker.wake());
    }
}

#[cfg(test)]
mod tests;
