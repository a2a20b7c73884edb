//! A command of a hold that is sent to the masters, and how its votes are counted.

use std::sync::Arc;

use tokio::time::Instant;

use crate::base::{Lease, MasterSet};
use crate::wire::script::{Action, Call};

/// A command to be sent, and what identifies it when its answer arrives.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) hold: u64,
    pub(crate) command_id: u64,
    pub(crate) call: Call,
    /// The masters that it is meant for.
    pub(crate) masters: MasterSet,
    /// Whether it is a release that was sent before and may have run.
    pub(crate) repeated: bool,
    pub(crate) sent: Instant,
}

/// How the masters' votes on a command are counted. The command alone does not determine this: a look may ask whether the lock is
/// held, or for how long, and the end of a hold may go to all masters or only to those that may still have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A grant of the lock to a new field.
    Fresh,
    /// A command on a hold that exists, or should exist.
    #[default]
    Standing,
    /// The move of a hold that exists, or should exist, to a new field.
    Claim,
    /// The end of a hold. `repeated`: it was sent before, so "not there" is what it would answer after success.
    End { repeated: bool },
    /// The end of a hold that a minority may still have. Each master counts for itself.
    Remains,
    /// Puts a hold on masters that lack it. Nobody waits for it.
    Repair,
    /// The end of whatever hold there is.
    Force,
    /// Whether there is any hold.
    IsHeld,
    /// When a majority can be won if nobody renews the holds that are in the way.
    HeldFor,
    /// Whose hold a majority has.
    Who,
    /// Who waits in the line of the only master.
    Waiters,
}

impl Pending {
    pub(crate) fn rule(&self) -> Rule {
        match self.call.action {
            Action::Acquire { count: 1, .. } => Rule::Fresh,
            action if action.is_end() && self.masters != MasterSet::ALL => Rule::Remains,
            action if action.is_end() => Rule::End { repeated: self.repeated },
            Action::Repair { .. } => Rule::Repair,
            Action::Move { .. } => Rule::Claim,
            _ => Rule::Standing,
        }
    }

    /// Returns whether it ends its hold.
    pub(crate) fn is_end(&self) -> bool {
        self.call.action.is_end()
    }

    /// Returns the renewal that writes the token of this acquire to a majority, if the lock is still held.
    pub(crate) fn acknowledging(&self, token: u64) -> Pending {
        let lease = self.call.action.lease().unwrap_or(Lease::SHORTEST);
        let fence = self.call.fence.as_ref().map(|fence| Arc::new(fence.with(token)));
        let call = Call { action: Action::Renew { lease }, fence, ..self.call.clone() };
        Pending { call, ..self.clone() }
    }
}
