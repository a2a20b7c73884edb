//! What a caller asks for.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::names::Names;
use crate::owner::Owner;
use crate::session::Handle;

/// What is asked for: a lock, and the options of the call.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) handle: Handle,
    pub(crate) names: Arc<Names>,
    pub(crate) within: Option<Duration>,
    pub(crate) fixed_lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) owner: Option<Owner>,
    /// Not for a `run`: the owner of a bare request is not its alone.
    pub(crate) bare: bool,
    /// Not to be granted in time is an error, not `None`.
    pub(crate) must: bool,
}

impl Wish {
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
}
