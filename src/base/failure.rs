//! A command that failed.

use crate::error::Error;

/// A call that failed, and what is known about it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// What the server may have done.
    pub(crate) outcome: Outcome,
    /// The error for the user, with the server's address and the cause.
    pub(crate) error: Error,
}

impl Failure {
    /// Returns the failure of a call that certainly did not run.
    pub(crate) fn not_run(error: Error) -> Failure {
        Failure { outcome: Outcome::NotRun, error }
    }

    /// Returns the failure of a call that may have run.
    pub(crate) fn unknown(error: Error) -> Failure {
        Failure { outcome: Outcome::Unknown, error }
    }
}

/// What a server may have done with a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It certainly did not run, and will not.
    NotRun,
    /// It may have run, in whole or in part, or may run later.
    Unknown,
}
