//! Whether the user may read who holds a lock.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::base::Failure;
use crate::wire::{Call, Reply};

/// Whether acquires ask who holds a busy lock, as far as answers have shown. A user may lack the right: then it is asked for once, and not
/// with each acquire, since a server counts and logs what it denies.
#[derive(Debug, Default)]
pub(crate) struct NameRight {
    lacks: AtomicBool,
}

impl NameRight {
    /// Before a call is sent.
    pub(crate) fn apply(&self, call: &mut Call) {
        call.names &= !self.lacks.load(Relaxed);
    }

    /// With the answer to each call. One that asks for the name alone may show that the right was granted since.
    pub(crate) fn learn(&self, answer: &Result<Reply, Failure>) {
        match answer {
            Ok(Reply::Nameless(_)) => self.lacks.store(true, Relaxed),
            Ok(Reply::Busy(_, Some(_))) => self.lacks.store(false, Relaxed),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::holder::Holder;
    use crate::wire::Action;

    #[test]
    fn a_name_that_is_denied_is_not_asked_for_until_one_is_read() {
        let (right, call) = (NameRight::default(), Call::of("stock", "", Action::Look));
        let second = Duration::from_secs(1);
        let asks = |answer: Result<Reply, Failure>| {
            right.learn(&answer);
            let asked = [true, false].map(|names| {
                let mut call = Call { names, ..call.clone() };
                right.apply(&mut call);
                call.names
            });
            assert!(!asked[1]);
            asked[0]
        };
        assert!(asks(Ok(Reply::Done)) && asks(Ok(Reply::busy(second))));
        assert!(!asks(Ok(Reply::Nameless(second))));
        assert!(!asks(Ok(Reply::busy(second))) && !asks(Ok(Reply::Done)));
        assert!(asks(Ok(Reply::held_by(Holder::new("f", 1, second)))));
    }
}
