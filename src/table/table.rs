//! `LockTable`: all entries of one `Locks`, and when each has to be looked at.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::earlier;
use crate::owner::{OwnerEnds, Position};
use crate::table::agenda::Agenda;
use crate::table::effects::Effects;
use crate::table::entry::LockEntry;
use crate::table::hold::Hold;
use crate::table::queue::FreeQueues;
use crate::table::timing::Timing;
use crate::wire::keys::Keys;

/// At least this many empty entries may exist before those without a handle are searched for and dropped.
const FEWEST_EMPTY: usize = 64;

/// All locks of a session. Changes only while locked, and is never locked across an await.
#[derive(Debug)]
pub(crate) struct LockTable {
    /// The entries by their slots. An empty entry stays, so that a handle that takes its lock again neither allocates nor frees anything.
    entries: Vec<Option<Box<LockEntry>>>,
    /// Slots of `entries` that are not in use.
    vacant: Vec<usize>,
    slots: HashMap<Arc<str>, usize>,
    /// The number of entries that are not empty.
    busy: usize,
    /// The number of empty entries from which on those without a handle are dropped.
    most_empty: usize,
    /// The channels that are subscribed to, and the locks whose releases they report: in Redisson's naming, the channel of `x` is
    /// also that of `{x}`. Sorted, so that a simulation that iterates over them can be repeated.
    channels: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// Each entry's next due time.
    agenda: Agenda,
    free_queues: FreeQueues,
    /// Whether renewal has ended, because the `Locks` was closed.
    pub(crate) closed: bool,
    /// Until when the watchdog sleeps. `None` while the watchdog is awake, since it looks at the agenda before it sleeps.
    asleep: Option<Option<Instant>>,
    /// How long due work may be left alone. `None` means for ever.
    takeover: Option<Duration>,
    timing: Arc<Timing>,
    /// Notified when the last scope of an owner ends.
    owner_ends: Weak<dyn OwnerEnds>,
    /// Since when something is due that the background task has not looked at, by the real clock, which no test pauses.
    unattended: Option<std::time::Instant>,
}

/// The work that a visit leaves for when the table is unlocked.
#[derive(Debug, Default)]
pub(crate) struct VisitEffects {
    pub(crate) out: Option<Box<Effects>>,
    /// Whether to begin or to end the subscription to the lock's releases.
    pub(crate) subscribe: Option<bool>,
    /// Whether something is due sooner than the watchdog knows.
    pub(crate) sooner: bool,
    /// Whether the background task does not look at what is due.
    pub(crate) unattended: bool,
}

impl LockEntry {
    /// Returns when the entry is due next. `lingers`: even an empty entry stays in the agenda until its noted time.
    fn next_due(&mut self, lingers: bool, now: Instant) -> Option<Instant> {
        // Only the background moves the noted time to a later one, when it looks at that time. Otherwise each pair of a grant and a release
        // would wake the background: 1. A grant makes a renewal due. 2. Its release is sent, which is due to be given up at a
        // later time. 3. The background looks, and sleeps until that later time. 4. The next grant makes a renewal due sooner
        // than the background knows.
        let kept = self.scheduled.filter(|before| *before > now && (lingers || !self.was_empty));
        let due = earlier(self.due(), kept);
        if due == self.scheduled {
            return due;
        }
        // A renewal that is under way counts as confirmed, so that its answer rarely moves the due time.
        let renewals = self.holds.iter().filter_map(Hold::next_renewal).filter(|next| *next > now);
        earlier(due, renewals.min())
    }
}

impl LockTable {
    pub(crate) fn new(
        timing: Arc<Timing>,
        takeover: Option<Duration>,
        owner_ends: Weak<dyn OwnerEnds>,
    ) -> LockTable {
        LockTable {
            entries: Vec::new(),
            vacant: Vec::new(),
            slots: HashMap::new(),
            busy: 0,
            most_empty: FEWEST_EMPTY,
            channels: BTreeMap::new(),
            agenda: Agenda::default(),
            free_queues: FreeQueues::default(),
            closed: false,
            asleep: None,
            takeover,
            timing,
            owner_ends,
            unattended: None,
        }
    }

    /// Sets how long due work may be left alone from now on.
    #[cfg(test)]
    pub(crate) fn set_takeover(&mut self, longest: Duration) {
        self.takeover = Some(longest);
    }

    /// Returns whether the background task has not looked at due work for too long. Returns true once for each such time.
    fn is_unattended(&mut self, takeover: Duration, now: Instant) -> bool {
        if self.agenda.first().is_none_or(|due| due > now) {
            self.unattended = None;
            return false;
        }
        self.unattended.get_or_insert_with(std::time::Instant::now);
        self.unattended.take_if(|since| since.elapsed() >= takeover).is_some()
    }

