//! Several names: a request that takes the locks of several names, all or none, and stands in the line of one of them
//! while it holds others.
//!
//! One server, up to three names with a line each, up to three processes with a request each. The model
//! [`line`](crate::line) has the line of one name in detail. Here nothing is lost, and no time passes: what must not
//! wait for a timer has to happen without one.
//!
//! # The protocol
//!
//! A request asks for all its names at once, outside their lines. Of the names that are busy it **waits** for the first
//! one, in the order of the names: it gives back each name after that one, enters the line of that one, and keeps the
//! names before it. Once that name is granted, it asks for the names after it again, all at once. So nobody holds a name
//! after one that it waits for, and requests do not wait in a circle.
//!
//! If a name is lost before all are granted, the request gives up that one and all names after it, and asks for them
//! again. All that it gives up, it ends on the server, by a release that removes its entry from the line, ends its hold,
//! and hands the lock on.
//!
//! # What is left out, and why that is sound
//!
//! - **Fields.** Commands of a process for one name run in the order in which they were sent, so the end of a field runs
//!   before the next field's ask, and a process stands for its field. Commands for different names run in any order.
//! - **Messages of releases.** A request that was refused outside a line asks at once to enter it.
//! - **Single attempts**, which never wait.
use stateright::{Model, Property};

use crate::line::Few;

/// How many names there may be.
pub const NAMES: usize = 3;

/// The design that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// The protocol as documented.
    Sound,
    /// Each process has the names in an order of its own.
    OrderOfTheirOwn,
    /// A request that waits keeps the names after the one that it waits for.
    KeepsLaterNames,
    /// A request enters the lines of all names that are busy, and takes those that it is handed in their order.
    EntersAllLines,
    /// A request that begins again after a loss leaves its entry in the line of the name that it waited for.
    LossLeavesEntry,
    /// A name that was taken outside its line is ended outside it.
    EndsOutsideLine,
}

/// What is checked, and within which bounds.
#[derive(Clone, Debug)]
pub struct SeveralModel {
    /// The design that is checked.
    pub design: Design,
    /// The names that each process takes, as bits; none: there is no such process.
    pub wants: [u8; 3],
    /// How many requests each process makes.
    pub requests: u8,
    /// How many requests may be dropped.
    pub drops: u8,
    /// How many forced releases there may be.
    pub forces: u8,
}

/// What a process knows of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Slot {
    /// It neither has it nor asks for it.
    #[default]
    Free,
    /// An ask is under way.
    Asking {
        /// Whether the name was refused before, so that the ask enters the line.
        waits: bool,
        /// Whether a hint came before the answer.
        hinted: bool,
    },
    /// It was refused outside the line.
    Refused,
    /// It was refused, and is in the line.
    InLine {
        /// Whether a hint came that it has not followed.
        hinted: bool,
    },
    /// It holds it.
    Held,
}

/// A command on its way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Command {
    /// `again`: the name may have been handed to it.
    Ask { enters: bool, again: bool },
    /// `serves`: the lock is handed on.
    Release { serves: bool },
}

/// The lock of a name, and its line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Lock {
    /// The process that has it.
    holder: Option<usize>,
    /// Whether it was handed to that process, which has not asked for it since.
    handed: bool,
    line: Few<usize, 3>,
}

/// A process and its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    requests: u8,
    is_active: bool,
    slots: [Slot; NAMES],
    commands: [Few<Command, 8>; NAMES],
    /// `true`: granted.
    answers: [Few<bool, 8>; NAMES],
    /// How many of the next answers are to asks that were given up.
    stale: [u8; NAMES],
    hints: [bool; NAMES],
    /// Whether its hold was ended by force, and it has not noticed.
    lost: [bool; NAMES],
}

/// The server, and all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    locks: [Lock; NAMES],
    processes: [Process; 3],
    drops: u8,
    forces: u8,
    passed_over: bool,
}

