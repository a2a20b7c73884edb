//! What is sent for a hold.

use std::sync::Arc;

use tokio::time::Instant;

use crate::base::{Lease, MasterSet};
use crate::wire::fence::Fence;

/// A command of a hold, with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Acquire {
        count: u32,
        lease: Lease,
    },
    Release {
        count: u32,
    },
    Renew {
        lease: Lease,
    },
    Settle {
        count: u32,
        lease: Lease,
    },
    /// A settle that also makes the hold where it is not: for masters that lack what stands on a majority.
    Repair {
        count: u32,
        lease: Lease,
    },
}

impl Step {
    /// The lease that it may give the key.
    pub(crate) fn lease(self) -> Option<Lease> {
        match self {
            Step::Acquire { lease, .. }
            | Step::Renew { lease }
            | Step::Settle { lease, .. }
            | Step::Repair { lease, .. } => Some(lease),
            Step::Release { .. } => None,
        }
    }

    /// Whether it makes a field where there is none.
    pub(crate) fn creates(self) -> bool {
        matches!(self, Step::Acquire { count: 1, .. } | Step::Repair { .. })
    }

    /// Whether the hold's fencing counter is dealt with too. `again`: it was put off before, maybe for the counter's sake, which
    /// is left to the renewals then.
    pub(crate) fn is_counted(self, again: bool) -> bool {
        match self {
            Step::Acquire { count, .. } => count == 1,
            Step::Release { .. } => false,
            Step::Settle { .. } => !again,
            Step::Renew { .. } | Step::Repair { .. } => true,
        }
    }
}

/// A command to be sent, and how to name it when its answer comes.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) hold: u64,
    pub(crate) no: u64,
    pub(crate) field: Arc<str>,
    pub(crate) step: Step,
    /// Whom it is for.
    pub(crate) masters: MasterSet,
    /// A release that was sent before and may have run.
    pub(crate) repeated: bool,
    pub(crate) sent: Instant,
    /// What is to be done with the fencing counter.
    pub(crate) fence: Option<Arc<Fence>>,
}

impl Job {
    /// The renewal that writes the token of this acquire to a majority, if the lock is still held.
    pub(crate) fn acknowledging(&self, token: u64) -> Job {
        let lease = self.step.lease().unwrap_or(Lease::SHORTEST);
        let fence = self.fence.as_ref().map(|fence| Arc::new(fence.with(token)));
        Job { step: Step::Renew { lease }, fence, ..self.clone() }
    }
}
