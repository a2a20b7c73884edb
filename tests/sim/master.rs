//! A master: the in-memory store, its clock, and its lives.

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
    /// How much its clock is ahead after a second, in microseconds.
    rate: i64,
    start: Instant,
    run: Mutex<Run>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of each field the command that was sent last, of those that have run.
    newest: BTreeMap<Arc<str>, Order>,
    /// Fields of which a command ran behind one that was sent after it: what the older one asked for may stand.
    overtaken: BTreeSet<Arc<str>>,
    /// How far its clock was set forward or back, in microseconds.
    shift: i64,
    /// Fields whose leases end early, for it was set forward.
    shortened: BTreeSet<String>,
    /// What other programs have there under the names of locks, and until when.
    foreign: BTreeMap<usize, (Foreign, Instant)>,
}

/// What a master answers.
pub(super) enum Answered {
    Reply(Reply),
    /// An error out of the script, and what it shows.
    Refused(Outcome),
}

/// When a command was sent: with which write, among those of all processes, and its place among those of its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) sent: u64,
    pub(super) place: u64,
}

/// One life of a master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) number: u64,
    /// `None`: long ago.
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

    /// What its clock shows.
    pub(super) fn now(&self) -> Instant {
        let passed = self.start.elapsed();
        let ahead = passed.as_micros() as i64 * self.rate / 1_000_000 + lock(&self.state).shift;
        let ahead_by = Duration::from_micros(ahead.unsigned_abs());
        let now = Instant::now();
        if ahead < 0 { now.checked_sub(ahead_by).unwrap_or(now) } else { now + ahead_by }
    }

    /// Its clock goes forward: it is set, or the machine of the processes was suspended.
    pub(super) fn advance(&self, by: Duration) {
        lock(&self.state).shift += by.as_micros() as i64;
    }

    pub(super) fn set_back(&self, by: Duration) {
        lock(&self.state).shift -= by.as_micros() as i64;
    }

    /// The lease of this lock ends early.
    pub(super) fn shorten(&self, name: usize) {
        if let Some((field, _)) = self.holder(NAMES[name]) {
            lock(&self.state).shortened.insert(field);
        }
    }

    /// Whether a field stands there for as long as was answered to its owner.
    pub(super) fn keeps(&self, name: usize, field: &str) -> bool {
        let holds = self.holder(NAMES[name]).is_some_and(|(held, _)| *held == *field);
        holds && !lock(&self.state).shortened.contains(field)
    }

    /// For how long a field stands there, if nothing happens to it.
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

    /// The time of day, by which the script of a single master counts tokens.
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

    /// Another program writes to the key of a lock, or to that of its counter.
    pub(super) fn put(&self, name: usize, foreign: Foreign, until: Instant) {
        match foreign {
            Foreign::Text | Foreign::Lock => self.delete(name),
            Foreign::Counter => self.memory.visit(|store| store.counters.clear()),
            Foreign::Field => {}
        }
        lock(&self.state).foreign.insert(name, (foreign, until));
    }

    /// It has deleted what it wrote.
    pub(super) fn take(&self, name: usize, until: Instant) {
        lock(&self.state).foreign.retain(|other, (_, ends)| *other != name || *ends != until);
    }

    /// What `DEL` does to the key of a lock.
    pub(super) fn delete(&self, name: usize) {
        let keeps = |foreign: &Foreign| matches!(foreign, Foreign::Counter);
        lock(&self.state).foreign.retain(|other, (foreign, _)| *other != name || keeps(foreign));
        self.memory.visit(|store| store.delete(NAMES[name]));
    }

    /// Notes that a command of this field runs. Whether one that was sent after it has run before.
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

    /// Whether its count of a field is known: it is not where commands ran out of order.
    pub(super) fn is_sure_of(&self, field: &str) -> bool {
        !lock(&self.state).overtaken.contains(field)
    }

    /// Who holds the lock of this key.
    pub(super) fn holder(&self, key: &str) -> Holder {
        let now = self.now();
        self.memory.visit(|store| {
            let live = store.live(now).into_iter().find(|(known, _)| ***known == *key);
            live.map(|(_, held)| (held.field.to_string(), held.count))
        })
    }

    /// The field that holds it. A field that the lock was handed to, and that has not entered, does not hold it.
    pub(super) fn held_by(&self, key: &str) -> Option<String> {
        self.holder(key).filter(|(_, count)| *count > 0).map(|(field, _)| field)
    }

    /// What it counts of a field that holds the lock of this key; `None`: nothing, or it is unknown.
    pub(super) fn count_of(&self, key: &str, field: &str) -> Option<u32> {
        let (_, count) = self.holder(key).filter(|(held, _)| held == field)?;
        self.is_sure_of(field).then_some(count)
    }

    /// Keys, fields and counts.
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
