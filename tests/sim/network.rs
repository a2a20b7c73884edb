//! The masters, the network between them and the processes, and its faults.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::lock;
use crate::sim::agenda::Agenda;
use crate::sim::dice::Key;
use crate::sim::history::History;
use crate::sim::master::SimMaster;
use crate::sim::program::{Fault, FaultKind, NAMES, Program};
use crate::wire::keys;

/// How much shorter a lease may be on another master that got it from the same command.
const SLACK: Duration = Duration::from_millis(10);

/// The connections between one process and one master.
pub(super) trait Between: Send + Sync {
    /// Resets the connections, from outside of the process.
    fn reset(&self);

    /// Ends the connections: the process, or their runtime, is gone, and nothing more is sent.
    fn end(&self);

    /// Returns to how many channels of locks the master has this process subscribed.
    fn subscriptions(&self) -> usize;
}

/// Returns whether this channel carries hints. A process that has waited once keeps its subscription to it.
pub(super) fn is_for_hints(channel: &str) -> bool {
    channel.starts_with(&keys::wakes("")) && keys::keys_of(channel).next().is_none()
}

pub(super) struct Network {
    pub(super) key: Key,
    pub(super) agenda: Agenda,
    pub(super) history: Arc<History>,
    pub(super) masters: Vec<SimMaster>,
    pub(super) latency: Duration,
    pub(super) node_timeout: Duration,
    polls: bool,
    faults: Vec<Fault>,
    pub(super) start: Instant,
    /// When the last command that is under way will arrive.
    last_arrival: Mutex<Instant>,
}

/// What the faults do to one command.
#[derive(Default)]
pub(super) struct Weather {
    pub(super) loses_command: bool,
    pub(super) loses_answer: bool,
    pub(super) forgets: bool,
    pub(super) to: Duration,
    pub(super) back: Duration,
    /// The command arrives a second time, later by this time.
    pub(super) again: Option<Duration>,
    pub(super) overtakes: bool,
}

impl Network {
    pub(super) fn new(program: &Program, history: Arc<History>) -> Network {
        let key = Key::new(program.seed).with(3);
        let setup = &program.setup;
        // The clocks differ by less than the drift of a lease, 1 %.
        let most = if program.edition < 4 { 4500 } else { 9900 };
        let rate = |master: usize| match setup.drifts {
            true => key.with(7).with(master as u64).roll(2 * most) as i64 - most as i64,
            false => 0,
        };
        Network {
            key,
            agenda: Agenda::default(),
            history,
            masters: (0..setup.masters).map(|master| SimMaster::new(rate(master))).collect(),
            latency: setup.latency,
            node_timeout: setup.node_timeout,
            polls: setup.polls,
            faults: program.faults.clone(),
            start: Instant::now(),
            last_arrival: Mutex::new(Instant::now()),
        }
    }

    /// Returns whether this process may not subscribe, so it polls.
    pub(super) fn polls(&self, process: usize) -> bool {
        self.polls && process.is_multiple_of(3)
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

    /// Returns what the network does to a command between a process and a master; `key` names the command.
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
                FaultKind::RepeatsCommands(p, m, one_in, longest)
                    if (p, m) == (process, master) && key.one_in(one_in) =>
                {
                    weather.again = Some(key.with(1).time(longest));
                }
                FaultKind::Reorders(p, m, longest) if (p, m) == (process, master) => {
                    weather.to += key.time(longest);
                    weather.back += key.with(1).time(longest);
                    weather.overtakes = true;
                }
                _ => {}
            }
        }
        weather
    }

    /// Returns whether a message is lost, and how long it takes; `key` names the message.
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

    /// Returns until when nothing passes between them.
    pub(super) fn cut_until(&self, process: usize, master: usize) -> Option<Instant> {
        let cuts = self.active().filter(|fault| fault.kind == FaultKind::Cut(process, master));
        cuts.map(|fault| self.start + fault.at + fault.lasts).max()
    }

    /// Returns whether the master has no more memory.
    pub(super) fn is_full(&self, master: usize) -> bool {
        let full = |kind| matches!(kind, FaultKind::Full(which) if which.is_none_or(|one| one == master));
        self.active().any(|fault| full(fault.kind))
    }

    /// Makes some masters lose what they have of a lock, so that they vote for others. If a hold is then no longer on a majority, no
    /// promise covers it.
    pub(super) fn lose(&self, masters: &[usize], name: usize, mut change: impl FnMut(&SimMaster)) {
        let holders = masters.iter().filter_map(|at| self.masters[*at].held_by(NAMES[name]));
        let fields: BTreeSet<String> = holders.collect();
        let left = |master: &SimMaster, field: &str| master.lease_left(name, field);
        let lost = |field: &String| masters.iter().filter_map(|at| left(&self.masters[*at], field)).max();
        let fields: Vec<_> = fields.into_iter().map(|field| (lost(&field), field)).collect();
        masters.iter().for_each(|at| change(&self.masters[*at]));
        for (lost, field) in fields {
            // 1. A renewal reaches two of three masters. 2. One of them loses the hold. 3. The third one keeps it, but not for as long.
            let keep = self.masters.iter().filter(|master| {
                master.keeps(name, &field)
                    && left(master, &field).is_some_and(|left| left + SLACK >= lost.unwrap_or_default())
            });
            if keep.count() <= self.masters.len() / 2 {
                self.history.forced(&field);
            }
        }
    }

    /// Returns the indices of all masters, or of one.
    pub(super) fn those(&self, master: Option<usize>) -> Vec<usize> {
        master.map_or_else(|| (0..self.masters.len()).collect(), |one| vec![one])
    }

    /// Returns until when the master runs nothing.
    pub(super) fn stalled_until(&self, master: usize) -> Option<Instant> {
        let stalls = self.active().filter(|fault| fault.kind == FaultKind::Stall(master));
        stalls.map(|fault| self.start + fault.at + fault.lasts).max()
    }
}
