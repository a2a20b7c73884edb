//! A lock's fencing counter, and what commands do with it.

use std::sync::Arc;

use crate::base::Lease;

/// What a command does with the fencing counter of its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    /// The counter's key.
    pub(crate) counter: Arc<str>,
    /// The counter is at least this high afterwards: the time in microseconds for an acquire, the token for a hold. `None` means
    /// the server's own time.
    pub(crate) least: Option<u64>,
    /// How long the counter stays when it is not used. `None` means for ever.
    pub(crate) stays: Option<Lease>,
}

impl Fence {
    /// Returns this fence for a hold that has this token.
    pub(crate) fn with(&self, token: u64) -> Fence {
        Fence { least: Some(token), ..self.clone() }
    }
}

/// The token of a grant, from the masters that granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// The highest, which is the token.
    pub(crate) highest: u64,
    /// Whether a majority has a counter this high. If not, a later holder whom the others grant the lock could get a lower token.
    pub(crate) agreed: bool,
}
