//! `Waits`: the requests that wait for others, and when the log next reports each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::after;
use crate::base::telemetry::{Context, Place};
use crate::table::seen::Owned;

/// A request that has waited for long.
#[derive(Debug)]
pub(crate) struct LongWait {
    pub(crate) waited: Duration,
    /// Where it was made.
    pub(crate) place: Place,
    /// What the program was doing then.
    pub(crate) context: Option<Arc<Context>>,
    /// Whose the lock is, where that is known.
    pub(crate) by: Option<Owned>,
    /// How many requests of this process there are for the lock.
    pub(crate) waiting: usize,
}

/// Those that were refused once, and are in their line yet.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// In the order of their numbers.
    requests: VecDeque<Wait>,
    /// When one of them is to be reported, or earlier: the one that it was set for may be gone.
    due: Option<Instant>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) id: u64,
    pub(super) place: Place,
    pub(super) context: Option<Arc<Context>>,
    /// When it is reported next.
    pub(super) due: Instant,
}

impl Waits {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    fn place_of(&self, id: u64) -> Result<usize, usize> {
        self.requests.binary_search_by_key(&id, |wait| wait.id)
    }

    pub(super) fn begin(&mut self, wait: Wait) {
        if let Err(at) = self.place_of(wait.id) {
            self.due = Some(self.due.map_or(wait.due, |due| due.min(wait.due)));
            self.requests.insert(at, wait);
        }
    }

    /// What comes back is to be dropped once nothing is locked.
    pub(super) fn set_context(&mut self, id: u64, context: Arc<Context>) -> Option<Arc<Context>> {
        match self.place_of(id) {
            Ok(at) => self.requests[at].context.replace(context),
            Err(_) => Some(context),
        }
    }

    /// What comes back is to be dropped once nothing is locked.
    pub(super) fn end(&mut self, id: u64) -> Option<Arc<Context>> {
        let wait = self.place_of(id).ok().and_then(|at| self.requests.remove(at))?;
        if self.requests.is_empty() {
            self.due = None;
        }
        wait.context
    }

    /// Hands those that are due to `report`. Each is due again after `pause`.
    pub(super) fn report(&mut self, now: Instant, pause: Duration, mut report: impl FnMut(&Wait)) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        for wait in self.requests.iter_mut().filter(|wait| wait.due <= now) {
            report(wait);
            wait.due = after(now, pause);
        }
        self.due = self.requests.iter().map(|wait| wait.due).min();
    }
}
