//! Code of the user's that is called in the middle of something, and may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What it returns; `None` where it panics, which the panic hook has reported by then. Else 1. a request is granted, which is counted,
/// 2. the user's code panics, 3. the request unwinds, and nobody has the guard of a hold that is renewed for ever. In a task of this
/// crate, all that the task does would end with it.
pub(crate) fn unless_it_panics<T>(code: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(code)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_panics_returns_nothing() {
        assert_eq!(unless_it_panics(|| 7), Some(7));
        assert_eq!(unless_it_panics(|| -> u8 { panic!("on purpose") }), None);
    }
}