/// A step. Processes come first, then names, both by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A request begins.
    Begin(usize),
    /// The first command for a name runs.
    Run(usize, usize),
    /// An answer is read.
    Answer(usize, usize),
    /// A hint is read.
    Hint(usize, usize),
    /// The work under all names is done.
    Finish(usize),
    /// A request is dropped.
    Drop(usize),
    /// The lock of a name is taken away from its holder.
    Force(usize),
    /// Its former holder notices.
    Notice(usize, usize),
}

impl SeveralModel {
    /// A model in which nothing goes wrong.
    #[must_use]
    pub fn base(wants: [u8; 3]) -> SeveralModel {
        SeveralModel { design: Design::Sound, wants, requests: 1, drops: 0, forces: 0 }
    }

    /// Returns the big configurations.
    #[must_use]
    pub fn scopes() -> Vec<SeveralModel> {
        let two = || SeveralModel::base([0b11, 0b11, 0b11]);
        let three = || SeveralModel::base([0b111, 0b111, 0b110]);
        vec![
            SeveralModel { requests: 2, ..two() },
            SeveralModel { drops: 1, forces: 1, ..two() },
            three(),
            SeveralModel { drops: 1, ..SeveralModel::base([0b111, 0b101, 0b010]) },
            SeveralModel { forces: 1, ..SeveralModel::base([0b111, 0b110, 0b001]) },
        ]
    }

    /// Returns the names that a process takes, in its order.
    fn names(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        let (wants, reversed) = (self.wants[at], self.design == Design::OrderOfTheirOwn && at == 1);
        let names = (0..NAMES).map(move |name| if reversed { NAMES - 1 - name } else { name });
        names.filter(move |name| wants & (1 << name) != 0)
    }
}

impl State {
    fn send(&mut self, at: usize, name: usize, command: Command) {
        self.processes[at].commands[name].push(command);
    }

    fn ask(&mut self, at: usize, name: usize, waits: bool, again: bool) {
        self.processes[at].slots[name] = Slot::Asking { waits, hinted: false };
        self.send(at, name, Command::Ask { enters: waits, again });
    }

    /// Ends whatever the process may have of this name.
    fn give_up(&mut self, model: &SeveralModel, at: usize, name: usize) {
        let slot = std::mem::take(&mut self.processes[at].slots[name]);
        self.processes[at].lost[name] = false;
        match slot {
            // The answer was read: nothing was granted, and no line was entered.
            Slot::Free | Slot::Refused => return,
            Slot::Asking { .. } => self.processes[at].stale[name] += 1,
            Slot::InLine { .. } | Slot::Held => {}
        }
        let serves = slot != Slot::Held || model.design != Design::EndsOutsideLine;
        self.send(at, name, Command::Release { serves });
    }

    fn end_request(&mut self, model: &SeveralModel, at: usize) {
        self.processes[at].is_active = false;
        model.names(at).for_each(|name| self.give_up(model, at, name));
    }

    /// Returns the first name that the request waits for.
    fn waits_for(&self, model: &SeveralModel, at: usize) -> Option<usize> {
        let waits = |name: &usize| {
            matches!(
                self.processes[at].slots[*name],
                Slot::Asking { waits: true, .. } | Slot::Refused | Slot::InLine { .. }
            )
        };
        model.names(at).find(waits)
    }

    /// Does what the request has to do next.
    fn go_on(&mut self, model: &SeveralModel, at: usize) {
        let Some(first) = self.waits_for(model, at) else {
            for name in model.names(at) {
                if self.processes[at].is_active && self.processes[at].slots[name] == Slot::Free {
                    self.ask(at, name, false, false);
                }
            }
            return;
        };
        let later = model.names(at).skip_while(|name| *name != first).skip(1);
        for name in later {
            match self.processes[at].slots[name] {
                Slot::Held if model.design != Design::KeepsLaterNames => self.give_up(model, at, name),
                Slot::Refused if model.design == Design::EntersAllLines => self.ask(at, name, true, false),
                Slot::Asking { waits: true, .. } | Slot::Refused | Slot::InLine { .. }
                    if model.design != Design::EntersAllLines =>
                {
                    self.give_up(model, at, name);
                }
                // Its first answer is awaited.
                _ => {}
            }
        }
        match self.processes[at].slots[first] {
            Slot::Refused => self.ask(at, first, true, false),
            Slot::InLine { hinted: true } => self.ask(at, first, true, true),
            _ => {}
        }
    }

