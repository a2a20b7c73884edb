//! The Lua files as typed calls, and what they answer.

use std::sync::Arc;
use std::time::Duration;

use crate::deadline::Lease;

/// One run of one script: what is asked of one server.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// Make `field` a holder with `count` holds, for at least `lease`.
    Acquire { key: Arc<str>, field: Arc<str>, count: u32, lease: Lease },
    /// Lower the count of `field` to `count`; 0 ends the hold.
    Release { key: Arc<str>, channel: Arc<str>, field: Arc<str>, count: u32 },
    /// Let the hold of `field` live for at least `lease` from now.
    Renew { key: Arc<str>, field: Arc<str>, lease: Lease },
    /// After an unknown outcome: make the count of `field`, if it is there, exactly `count`; 0 ends the hold.
    Settle { key: Arc<str>, channel: Arc<str>, field: Arc<str>, count: u32, lease: Lease },
    /// Free the lock, whoever holds it.
    Force { key: Arc<str>, channel: Arc<str> },
    /// Who is in the way, if anybody.
    Look { key: Arc<str> },
}

/// What a server answered to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It is as asked: granted, released, lowered, renewed, settled, freed.
    Done,
    /// The count could not be lowered (a full server): the hold stands, and must be settled later.
    Deferred(String),
    /// Somebody else holds the lock, for that long yet.
    Busy(Duration),
    /// The field is not there.
    Gone,
    /// Nobody holds the lock.
    Free,
    /// The key holds something else: its type, and what is wrong with it.
    NotALock(String),
}
