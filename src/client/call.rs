//! The options of a call.

use std::panic::Location;
use std::time::Duration;

use crate::base::telemetry::Place;
use crate::client::hold_times::HoldTimes;
use crate::owner::Owner;

/// How a lock is asked for, or several are.
#[derive(Clone, Debug)]
pub(super) struct CallOptions {
    pub(super) within: Option<Duration>,
    pub(super) times: HoldTimes,
    pub(super) owner: Option<Owner>,
    /// Whether it was asked for without a `run`: the owner of a bare request is not its alone.
    pub(super) bare: bool,
    /// Whether the hold is to have a fencing token.
    pub(super) fenced: bool,
    /// Whether it ends with an error if it is not granted, and not with `None`.
    pub(super) reports: bool,
    /// Where in the code it was asked for.
    pub(super) place: Place,
}

impl CallOptions {
    /// The options of a bare request that is made where this is called. With `within`, it ends with `None` when that time is over.
    #[track_caller]
    pub(super) fn new(within: Option<Duration>, fenced: bool) -> CallOptions {
        let (times, owner, place) = (HoldTimes::default(), None, Location::caller());
        CallOptions { within, times, owner, bare: true, fenced, reports: within.is_none(), place }
    }
}
