//! `Orphans`: holds that are over, but whose field may remain on a minority of masters.
//!
//! They are kept apart from the holds that requests look at: while a master is frozen, a busy lock leaves thousands of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{MasterSet, Spread, after};
use crate::table::hold::Hold;
use crate::table::numbers::Numbers;
use crate::table::timing::Timing;
use crate::wire::Pending;

/// Orphans are looked at no more often than this, though each has its own due time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

impl Hold {
    /// Returns whether all that is left is to send its end to some of the masters.
    pub(super) fn is_orphan(&self) -> bool {
        self.levels.is_empty() && self.pending_releases.is_none() && self.is_gone() && self.has_remains()
    }

    /// Makes the orphan that this command left on masters where it ran after its hold was over.
    pub(super) fn left_behind(
        pending: &Pending,
        masters: MasterSet,
        timing: Arc<Timing>,
        now: Instant,
    ) -> Hold {
        let lease = pending.call.action.lease().unwrap_or(timing.lease);
        let (keys, field) = (pending.call.keys.clone(), pending.call.field.clone());
        let mut hold = Hold::new(pending.hold, keys, field, timing, lease, now);
        hold.mark_gone(true);
        hold.copies.change(|copies| copies.remains = masters);
        hold
    }

    fn due_as_orphan(&self) -> Instant {
        self.due(false, 0).unwrap_or(self.gone_by)
    }
}

/// The orphans of one lock. Boxed, since there are rarely any.
#[derive(Debug, Default)]
pub(crate) struct Orphans(Option<Box<Schedule>>);

/// Orphans sorted by due time, so that a look costs only as much as those that are due, however many there are.
#[derive(Debug, Default)]
struct Schedule {
    holds: BTreeMap<u64, Orphan>,
    dues: BTreeSet<(Instant, u64)>,
    paused_until: Option<Instant>,
    /// The orphan that was handed out for a change, so that the due time noted for it may be out of date.
    handed_out: Option<u64>,
}

#[derive(Debug)]
struct Orphan {
    hold: Hold,
    due: Instant,
}

impl Orphans {
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|schedule| schedule.holds.is_empty())
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|schedule| schedule.holds.keys().copied())
    }

    pub(super) fn take_in(&mut self, hold: Hold) {
        let schedule = self.0.get_or_insert_default();
        let (id, due) = (hold.id, hold.due_as_orphan());
        schedule.dues.insert((due, id));
        schedule.holds.insert(id, Orphan { hold, due });
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Hold> {
        self.take_back();
        let schedule = self.0.as_mut()?;
        let orphan = schedule.holds.get_mut(&id)?;
        schedule.handed_out = Some(id);
        Some(&mut orphan.hold)
    }

    /// Takes back the orphan that was handed out, which may be due at another time now, or be over.
    pub(super) fn take_back(&mut self) {
        if let Some(schedule) = &mut self.0
            && let Some(id) = schedule.handed_out.take()
        {
            schedule.note(id);
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let schedule = self.0.as_ref()?;
        let (first, _) = schedule.dues.first()?;
        Some(schedule.paused_until.map_or(*first, |paused_until| paused_until.max(*first)))
    }

    /// Returns the commands that have to be sent now. Forgets fields that have expired on the masters.
    pub(super) fn check(&mut self, now: Instant, away: MasterSet, numbers: &Numbers) -> Vec<Pending> {
        self.take_back();
        let mut commands = Vec::new();
        let is_due = self.due().is_some_and(|due| due <= now);
        let Some(schedule) = self.0.as_mut().filter(|_| is_due) else { return commands };
        schedule.paused_until = Some(after(now, SHORTEST_PAUSE));
        let due: Vec<u64> = schedule.dues.range(..=(now, u64::MAX)).map(|(_, id)| *id).collect();
        for id in due {
            let Some(Orphan { hold, .. }) = schedule.holds.get_mut(&id) else { continue };
            if hold.gone_by <= now {
                // The key has expired by now on every master that still had it.
                hold.copies.set_left(Spread::NONE);
            }
            if hold.copies.remains.without(away).is_empty() && hold.next_action().is_some() {
                hold.failed(now);
            }
            commands.extend(hold.due_command(now, false, numbers));
            schedule.note(id);
        }
        commands
    }

    /// Called when this master has a connection again: the orphans that it may have are retried at once.
    pub(crate) fn retry(&mut self, master: usize, now: Instant) {
        for id in self.ids().collect::<Vec<_>>() {
            if let Some(hold) = self.get_mut(id).filter(|hold| hold.copies.remains.contains(master)) {
                // A failure that is reported now does not put this off: 1. The orphan is being ended there, and the connection
                // breaks. 2. There is a new connection. 3. The failure is reported.
                hold.retry_at = now;
                hold.doubt();
            }
        }
        self.take_back();
    }
}

impl Schedule {
    fn note(&mut self, id: u64) {
        let Some(orphan) = self.holds.get_mut(&id) else { return };
        self.dues.remove(&(orphan.due, id));
        if orphan.hold.is_over() {
            self.holds.remove(&id);
        } else {
            orphan.due = orphan.hold.due_as_orphan();
            self.dues.insert((orphan.due, id));
        }
    }
}
