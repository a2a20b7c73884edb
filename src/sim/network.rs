//! The masters, what lies between them and the processes, and what goes wrong there.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::Memory;
use crate::base::lock;
use crate::sim::agenda::Agenda;
use crate::sim::dice::Key;
use crate::sim::history::History;
use crate::sim::program::{Fault, FaultKind, Program};
use crate::wire::{Action, Call, Fence, Reply};

pub(super) struct Network {
    pub(super) key: Key,
    pub(super) agenda: Agenda,
    pub(super) history: Arc<History>,
    pub(super) masters: Vec<SimMaster>,
    pub(super) latency: Duration,
    pub(super) node_timeout: Duration,
    faults: Vec<Fault>,
    pub(super) start: Instant,
    /// When the last command arrives that is on its way.
    last_arrival: Mutex<Instant>,
}

pub(super) struct SimMaster {
    pub(super) memory: Memory,
    /// How much its clock is ahead after a second, in microseconds.
    rate: i64,
    start: Instant,
    run: Mutex<Run>,
}

/// One life of a master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) number: u64,
    /// `None`: long ago.
    pub(super) started: Option<Instant>,
}

/// What the faults do to one command.
#[derive(Default)]
pub(super) struct Weather {
    pub(super) loses_command: bool,
    pub(super) loses_answer: bool,
    pub(super) forgets: bool,
    pub(super) to: Duration,
    pub(super) back: Duration,
}

impl SimMaster {
    fn new(rate: i64) -> SimMaster {
        SimMaster { memory: Memory::new(), rate, start: Instant::now(), run: Mutex::default() }
    }

    /// What its clock shows.
    pub(super) fn now(&self) -> Instant {
        let passed = self.start.elapsed();
        let ahead = passed.as_micros() as i64 * self.rate / 1_000_000;
        let ahead_by = Duration::from_micros(ahead.unsigned_abs());
        let now = Instant::now();
        if ahead < 0 { now - ahead_by } else { now + ahead_by }
    }

    pub(super) fn run(&self) -> Run {
        *lock(&self.run)
    }

    /// The time of day, by which the script of a single master counts tokens.
    fn time_of_day(&self) -> u64 {
        1_700_000_000_000_000 + (self.now() - self.start).as_micros() as u64
    }

    /// Runs a command.
    pub(super) fn answer(&self, mut call: Call) -> Option<Reply> {
        if let (Action::Acquire { .. }, Some(fence)) = (call.action, &mut call.fence)
            && fence.least.is_none()
        {
            *fence = Arc::new(Fence { least: Some(self.time_of_day()), ..(**fence).clone() });
        }
        let now = self.now();
        self.memory.visit(|store| store.receive(call, now)).get().cloned().flatten()
    }

    /// The field that has this key.
    pub(super) fn field_of(&self, key: &str) -> Option<String> {
        let now = self.now();
        self.memory.visit(|store| {
            let live = store.live(now);
            live.iter().find(|(known, _)| ***known == *key).map(|(_, held)| held.field.to_string())
        })
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
        }
        let mut run = lock(&self.run);
        *run = Run { number: run.number + 1, started: Some(Instant::now()) };
    }
}

impl Network {
    pub(super) fn new(program: &Program, history: Arc<History>) -> Network {
        let key = Key::new(program.seed).with(3);
        let setup = &program.setup;
        let rate = |master: usize| match setup.drifts {
            true => key.with(7).with(master as u64).roll(9000) as i64 - 4500,
            false => 0,
        };
        Network {
            key,
            agenda: Agenda::default(),
            history,
            masters: (0..setup.masters).map(|master| SimMaster::new(rate(master))).collect(),
            latency: setup.latency,
            node_timeout: setup.node_timeout,
            faults: program.faults.clone(),
            start: Instant::now(),
            last_arrival: Mutex::new(Instant::now()),
        }
    }

    fn active(&self) -> impl Iterator<Item = &Fault> {
        let since_start = self.start.elapsed();
        self.faults.iter().filter(move |fault| fault.is_active(since_start))
    }

    pub(super) fn arrives_at(&self, at: Instant) {
        let mut last = lock(&self.last_arrival);
        *last = at.max(*last);
    }

    pub(super) fn last_arrival(&self) -> Instant {
        *lock(&self.last_arrival)
    }

    /// What the network does to the command of that key between a process and a master.
    pub(super) fn weather(&self, process: usize, master: usize, key: Key) -> Weather {
        let mut weather = Weather {
            to: key.with(101).time(self.latency),
            back: key.with(102).time(self.latency),
            ..Weather::default()
        };
        for fault in self.active() {
            let key = key.with(fault.id);
            match fault.kind {
                FaultKind::LosesCommands(p, m, one_in) if (p, m) == (process, master) => {
                    weather.loses_command |= key.one_in(one_in);
                }
                FaultKind::LosesAnswers(p, m, one_in) if (p, m) == (process, master) => {
                    weather.loses_answer |= key.one_in(one_in);
                }
                FaultKind::Forgets(p, m, one_in) if (p, m) == (process, master) => {
                    weather.forgets |= key.one_in(one_in);
                }
                FaultKind::SlowCommands(p, m, longest) if (p, m) == (process, master) => {
                    weather.to += key.time(longest);
                }
                FaultKind::SlowAnswers(p, m, longest) if (p, m) == (process, master) => {
                    weather.back += key.time(longest);
                }
                _ => {}
            }
        }
        weather
    }

    /// Whether the message of that key is lost, and how long it takes.
    pub(super) fn message(&self, process: usize, master: usize, key: Key) -> (bool, Duration) {
        let (mut lost, mut takes) = (false, key.with(103).time(self.latency));
        for fault in self.active() {
            let key = key.with(fault.id);
            match fault.kind {
                FaultKind::LosesMessages(p, m, one_in) if (p, m) == (process, master) => {
                    lost |= key.one_in(one_in);
                }
                FaultKind::SlowMessages(p, m, longest) if (p, m) == (process, master) => {
                    takes += key.time(longest);
                }
                _ => {}
            }
        }
        (lost, takes)
    }

    pub(super) fn is_cut(&self, process: usize, master: usize) -> bool {
        self.active().any(|fault| fault.kind == FaultKind::Cut(process, master))
    }

    /// Until when the master runs nothing.
    pub(super) fn stalled_until(&self, master: usize) -> Option<Instant> {
        let stalls = self.active().filter(|fault| fault.kind == FaultKind::Stall(master));
        stalls.map(|fault| self.start + fault.at + fault.lasts).max()
    }
}
