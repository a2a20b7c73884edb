//! Tracks which optional rights the user has: to read who holds a lock, and to use its line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::base::{Failure, Outcome, telemetry};
use crate::error::ErrorKind;
use crate::wire::{Action, Call, CallResult, Reply};

/// Which optional rights the server has denied, so that calls leave out what needs them. Not every call tries them again, since a
/// server counts and logs what it denies. The next connection does, since they may have been granted in the meantime.
#[derive(Debug, Default)]
pub(crate) struct OptionalRights {
    /// The number of the last connection on which the right to read who holds a lock was denied. Zero means that it was not denied.
    name_denied_on: AtomicU64,
    /// The number of the last connection on which the commands of lines were denied, and with them the whole call. Zero means that
    /// nothing was denied.
    line_denied_on: AtomicU64,
}

impl OptionalRights {
    /// Leaves out the parts of a call that the user may not use. Called before it is sent. `connection` is the number of the connection
    /// that it is sent over, as far as is known.
    pub(crate) fn apply(&self, call: &mut Call, connection: impl FnOnce() -> Option<u64>) {
        let denied_on = [&self.name_denied_on, &self.line_denied_on].map(|on| on.load(Relaxed));
        if denied_on == [0, 0] {
            return;
        }
        let connection = connection();
        let [name_denied, line_denied] = denied_on.map(|on| on != 0 && connection == Some(on));
        call.report_holder &= !name_denied;
        // An acquire reads who holds the lock before it enters the line, so without that right each one would be denied, and never enter.
        let reads_holder = matches!(call.action, Action::Acquire { .. });
        if name_denied && reads_holder || line_denied {
            call.line = None;
        }
    }

    /// Returns whether the answer denies the call as a whole, possibly because of its line. The call is then sent again without it.
    pub(crate) fn may_lack_lines(call: &Call, answer: &CallResult) -> bool {
        let is_denied = |failure: &Failure| {
            failure.outcome == Outcome::NotRun && failure.error.kind() == ErrorKind::Denied
        };
        call.line.is_some() && answer.as_ref().is_err_and(is_denied)
    }

    /// Handles the answer to the same call without its line. If it is answered, the user may not use the line.
    pub(crate) fn learn_of_lines(&self, answer: &CallResult, connection: Option<u64>, server: &str) {
        let Some(connection) = connection.filter(|_| answer.is_ok()) else { return };
        if self.line_denied_on.swap(connection, Relaxed) == 0 {
            telemetry::lines_denied(server);
        }
    }

    /// Handles the answer to each call. The answer to an `Action::Who`, which is always sent as a whole, may show that the right was
    /// granted since.
    pub(crate) fn learn(&self, answer: &CallResult, connection: impl Fn() -> Option<u64>) {
        match answer {
            Ok(Reply::Nameless(_)) => self.name_denied_on.store(connection().unwrap_or_default(), Relaxed),
            Ok(Reply::Busy(_, Some(_)) | Reply::InLine(..)) => self.name_denied_on.store(0, Relaxed),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
