//! A master: the in-memory store, its clock, and its restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::Memory;
use crate::base::{Outcome, lock};
use crate::sim::foreign::{Fate, Holder, meets_full};
use crate::sim::program::{Foreign, NAMES};
use crate::wire::{Action, Call, Fence, Reply};

pub(super) struct SimMaster {
    pub(super) memory: Memory,
    /// How far its clock is ahead after a second, in microseconds.
    rate: i64,
    start: Instant,
    run: Mutex<Run>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// For each field, the command that was sent last, among those that have run.
    newest: BTreeMap<Arc<str>, Order>,
    /// Fields of which a command ran after one that was sent later: the state that the older one asked for may stand.
    overtaken: BTreeSet<Arc<str>>,
    /// How far its clock was set forward or back, in microseconds.
    shift: i64,
    /// Fields whose leases end early because the clock was set forward.
    shortened: BTreeSet<String>,
    /// Fields whose keys were deleted.
    deleted: BTreeSet<String>,
    /// What other programs have written under the names of locks, and until when.
    foreign: BTreeMap<usize, (Foreign, Instant)>,
}

/// What a master answers.
pub(super) enum Answered {
    Reply(Reply),
    /// The script failed with an error, which shows this outcome.
    Refused(Outcome),
}

/// The order in which commands were sent: the number of the write among those of all processes, and the place in its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) sent: u64,
    pub(super) place: u64,
}

/// One run of a master, from its start to its restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) number: u64,
    /// When it started; `None` means long ago.
    pub(super) started: Option<Instant>,
}

