//! One level of a hold.

use std::sync::Arc;

use crate::base::{Fate, Stamp};
use crate::owner::Owner;

/// One acquisition inside a hold: what one guard stands for.
#[derive(Debug)]
pub(crate) struct Level {
    pub(super) id: u64,
    pub(crate) owner: Owner,
    /// Taken by a bare request: its owner may have branches.
    pub(super) bare: bool,
    /// Taken by a bare request that was proven to be one of several branches of its owner.
    pub(super) branch: bool,
    /// Renewed by the watchdog: it has no end of its own.
    pub(super) watched: bool,
    /// The end of a fixed lease, or what `extend` promised.
    pub(super) until: Option<Stamp>,
    pub(crate) max_hold: Option<Stamp>,
    pub(super) fate: Arc<Fate>,
}
