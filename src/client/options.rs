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
pub(crate) struct AcquireOptions {
    pub(crate) handle: Handle,
    pub(crate) keys: Arc<Keys>,
    pub(crate) within: Option<Duration>,
    pub(crate) fixed_lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) owner: Option<Owner>,
    /// Not for a `run`: the owner of a bare request is not its alone.
    pub(crate) bare: bool,
    /// Not to be granted in time is an error, not `None`.
    pub(crate) must: bool,
    /// The hold is to have a fencing token.
    pub(crate) fenced: bool,
}

impl AcquireOptions {
    /// What is told where somebody else has the lock for too long, if that is an error.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let within = self.within.unwrap_or_default();
        let told = || {
            format!(
                "somebody else held it for all of the {within:?} that `within` allows; try again later, or wait longer"
            )
        };
        self.must.then(|| Error::new(ErrorKind::Timeout, told()))
    }
    /// What an attempt that is made now asks of the fencing counter.
    pub(crate) fn fence(&self) -> Option<Arc<Fence>> {
        let session = self.fenced.then_some(&self.handle)?;
        let counter = keys::counter(&session.config.prefix, &self.keys.name).into();
        let least = (!session.quorum.has_time()).then(clock::time_of_day);
        Some(Arc::new(Fence { counter, least, stays: session.config.token_ttl }))
    }

    /// What is told where one of its keys is in the way.
    pub(crate) fn foreign(&self, found: &Reply) -> Option<Error> {
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
