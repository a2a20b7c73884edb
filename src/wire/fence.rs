//! A lock's fencing counter, and what is asked of it.

use std::sync::Arc;

use crate::base::Lease;

/// What a command is to do with the fencing counter of its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    /// The counter's key.
    pub(crate) counter: Arc<str>,
    /// The counter is this much at least, afterwards: of an acquire the time in microseconds, of a hold its token. `None`: the
    /// server's own time.
    pub(crate) least: Option<u64>,
    /// How long the counter stays when it is not used; `None`: for ever.
    pub(crate) stays: Option<Lease>,
}

impl Fence {
    /// The same for a hold that has this token.
    pub(crate) fn with(&self, token: u64) -> Fence {
        Fence { least: Some(token), ..self.clone() }
    }
}

/// The token of a lock, by the masters that granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// The highest, which is the token.
    pub(crate) highest: u64,
    /// A majority has a counter that is as high. Else a later holder, which may be granted by the others, could be given less.
    pub(crate) agreed: bool,
}
