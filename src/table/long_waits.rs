//! When the log reports requests that have waited for a long time.

use std::sync::Arc;

use tokio::time::Instant;

use crate::base::telemetry::{Context, Place};
use crate::base::{Moment, after, earlier};
use crate::table::effects::{LogEvent, LongWait};
use crate::table::entry::LockEntry;
use crate::table::queue::Wait;
use crate::table::timing::WarnAfter;

impl LockEntry {
    /// Called when this request was refused and begins to wait: the log reports it as `warn_after` says, until it leaves the queue.
    pub(crate) fn schedule_wait_report(&mut self, id: u64, location: Place, now: Instant) {
        let Some(WarnAfter { first, .. }) = self.timing.warn_after else { return };
        let Some(request) = self.queue.get_mut(id).filter(|request| request.wait.is_none()) else { return };
        let due = after(request.began, first).max(now);
        request.wait = Some(Box::new(Wait { location, context: None, due }));
        self.queue.set_report_at(earlier(self.queue.report_at(), Some(due)));
    }

    /// Notes what the program was doing when it made the request. This is a visit of its own, since the subscriber's code must not
    /// run while the table is locked. Drop the returned value once the table is unlocked.
    #[must_use]
    pub(crate) fn set_wait_context(&mut self, id: u64, context: Arc<Context>) -> Option<Arc<Context>> {
        match self.queue.get_mut(id).and_then(|request| request.wait.as_mut()) {
            Some(wait) => wait.context.replace(context),
            None => Some(context),
        }
    }

    /// Reports the requests that have waited for a long time.
    pub(super) fn report_waits(&mut self, at: Moment) {
        let Some(WarnAfter { again, .. }) = self.timing.warn_after else { return };
        if self.queue.report_at().is_none_or(|due| due > at.now) {
            return;
        }
        let (by, waiting) = (self.holder(at), self.queue.len());
        let mut next = None;
        for request in self.queue.iter_mut() {
            let waited = request.waited(at.now);
            let Some(wait) = &mut request.wait else { continue };
            if wait.due <= at.now {
                let (location, context, by) = (wait.location, wait.context.clone(), by.clone());
                let report = LongWait { waited, location, context, by, waiting };
                self.out.log(LogEvent::Waits(Box::new(report)));
                wait.due = after(at.now, again);
            }
            next = earlier(next, Some(wait.due));
        }
        self.queue.set_report_at(next);
    }
}
