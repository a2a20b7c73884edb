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
    pub(crate) location: Place,
    /// What the program was doing then.
    pub(crate) context: Option<Arc<Context>>,
    /// Who has the lock, if that is known.
    pub(crate) by: Option<Owned>,
    /// How many requests of this process there are for the lock.
    pub(crate) waiting: usize,
}

/// The requests that were refused once and are still in their line. Mostly there are none, so this takes one pointer.
#[derive(Debug, Default)]
pub(super) struct Waits(Option<Box<Refused>>);

#[derive(Debug)]
struct Refused {
    /// In the order of their numbers. Never empty.
    requests: VecDeque<Wait>,
    /// When one of them is to be reported, or earlier: the one that it was set for may have left.
    due: Instant,
}

/// One request that waits.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) id: u64,
    pub(super) location: Place,
    pub(super) context: Option<Arc<Context>>,
    /// When it is reported next.
    pub(super) due: Instant,
}

impl Waits {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.0.as_ref().map(|refused| refused.due)
    }

    pub(super) fn begin(&mut self, wait: Wait) {
        let Some(refused) = &mut self.0 else {
            self.0 = Some(Box::new(Refused { due: wait.due, requests: VecDeque::from([wait]) }));
            return;
        };
        if let Err(at) = refused.place_of(wait.id) {
            refused.due = refused.due.min(wait.due);
            refused.requests.insert(at, wait);
        }
    }

    /// Adds the context of a request. Drop the returned value once nothing is locked.
    pub(super) fn set_context(&mut self, id: u64, context: Arc<Context>) -> Option<Arc<Context>> {
        match self.0.as_mut().and_then(|refused| refused.get_mut(id)) {
            Some(wait) => wait.context.replace(context),
            None => Some(context),
        }
    }

    /// Removes a request. Drop the returned value once nothing is locked.
    pub(super) fn end(&mut self, id: u64) -> Option<Arc<Context>> {
        let refused = self.0.as_mut()?;
        let wait = refused.place_of(id).ok().and_then(|at| refused.requests.remove(at))?;
        self.0.take_if(|refused| refused.requests.is_empty());
        wait.context
    }

    /// Passes the requests that are due to `report`. Each is due again after `pause`.
    pub(super) fn report(&mut self, now: Instant, pause: Duration, mut report: impl FnMut(&Wait)) {
        let Some(refused) = self.0.as_mut().filter(|refused| refused.due <= now) else { return };
        for wait in refused.requests.iter_mut().filter(|wait| wait.due <= now) {
            report(wait);
            wait.due = after(now, pause);
        }
        refused.due = refused.requests.iter().map(|wait| wait.due).min().unwrap_or(refused.due);
    }
}

impl Refused {
    fn place_of(&self, id: u64) -> Result<usize, usize> {
        self.requests.binary_search_by_key(&id, |wait| wait.id)
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut Wait> {
        let at = self.place_of(id).ok()?;
        self.requests.get_mut(at)
    }
}
