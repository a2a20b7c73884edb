//! The options of a call.

use std::panic::Location;
use std::time::Duration;

use crate::base::telemetry::Place;
use crate::client::hold_times::Times;
use crate::owner::Owner;

/// The options of a request for one lock or for several.
#[derive(Clone, Debug)]
pub(super) struct CallOptions {
    pub(super) within: Option<Duration>,
    /// Boxed, since few requests set any, and 100,000 may wait.
    pub(super) times: Option<Box<Times>>,
    pub(super) owner: Option<Owner>,
    /// Whether the request was made without a `run`: its owner may have other requests too.
    pub(super) bare: bool,
    /// Whether the hold needs a fencing token.
    pub(super) fenced: bool,
    /// Whether a request that is not granted ends with an error, and not with `None`.
    pub(super) busy_is_error: bool,
    /// Where in the code the request was made.
    pub(super) location: Place,
}

impl CallOptions {
    /// Returns the options of a bare request, made at the place of this call. With `within`, it ends with `None` when that time is
    /// over.
    #[track_caller]
    pub(super) fn new(within: Option<Duration>, fenced: bool) -> CallOptions {
        let (times, owner, location) = (None, None, Location::caller());
        CallOptions { within, times, owner, bare: true, fenced, busy_is_error: within.is_none(), location }
    }

    pub(super) fn times(&self) -> Times {
        self.times.as_deref().copied().unwrap_or_default()
    }
}
