//! A command of a hold that is sent to the masters, and how its votes are counted.

use std::sync::Arc;

use tokio::time::Instant;

use crate::base::{Lease, MasterSet};
use crate::wire::script::{Action, Call};

/// A command to be sent, and how to name it when its answer comes.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) hold: u64,
    pub(crate) no: u64,
    pub(crate) call: Call,
    /// Whom it is for.
    pub(crate) masters: MasterSet,
    /// A release that was sent before and may have run.
    pub(crate) repeated: bool,
    pub(crate) sent: Instant,
}

/// How the masters' votes on a command are counted. Not the same as what is asked for: whether a look is to show that the lock is held,
/// or for how long, and whether the end of a hold is sent to all masters or to those that may still have it, is one command each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The lock, for a new field.
    Fresh,
    /// Something about a hold that is there, or should be.
    Standing,
    /// A hold that is there, or should be, for a new field.
    Claim,
    /// The end of a hold. `repeated`: asked before, so "not there" is what it would answer after success.
    End { repeated: bool },
    /// The end of what a minority may still have: each master for itself.
    Remains,
    /// What some masters lack is to be put there: nobody waits for it.
    Repair,
    /// The end of whatever hold there is.
    Force,
    /// Whether there is any hold.
    IsHeld,
    /// When a majority can be won, if nobody renews what is in the way.
    HeldFor,
    /// Whose hold a majority has.
    Who,
}

impl Rule {
    /// Whether it is about one hold, not about the lock whoever has it.
    pub(crate) fn is_about_a_hold(self) -> bool {
        !matches!(self, Rule::Force | Rule::IsHeld | Rule::HeldFor | Rule::Who)
    }
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

    /// Whether it ends its hold.
    pub(crate) fn is_end(&self) -> bool {
        self.call.action.is_end()
    }

    /// The renewal that writes the token of this acquire to a majority, if the lock is still held.
    pub(crate) fn acknowledging(&self, token: u64) -> Pending {
        let lease = self.call.action.lease().unwrap_or(Lease::SHORTEST);
        let fence = self.call.fence.as_ref().map(|fence| Arc::new(fence.with(token)));
        let call = Call { action: Action::Renew { lease }, fence, ..self.call.clone() };
        Pending { call, ..self.clone() }
    }
}
