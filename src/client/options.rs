//! What a caller asks for.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, shown};
use crate::owner::Owner;
use crate::session::{Handle, clock};
use crate::wire::keys::{self, Keys};
use crate::wire::{Fence, Reply};

/// What is asked for: a lock, and the options of the call.
#[derive(Clone, Debug)]
pub(super) struct AcquireOptions {
    pub(super) handle: Handle,
    pub(super) keys: Arc<Keys>,
    pub(super) within: Option<Duration>,
    pub(super) fixed_lease: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) owner: Option<Owner>,
    /// Not for a `run`: the owner of a bare request is not its alone.
    pub(super) bare: bool,
    /// Not to be granted in time is an error, not `None`.
    pub(super) must: bool,
    /// The hold is to have a fencing token.
    pub(super) fenced: bool,
}

impl AcquireOptions {
    /// What is told where somebody else has the lock for too long, if that is an error.
    pub(super) fn refusal(&self) -> Option<Error> {
        let within = self.within.unwrap_or_default();
        let told = || {
            format!(
                "somebody else held it for all of the {within:?} that `within` allows; try again later, or wait longer"
            )
        };
        self.must.then(|| Error::new(ErrorKind::Timeout, told()))
    }
    /// What an attempt that is made now asks of the fencing counter.
    pub(super) fn fence(&self) -> Option<Arc<Fence>> {
        let session = self.fenced.then_some(&self.handle)?;
        let counter = keys::counter(&session.config.prefix, &self.keys.name).into();
        let least = (!session.quorum.has_time()).then(clock::time_of_day);
        Some(Arc::new(Fence { counter, least, stays: session.config.token_ttl }))
    }

    /// What is told where one of its keys is in the way.
    pub(super) fn foreign(&self, found: &Reply) -> Option<Error> {
        let told = match found {
            Reply::NotALock(found) => {
                let key = shown(&self.keys.key);
                format!(
                    "the key `{key}` holds something that is no lock: {found}; it is left untouched; use another name, or \
                     remove the key"
                )
            }
            Reply::NotACounter(found) => {
                let counter = keys::counter(&self.handle.config.prefix, &self.keys.name);
                format!(
                    "the key `{}` can't count fencing tokens: it holds {found}; it is left untouched; use another name, or \
                     remove the key",
                    shown(&counter)
                )
            }
            _ => return None,
        };
        Some(Error::new(ErrorKind::NotALock, told))
    }
}