impl SimMaster {
    pub(super) fn new(rate: i64) -> SimMaster {
        SimMaster {
            memory: Memory::new(),
            rate,
            start: Instant::now(),
            run: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Returns the time on the master's clock.
    pub(super) fn now(&self) -> Instant {
        let passed = self.start.elapsed();
        let ahead = passed.as_micros() as i64 * self.rate / 1_000_000 + lock(&self.state).shift;
        let ahead_by = Duration::from_micros(ahead.unsigned_abs());
        let now = Instant::now();
        if ahead < 0 { now.checked_sub(ahead_by).unwrap_or(now) } else { now + ahead_by }
    }

    /// Moves the clock forward: it is set, or the machine of the processes was suspended.
    pub(super) fn advance(&self, by: Duration) {
        lock(&self.state).shift += by.as_micros() as i64;
    }

    pub(super) fn set_back(&self, by: Duration) {
        lock(&self.state).shift -= by.as_micros() as i64;
    }

    /// Notes that the lease of this lock ends early.
    pub(super) fn shorten(&self, name: usize) {
        if let Some((field, _)) = self.holder(NAMES[name]) {
            lock(&self.state).shortened.insert(field);
        }
    }

    /// Returns whether a field stands for as long as its owner was told.
    pub(super) fn keeps(&self, name: usize, field: &str) -> bool {
        let holds = self.holder(NAMES[name]).is_some_and(|(held, _)| *held == *field);
        holds && !lock(&self.state).shortened.contains(field)
    }

    /// Returns for how long a field will stand if nothing happens to it.
    pub(super) fn lease_left(&self, name: usize, field: &str) -> Option<Duration> {
        let now = self.now();
        self.memory.visit(|store| {
            let live = store.live(now).into_iter().find(|(known, _)| ***known == *NAMES[name]);
            live.filter(|(_, held)| *held.field == *field)
                .map(|(_, held)| held.until.saturating_duration_since(now))
        })
    }

    pub(super) fn run(&self) -> Run {
        *lock(&self.run)
    }

    /// Returns the time of day, from which the script of a single master makes tokens.
    pub(super) fn time_of_day(&self) -> u64 {
        1_700_000_000_000_000 + (self.now() - self.start).as_micros() as u64
    }

    /// Runs a command.
    pub(super) fn answer(&self, call: Call, full: bool) -> Option<Answered> {
        let (holder, now) = (self.holder(&call.keys.key), self.now());
        let foreign = NAMES.iter().position(|name| **name == *call.keys.key);
        let foreign = foreign.and_then(|name| lock(&self.state).foreign.get(&name).copied());
        let fate = match foreign {
            Some((foreign, until)) => {
                if call.action == Action::Force && matches!(foreign, Foreign::Field) {
                    lock(&self.state).foreign.retain(|name, _| *NAMES[*name] != *call.keys.key);
                }
                foreign.meets(call, &holder, until.saturating_duration_since(Instant::now()))
            }
            None if full => {
                let stands = |key: &str| self.memory.visit(|store| store.counters.stands(key, now));
                let counts = call.fence.as_ref().is_none_or(|fence| stands(&fence.counter) >= fence.least);
                meets_full(call, &holder, counts)
            }
            None => Fate::Runs(call),
        };
        let reply = match fate {
            Fate::Answered(reply) => reply,
            Fate::Refused(outcome) => return Some(Answered::Refused(outcome)),
            Fate::Runs(call) => self.run_script(call)?,
            Fate::RunsInPart(call) => match self.run_script(call)? {
                Reply::Done => Reply::Deferred("it could not be written".to_owned()),
                reply => reply,
            },
        };
        Some(Answered::Reply(reply))
    }

    fn run_script(&self, mut call: Call) -> Option<Reply> {
        if let (Action::Acquire { .. }, Some(fence)) = (call.action, &mut call.fence)
            && fence.least.is_none()
        {
            *fence = Arc::new(Fence { least: Some(self.time_of_day()), ..(**fence).clone() });
        }
        let now = self.now();
        self.memory.visit(|store| store.receive(call, now)).get().cloned().flatten()
    }

    /// Lets another program write to the key of a lock, or to that of its counter.
    pub(super) fn put(&self, name: usize, foreign: Foreign, until: Instant) {
        match foreign {
            Foreign::Text | Foreign::Lock => self.delete(name),
            Foreign::Counter => self.memory.visit(|store| store.counters = Default::default()),
            Foreign::Field => {}
        }
        lock(&self.state).foreign.insert(name, (foreign, until));
    }

    /// Lets the other program delete what it wrote.
    pub(super) fn take(&self, name: usize, until: Instant) {
        lock(&self.state).foreign.retain(|other, (_, ends)| *other != name || *ends != until);
    }

    /// Does what `DEL` does to the key of a lock.
    pub(super) fn delete(&self, name: usize) {
        let keeps = |foreign: &Foreign| matches!(foreign, Foreign::Counter);
        let held = self.held_by(NAMES[name]);
        let mut state = lock(&self.state);
        state.foreign.retain(|other, (foreign, _)| *other != name || keeps(foreign));
        state.deleted.extend(held);
        drop(state);
        self.memory.visit(|store| store.delete(NAMES[name]));
    }

    /// Notes that a command of this field runs. Returns whether one that was sent after it has run before it.
    pub(super) fn overtaken(&self, field: &Arc<str>, order: Order) -> bool {
        let mut state = lock(&self.state);
        let newest = state.newest.entry(field.clone()).or_default();
        let overtaken = order < *newest;
        *newest = order.max(*newest);
        if overtaken {
            state.overtaken.insert(field.clone());
        }
        overtaken
    }

    /// Returns whether the count of a field is known. It is unknown if commands ran out of order.
    pub(super) fn is_sure_of(&self, field: &str) -> bool {
        !lock(&self.state).overtaken.contains(field)
    }

    /// Returns whether the key of a field was deleted here.
    pub(super) fn has_deleted(&self, field: &str) -> bool {
        lock(&self.state).deleted.contains(field)
    }

    /// Returns the holder of the lock of this key.
    pub(super) fn holder(&self, key: &str) -> Holder {
        let now = self.now();
        self.memory.visit(|store| {
            let live = store.live(now).into_iter().find(|(known, _)| ***known == *key);
            live.map(|(_, held)| (held.field.to_string(), held.count))
        })
    }

    /// Returns the field that holds the lock. A field that was handed the lock and has not entered does not hold it.
    pub(super) fn held_by(&self, key: &str) -> Option<String> {
        self.holder(key).filter(|(_, count)| *count > 0).map(|(field, _)| field)
    }

    /// Returns the count of a field that holds the lock of this key; `None` if the field does not hold it, or if the count is unknown.
    pub(super) fn count_of(&self, key: &str, field: &str) -> Option<u32> {
        let (_, count) = self.holder(key).filter(|(held, _)| held == field)?;
        self.is_sure_of(field).then_some(count)
    }

    /// Returns all keys with their fields and counts.
    pub(super) fn contents(&self) -> Vec<(String, String, u32)> {
        let now = self.now();
        self.memory.visit(|store| {
            let live = store.live(now).into_iter();
            live.map(|(key, held)| (key.to_string(), held.field.to_string(), held.count)).collect()
        })
    }

    pub(super) fn restart(&self, keeps: bool) {
        let now = self.now();
        if !keeps {
            self.memory.visit(|store| store.restart(now));
            lock(&self.state).foreign.clear();
        }
        let mut run = lock(&self.run);
        *run = Run { number: run.number + 1, started: Some(Instant::now()) };
    }
}