    fn answered(&mut self, model: &SeveralModel, at: usize, name: usize) {
        let process = &mut self.processes[at];
        let Some(granted) = process.answers[name].take(0) else { return };
        if process.stale[name] > 0 {
            process.stale[name] -= 1;
            return;
        }
        let Slot::Asking { waits, hinted } = process.slots[name] else { return };
        process.slots[name] = match (granted, waits) {
            (true, _) => Slot::Held,
            (false, true) => Slot::InLine { hinted },
            (false, false) => Slot::Refused,
        };
        self.go_on(model, at);
    }

    fn hinted(&mut self, model: &SeveralModel, at: usize, name: usize) {
        let process = &mut self.processes[at];
        process.hints[name] = false;
        match &mut process.slots[name] {
            Slot::InLine { hinted } | Slot::Asking { waits: true, hinted } => *hinted = true,
            // The hint is for a field that it has ended.
            _ => return,
        }
        self.go_on(model, at);
    }

    /// Called when the request learns that this hold was taken away.
    fn loses(&mut self, model: &SeveralModel, at: usize, name: usize) {
        if self.works(model, at) {
            return self.end_request(model, at);
        }
        for later in model.names(at).skip_while(|other| *other != name) {
            let stands = matches!(self.processes[at].slots[later], Slot::InLine { .. });
            if stands && model.design == Design::LossLeavesEntry {
                self.processes[at].slots[later] = Slot::Free;
            }
            self.give_up(model, at, later);
        }
        self.go_on(model, at);
    }

    /// Hands a free lock to the first of its line. Returns whether that is the asker, which gets no hint.
    fn serve(&mut self, name: usize, asker: Option<usize>) -> bool {
        let lock = &mut self.locks[name];
        let Some(first) = lock.line.take(0) else { return false };
        (lock.holder, lock.handed) = (Some(first), true);
        if asker != Some(first) {
            self.processes[first].hints[name] = true;
        }
        asker == Some(first)
    }

    fn run(&mut self, at: usize, name: usize) {
        let Some(command) = self.processes[at].commands[name].take(0) else { return };
        match command {
            Command::Ask { enters, again } => {
                if self.locks[name].holder.is_none() && again {
                    self.serve(name, Some(at));
                }
                let lock = &mut self.locks[name];
                let granted = lock.holder.is_none_or(|holder| holder == at);
                self.passed_over |= lock.holder.is_none() && !lock.line.is_empty();
                if granted {
                    (lock.holder, lock.handed) = (Some(at), false);
                } else if enters && !lock.line.contains(&at) {
                    lock.line.push(at);
                }
                self.processes[at].answers[name].push(granted);
            }
            Command::Release { serves } => {
                let lock = &mut self.locks[name];
                lock.line.remove(|other| *other == at);
                lock.holder = lock.holder.filter(|holder| *holder != at);
                if lock.holder.is_none() && serves {
                    self.serve(name, None);
                }
            }
        }
    }

    /// Returns whether the request has all its names.
    fn works(&self, model: &SeveralModel, at: usize) -> bool {
        let process = &self.processes[at];
        process.is_active && model.names(at).all(|name| process.slots[name] == Slot::Held)
    }

    fn is_to_notice(&self, at: usize, name: usize) -> bool {
        self.processes[at].lost[name] && self.processes[at].slots[name] == Slot::Held
    }

