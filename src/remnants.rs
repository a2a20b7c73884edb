//! Holds that are no more, of which a minority of masters may have a field yet.
//!
//! Apart from those that requests look at: while a master is frozen, a lock that is busy leaves thousands of them.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::deadline::after;
use crate::hold::Hold;
use crate::step::Job;
use crate::terms::Terms;

/// All are looked at no more often than this: each of them is due at a moment of its own.
const REST: Duration = Duration::from_millis(20);

impl Hold {
    /// Only some masters are still to hear of its end.
    pub(crate) fn is_remnant(&self) -> bool {
        self.levels.is_empty() && self.leaving.is_empty() && self.gone && self.has_remains()
    }

    /// One that was over when this command of it ran on a master.
    pub(crate) fn left_behind(job: &Job, node: usize, terms: Terms, now: Instant) -> Hold {
        let lease = job.step.lease().unwrap_or(terms.lease);
        let (mut hold, _) = Hold::asked(job.hold, job.field.clone(), terms, lease, None, now);
        hold.finish(job.hold, now);
        (hold.gone, hold.remnant) = (true, true);
        hold.spread.remains.insert(node);
        hold
    }
}

#[derive(Debug, Default)]
pub(crate) struct Remnants {
    holds: BTreeMap<u64, Hold>,
    /// No later than the first of them has something to do.
    due: Option<Instant>,
    rests_until: Option<Instant>,
    /// It may have changed since it was noted when it is due.
    lent: Option<u64>,
}

impl Remnants {
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    pub(crate) fn take_in(&mut self, hold: Hold) {
        let id = hold.id;
        self.holds.insert(id, hold);
        self.note(id);
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Hold> {
        self.tidy();
        let hold = self.holds.get_mut(&id)?;
        self.lent = Some(id);
        Some(hold)
    }

    /// Looks at the one that was lent out.
    pub(crate) fn tidy(&mut self) {
        if let Some(id) = self.lent.take() {
            self.note(id);
        }
    }

    fn note(&mut self, id: u64) {
        let Some(hold) = self.holds.get(&id) else { return };
        if hold.is_over() {
            self.holds.remove(&id);
            return;
        }
        let due = hold.due(false, 0).max(self.rests_until);
        self.due = self.due.into_iter().chain(due).min();
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.holds.is_empty())
    }

    /// What has to be sent now. What the masters have dropped by themselves is forgotten.
    pub(crate) fn check(&mut self, now: Instant, numbers: &mut dyn FnMut() -> u64) -> Vec<Job> {
        self.tidy();
        if self.due().is_none_or(|due| now < due) {
            return Vec::new();
        }
        self.holds.retain(|_, hold| now < hold.stands_until && !hold.is_over());
        let jobs = self.holds.values_mut().filter_map(|hold| hold.due_job(now, false, numbers)).collect();
        self.rests_until = Some(after(now, REST));
        let due = self.holds.values().filter_map(|hold| hold.due(false, 0)).min();
        self.due = due.max(self.rests_until.filter(|_| due.is_some()));
        jobs
    }
}
