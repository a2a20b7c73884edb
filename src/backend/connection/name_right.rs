//! Tracks whether the user may read who holds a lock, and use its line.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::base::{Failure, Outcome};
use crate::error::ErrorKind;
use crate::wire::{Call, Reply};

/// Whether acquires ask who holds a busy lock, as far as answers have shown. If the user lacks the right, it is asked for only once, and
/// not with each acquire, since a server counts and logs what it denies.
#[derive(Debug, Default)]
pub(crate) struct NameRight {
    lacks: AtomicBool,
    /// Whether the keys of lines are denied, and with them the whole call.
    lacks_lines: AtomicBool,
}

impl NameRight {
    /// Leaves out of a call what the user may not do. Called before it is sent.
    pub(crate) fn apply(&self, call: &mut Call) {
        call.names &= !self.lacks.load(Relaxed);
        call.line.take_if(|_| self.lacks_lines.load(Relaxed));
    }

    /// Returns whether the answer denies the call as a whole, possibly because of its line. The call is then sent again without it.
    pub(crate) fn may_lack_lines(call: &Call, answer: &Result<Reply, Failure>) -> bool {
        call.line.is_some() && is_denied(answer)
    }

    /// Takes the answer to the same call without its line. If it is not denied, the line was what the user may not use.
    pub(crate) fn learn_of_lines(&self, answer: &Result<Reply, Failure>) {
        if !is_denied(answer) {
            self.lacks_lines.store(true, Relaxed);
        }
    }

    /// Takes the answer to each call. The answer to a query for the name alone may show that the right was granted since.
    pub(crate) fn learn(&self, answer: &Result<Reply, Failure>) {
        match answer {
            Ok(Reply::Nameless(_)) => self.lacks.store(true, Relaxed),
            Ok(Reply::Busy(_, Some(_)) | Reply::InLine(..)) => self.lacks.store(false, Relaxed),
            _ => {}
        }
    }
}

fn is_denied(answer: &Result<Reply, Failure>) -> bool {
    let denied =
        |failure: &Failure| failure.outcome == Outcome::NotRun && failure.error.kind() == ErrorKind::Denied;
    answer.as_ref().is_err_and(denied)
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