    /// Returns whether nothing is under way.
    fn is_quiet(&self) -> bool {
        (0..3).all(|at| {
            let process = &self.processes[at];
            (0..NAMES).all(|name| {
                let still = process.commands[name].is_empty() && process.answers[name].is_empty();
                still && !process.hints[name] && !self.is_to_notice(at, name)
            })
        })
    }

    /// Returns whether what stands on the server is what the processes know of.
    fn is_known(&self) -> bool {
        self.locks.iter().enumerate().all(|(name, lock)| {
            let slot = |at: usize| self.processes[at].slots[name];
            let has = match lock.holder {
                Some(holder) => !lock.handed && slot(holder) == Slot::Held,
                None => lock.line.is_empty(),
            };
            has && lock.line.iter().all(|at| matches!(slot(at), Slot::InLine { .. }))
        })
    }
}

impl Model for SeveralModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let processes = self.wants.map(|wants| Process {
            requests: if wants == 0 { 0 } else { self.requests },
            ..Process::default()
        });
        let (locks, drops, forces) = (<[Lock; NAMES]>::default(), self.drops, self.forces);
        vec![State { locks, processes, drops, forces, passed_over: false }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (at, process) in state.processes.iter().enumerate() {
            if process.requests > 0 && !process.is_active {
                steps.push(Step::Begin(at));
            }
            if state.works(self, at) {
                steps.push(Step::Finish(at));
            } else if process.is_active && state.drops > 0 {
                steps.push(Step::Drop(at));
            }
            for name in 0..NAMES {
                if !process.commands[name].is_empty() {
                    steps.push(Step::Run(at, name));
                }
                if !process.answers[name].is_empty() {
                    steps.push(Step::Answer(at, name));
                }
                if process.hints[name] {
                    steps.push(Step::Hint(at, name));
                }
                if state.is_to_notice(at, name) {
                    steps.push(Step::Notice(at, name));
                }
            }
        }
        if state.forces > 0 {
            let held = (0..NAMES).filter(|name| state.locks[*name].holder.is_some());
            steps.extend(held.map(Step::Force));
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = *last;
        match step {
            Step::Begin(at) => {
                state.processes[at].requests -= 1;
                state.processes[at].is_active = true;
                state.go_on(self, at);
            }
            Step::Run(at, name) => state.run(at, name),
            Step::Answer(at, name) => state.answered(self, at, name),
            Step::Hint(at, name) => state.hinted(self, at, name),
            Step::Finish(at) => state.end_request(self, at),
            Step::Drop(at) => {
                state.drops -= 1;
                state.end_request(self, at);
            }
            Step::Force(name) => {
                state.forces -= 1;
                let lock = &mut state.locks[name];
                let holder = lock.holder.take()?;
                // Nobody knows of a hold that was only handed over, or waits for the end of one that was given up.
                let ends = |command| matches!(command, Command::Release { .. });
                let process = &mut state.processes[holder];
                process.lost[name] = !lock.handed && !process.commands[name].iter().any(ends);
                state.serve(name, None);
            }
            Step::Notice(at, name) => {
                state.processes[at].lost[name] = false;
                state.loses(self, at, name);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<SeveralModel>> {
        vec![
            Property::always("no two hold a name", |_: &SeveralModel, state: &State| {
                (0..NAMES).all(|name| {
                    let holds = |process: &&Process| process.slots[name] == Slot::Held && !process.lost[name];
                    state.processes.iter().filter(holds).count() <= 1
                })
            }),
            Property::always("nobody in a line is passed over", |_: &SeveralModel, state: &State| {
                !state.passed_over
            }),
            Property::always(
                "nothing is kept for who does not take it",
                |_: &SeveralModel, state: &State| !state.is_quiet() || state.is_known(),
            ),
            Property::always("while requests wait, one works", |model: &SeveralModel, state: &State| {
                let idle = |at: usize| !state.processes[at].is_active;
                !state.is_quiet() || (0..3).all(idle) || (0..3).any(|at| state.works(model, at))
            }),
        ]
    }
}

#[cfg(test)]
mod tests;