    /// Returns the entries that are not empty.
    fn entries(&self) -> impl Iterator<Item = &LockEntry> {
        self.entries.iter().flatten().map(|entry| &**entry).filter(|entry| !entry.was_empty)
    }

    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = &mut LockEntry> {
        self.entries.iter_mut().flatten().map(|entry| &mut **entry).filter(|entry| !entry.was_empty)
    }

    pub(crate) fn keys(&self) -> Vec<Arc<Keys>> {
        let mut keys: Vec<_> = self.entries().map(|entry| entry.keys.clone()).collect();
        // Sorted, so that a simulation can be repeated.
        if cfg!(test) {
            keys.sort_by(|one, other| one.name.cmp(&other.name));
        }
        keys
    }

    /// Returns the locks whose releases a channel reports.
    pub(crate) fn names_of(&self, channel: &str) -> Vec<Arc<str>> {
        self.channels.get(channel).cloned().unwrap_or_default()
    }

    /// Returns the channels that are subscribed to.
    pub(crate) fn channels(&self) -> impl Iterator<Item = &Arc<str>> {
        self.channels.keys()
    }

    /// Returns the locks that are due. If there are none, the watchdog sleeps from now on, until the returned time, or until it is notified.
    pub(crate) fn due(&mut self, now: Instant) -> (Vec<Arc<Keys>>, Option<Instant>) {
        self.unattended = None;
        let due = self.agenda.until(now);
        let keys = due
            .filter_map(|slot| self.entries.get(slot)?.as_ref())
            .map(|entry| entry.keys.clone())
            .collect::<Vec<_>>();
        let next = self.agenda.first();
        self.asleep = keys.is_empty().then_some(next);
        (keys, next)
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&LockEntry> {
        self.entries.get(*self.slots.get(name)?)?.as_deref().filter(|entry| !entry.was_empty)
    }

    /// Returns the entry of a handle.
    pub(crate) fn entry_of(&self, keys: &Keys) -> Option<&LockEntry> {
        let known = self.entries.get(keys.slot.get()).and_then(Option::as_deref);
        match known.filter(|entry| entry.keys.name == keys.name) {
            Some(entry) => Some(entry).filter(|entry| !entry.was_empty),
            None => self.entry(&keys.name),
        }
    }

    /// Returns the entry if it is not empty, for a change that needs no visit: it has no effects, and makes nothing due sooner.
    pub(crate) fn standing(&mut self, keys: &Arc<Keys>) -> Option<&mut LockEntry> {
        let is_known = |entry: &LockEntry| Arc::ptr_eq(&entry.keys, keys);
        let slot = keys.slot.get();
        let slot = match self.entries.get(slot).and_then(Option::as_deref).is_some_and(is_known) {
            true => slot,
            false => self.slot_of(keys)?,
        };
        let entry = self.entries[slot].as_deref_mut().filter(|entry| !entry.was_empty)?;
        entry.is_open = !self.closed;
        Some(entry)
    }

    /// Finds the entry of a handle that was not the last one to use it.
    #[cold]
    fn slot_of(&self, keys: &Arc<Keys>) -> Option<usize> {
        let known = self.entries.get(keys.slot.get()).and_then(Option::as_deref);
        if known.is_none_or(|entry| entry.keys.name != keys.name) {
            keys.slot.set(*self.slots.get(&keys.name)?);
        }
        Some(keys.slot.get())
    }

    /// Returns whether nothing is left that only this process can end: neither a hold nor an unconfirmed release.
    pub(crate) fn is_empty(&self) -> bool {
        self.busy == 0
    }

    /// Returns whether a field exists on a server, or may exist.
    pub(crate) fn has_holds(&self) -> bool {
        self.entries().any(|entry| !entry.holds.is_empty() || !entry.orphans.is_empty())
    }

    /// Returns how many holds have guards.
    pub(crate) fn held(&self) -> usize {
        self.entries().flat_map(|entry| &entry.holds).filter(|hold| hold.lives()).count()
    }

    /// Returns whether a release or a settle is waiting to be confirmed.
    pub(crate) fn has_unconfirmed_ends(&self) -> bool {
        self.entries().flat_map(|entry| &entry.holds).any(Hold::owes)
    }

    /// Returns whether a minority of masters may still have a hold that is over.
    pub(crate) fn has_orphans(&self) -> bool {
        self.entries().any(|entry| !entry.orphans.is_empty())
    }

    /// Visits an entry, made if there is none, and keeps the agenda up to date. The remaining work is written to the caller's
    /// `effects`: the result is handed up through several calls, and a pair would be copied in each.
    pub(crate) fn visit<R>(
        &mut self,
        keys: &Arc<Keys>,
        now: Instant,
        effects: &mut VisitEffects,
        visit: impl FnOnce(&mut LockEntry) -> R,
    ) -> R {
        let (slot, entry) = self.begin_visit(keys);
        let result = visit(entry);
        self.end_visit(slot, now, effects);
        result
    }

    // Not generic, so that the code around all visits exists once: with a copy for each kind of visit, fetching the code would
    // cost more than running it.
    #[inline(never)]
    fn begin_visit(&mut self, keys: &Arc<Keys>) -> (usize, &mut LockEntry) {
        let known = keys.slot.get();
        let slot = match self.entries.get_mut(known) {
            Some(Some(entry)) if Arc::ptr_eq(&entry.keys, keys) => known,
            // It belongs to another handle.
            Some(Some(entry)) if entry.keys.name == keys.name => {
                entry.switch_handle(keys);
                known
            }
            _ => self.find(keys),
        };
        let entry = self.entries[slot].get_or_insert_with(|| {
            let position = Position { session: self.owner_ends.clone(), name: keys.name.clone() };
            Box::new(LockEntry::new(keys.clone(), position, self.timing.clone()))
        });
        entry.is_open = !self.closed;
        if entry.was_empty {
            entry.queue.take_memory(&mut self.free_queues);
        }
        (slot, entry)
    }

    /// Finds the slot for a handle that does not know it. The slot is vacant if there is no entry yet.
    #[cold]
    fn find(&mut self, keys: &Arc<Keys>) -> usize {
        let known = self.slots.get(&keys.name).copied();
        let slot = known.unwrap_or_else(|| {
            self.drop_empty();
            let slot = self.vacant.pop().unwrap_or_else(|| {
                self.entries.push(None);
                self.entries.len() - 1
            });
            self.slots.insert(keys.name.clone(), slot);
            slot
        });
        if let Some(entry) = &mut self.entries[slot] {
            entry.switch_handle(keys);
        }
        keys.slot.set(slot);
        slot
    }

    /// Drops empty entries without a handle once there are many empty ones, so that each costs a few steps however many there are.
    fn drop_empty(&mut self) {
        let empty = |table: &LockTable| table.slots.len() - table.busy;
        if empty(self) < self.most_empty {
            return;
        }
        for (slot, entry) in self.entries.iter_mut().enumerate() {
            let goes = |entry: &mut Box<LockEntry>| entry.was_empty && Arc::strong_count(&entry.keys) == 1;
            if let Some(entry) = entry.take_if(goes) {
                self.slots.remove(&entry.keys.name);
                self.vacant.push(slot);
                if let Some(due) = entry.scheduled {
                    self.agenda.remove(due, slot);
                }
            }
        }
        self.most_empty = FEWEST_EMPTY.max(2 * empty(self)).max(self.busy / 4);
    }

    #[inline(never)]
    fn end_visit(&mut self, slot: usize, now: Instant, effects: &mut VisitEffects) {
        let Some(Some(entry)) = self.entries.get_mut(slot) else { return };
        entry.orphans.take_back();
        let subscribe = entry.subscription_change(now).map(|on| (entry.keys.clone(), on));
        let (was_empty, is_empty) = (entry.was_empty, entry.is_empty());
        if is_empty {
            entry.reset();
        }
        entry.was_empty = is_empty;
        entry.queue.return_memory(&mut self.free_queues);
        effects.out = entry.out.take();
        // Otherwise another runtime might take over unattended work because of an empty entry.
        let lingers = self.takeover.is_none();
        let (before, due) = (entry.scheduled, entry.next_due(lingers, now));
        entry.scheduled = due;
        self.busy = self.busy + usize::from(was_empty) - usize::from(is_empty);
        if due != before {
            effects.sooner = self.schedule(slot, before, due, now);
        }
        if let Some((keys, on)) = subscribe {
            effects.subscribe = self.subscribe(&keys, on).then_some(on);
        }
        if let Some(takeover) = self.takeover {
            effects.unattended = self.is_unattended(takeover, now);
        }
    }

    /// Notes which locks need a channel. Returns whether the backend has to change its subscription, which ends only with the last lock.
    fn subscribe(&mut self, keys: &Keys, on: bool) -> bool {
        let listening = self.channels.entry(keys.channel().clone()).or_default();
        listening.retain(|name| *name != keys.name);
        if on {
            // Even if the channel is subscribed to already: each entry waits for a confirmation of its own.
            listening.push(keys.name.clone());
            return true;
        }
        listening.is_empty() && self.channels.remove(keys.channel()).is_some()
    }

    /// Moves an entry in the agenda. Returns whether the sleeping watchdog has to be woken.
    fn schedule(&mut self, slot: usize, before: Option<Instant>, due: Option<Instant>, now: Instant) -> bool {
        if let Some(before) = before {
            self.agenda.remove(before, slot);
        }
        let Some(due) = due else { return false };
        self.agenda.insert(due, slot);
        // It is woken for work that is due sooner than it knows, so a lock that is taken and released again does not wake it; and
        // if its time to wake has passed, since tokio's timers have steps of a millisecond.
        let wakes =
            |until: &mut Option<Instant>| until.is_none_or(|until| due < until || until.max(due) <= now);
        self.asleep.take_if(wakes).is_some()
    }
}

#[cfg(test)]
mod tests;
