//! Holds: who has the lock, and what is left of a hold on the masters.
//!
//! Two clients, one or three masters, one lock. A client asks, re-enters, extends, releases, and crashes. Commands
//! are lost, run twice, late and in any order; masters restart empty; time passes.
//!
//! # What a step stands for
//!
//! A master runs a script in one step (`master.rs`, which has `lua/*.lua` line by line). A client takes a decision in
//! one step (`client.rs`, whose functions have the names of those in `src/table/` and `src/quorum/tally.rs`). A
//! command that is sent is a member of a set between the client's hold and the master, and may run at any time, in
//! any order. Its answer is there once it has run; the client may look at the answers at any later time, because a
//! future may be polled late. A command that is given up (no answer in time, a dropped future, a crash) may still run
//! at any time, any number of times, if the network is [`late`](HoldModel::late).
//!
//! # What is left out, and why that is sound
//!
//! - **Time** is in ticks: a lease is two, `longest_lease` three. Each deadline is kept as the ticks that are left,
//!   so no state has a clock, and there is no last tick. All clocks run at the same rate: the code subtracts the
//!   drift by which they may differ. A clock that is [set back](HoldModel::jumps) makes a TTL last for longer than
//!   the model explores. The end of such a key is a number that no command on its way names.
//! - **Time passes for free only while nothing is under way.** A tick while a command is under way costs one of the
//!   [`faults`](HoldModel::faults), as does a verdict that does not wait for all answers. With enough faults every
//!   order of ticks and commands occurs: their number bounds how many things go wrong in one execution.
//! - **A hold that has no trace at a master, a command or a client is as good as a new one**: nothing depends on a
//!   field's name. So two holds for each client stand for any number of holds, of which two leave traces at once.
//! - **A lost hold has one guard or none**: the number of its guards does not matter. A client asks again once they
//!   are gone.
//! - **Masters and clients have no names**: of the states that differ only by them, the least one stands for all.
//! - **Each failure has an unknown outcome.** If the code knows that a command did not run, it sends less than the
//!   model.
//! - **An answer after the verdict is looked at when it arrives.**
//! - **The thread's renewals run on all masters in one step.** If the model has the thread, a master that restarts
//!   leaves its former server behind, with all that it had: the thread's connection still leads there.
//! - **A line of one request for each client**, without children and branches: who may enter is decided in the
//!   process. Forced releases, full servers, foreign keys, `max_hold` and suspended machines are not modelled.
mod client;
pub mod master;

use std::ops::Range;

use stateright::{Model, Property};

pub use client::{Hold, Stage, UnderWay};
use master::{Answer, Command, Master};

/// The number of holds: two for each of two clients.
pub const HOLDS: usize = 4;
/// The lease of a watched level, in ticks.
pub const LEASE: u8 = 2;
/// `longest_lease`, in ticks: the lease of an extension and of the longer fixed level, and how long a master is
/// young.
pub const LONGEST: u8 = 3;

/// The design that is checked: the one in use, or one that is known to be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// The design of the code.
    Sound,
    /// Counts go up and down by one.
    BlindCount,
    /// A field is used for more than one outermost acquisition.
    SharedField,
    /// A release ends whatever field there is.
    UncheckedRelease,
    /// A deadline counts from the reply.
    DeadlineFromReply,
    /// A guard does not look at its deadline.
    DeadlineIgnored,
    /// One grant of three is enough.
    MinorityCounts,
    /// A master that has just restarted has a vote.
    YoungVotes,
    /// Young masters have a vote if they are a majority.
    YoungMajorityVotes,
    /// The end of a hold is sent only to a majority.
    PartialRelease,
    /// A master that lacks a hold is given it even after its end.
    RepairAfterEnd,
    /// A command that makes a field is not ended if a renewal overtook it and the hold turns out to be gone.
    OvertakenAcquire,
    /// An end that finds nothing is enough, whatever may still run.
    OneEnd,
    /// An end that finds the field is enough, though a repair may have made it and the acquire may still run.
    OneMaker,
    /// A token is handed out before a majority knows it.
    TokenNotWrittenBack,
    /// A TTL is shortened whatever the key's end is by then.
    ShortenedWhateverEnds,
    /// A TTL is shortened to a lease, though a guard may count on more.
    ShortenedBelowDeadline,
    /// A command that confirms a longer lease leaves the key the end that a late command names.
    EndNotMoved,
    /// A level that no command asked for is taken to be counted on the masters.
    LocalCounts,
    /// An end goes over another connection than a command without an answer that makes a field.
    EndOvertakes,
    /// An answer over the second connection counts whichever server it comes from.
    AnyServerConfirms,
}

/// What is checked, and within which bounds.
#[derive(Clone, Debug)]
pub struct HoldModel {
    /// The design that is checked.
    pub design: Design,
    /// The number of masters: one or three.
    pub masters: usize,
    /// The number of holds of each client: up to two.
    pub holds: usize,
    /// The number of levels of a hold: up to three.
    pub depth: u8,
    /// The leases of requests: `LEASE` is that of a watched level, others are fixed.
    pub leases: &'static [u8],
    /// Whether guards extend their level to `LONGEST`.
    pub extends: bool,
    /// Whether a command that was given up may run at any later time.
    pub late: bool,
    /// Whether a command that has run without an answer may run again.
    pub twice: bool,
    /// Whether holds have fencing tokens; the counters begin unequal.
    pub fenced: bool,
    /// How many answers may be lost, or commands given up.
    pub faults: u8,
    /// How many masters may restart empty.
    pub restarts: u8,
    /// How many clients may crash.
    pub crashes: u8,
    /// The number of signs that a hold may be gone.
    pub doubts: u8,
    /// How many clocks of masters may be set back.
    pub jumps: u8,
    /// Whether levels are granted without a command.
    pub local: bool,
    /// Whether a command that was given up stays in its connection, where it runs once.
    pub streams: bool,
    /// Whether that connection may be replaced, so that one end runs before a maker of the field that was sent earlier.
    pub replaced: bool,
    /// Whether a thread renews beside the background task, over a connection of its own.
    pub thread: bool,
    /// Whether states that differ only by the names of clients and masters are one.
    pub symmetric: bool,
}

/// All masters, all clients, and what is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    /// The masters. With fewer than three, the others stay idle.
    pub masters: [Master; 3],
    /// The holds of the first client, then those of the second.
    pub holds: [Hold; HOLDS],
    faults: u8,
    restarts: u8,
    crashes: u8,
    doubts: u8,
    jumps: u8,
    /// The token that was handed out last.
    token: u8,
    token_fell: bool,
    reentered_lost: bool,
}

/// A step. Holds, masters and levels are given by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A client asks for the lock, with this lease.
    Ask(usize, u8),
    /// A holder re-enters, with this lease.
    Nest(usize, u8),
    /// A holder re-enters without a command.
    NestLocally(usize),
    /// The thread sends a renewal.
    BeginBackupRenewal(usize),
    /// It runs, and its answer arrives, or is lost if `false`.
    EndBackupRenewal(usize, bool),
    /// A guard is released: if `true` by a command of its own, otherwise by the background task.
    Leave(usize, usize, bool),
    /// A guard extends its level, given as one more than its index, or 0 if it is watched.
    Extend(usize, u8),
    /// The background task sends what is due.
    Background(usize),
    /// A command runs, and its answer arrives.
    Run(usize, usize, Command),
    /// A command runs, and its answer is lost, or it runs again.
    RunUnanswered(usize, usize, Command),
    /// A command that was given up runs.
    RunLate(usize, usize, Command),
    /// The client looks at the answers.
    Conclude(usize),
    /// Masters do not answer in time.
    GiveUp(usize),
    /// The future that waits for the answers is dropped.
    Abandon(usize),
    /// Answers after the verdict do not arrive.
    LoseStragglers(usize, usize),
    /// Something is a sign that the hold may be gone.
    Doubt(usize),
    /// A client crashes.
    Crash(usize),
    /// A master restarts empty.
    Restart(usize),
    /// The clock of a master is set back.
    Jump(usize),
    /// Time passes.
    Tick,
}

impl HoldModel {
    /// Everything that can go wrong, at once, except levels without a command and the thread. This is too much to be
    /// explored completely.
    #[must_use]
    pub fn everything() -> HoldModel {
        HoldModel {
            design: Design::Sound,
            masters: 3,
            holds: 2,
            depth: 3,
            leases: &[LEASE, LONGEST],
            extends: true,
            late: true,
            twice: true,
            fenced: false,
            faults: 1,
            restarts: 1,
            crashes: 1,
            doubts: 1,
            jumps: 1,
            local: false,
            streams: false,
            replaced: false,
            thread: false,
            symmetric: true,
        }
    }

    /// Commands that are given up never run, so nothing may be left of a hold that is over.
    #[must_use]
    pub fn remains() -> HoldModel {
        let once = HoldModel { late: false, twice: false, crashes: 0, ..HoldModel::everything() };
        HoldModel { depth: 1, leases: &[LEASE], extends: false, restarts: 1, doubts: 0, jumps: 0, ..once }
    }

    /// Fencing tokens, from counters that differ. A master that restarts would lose its counter, which is a
    /// documented limit.
    #[must_use]
    pub fn tokens() -> HoldModel {
        HoldModel { fenced: true, late: true, twice: true, restarts: 0, ..HoldModel::remains() }
    }

    fn of_client(&self, client: usize) -> Range<usize> {
        2 * client..2 * client + self.holds
    }

    fn client_steps(&self, state: &State, client: usize, steps: &mut Vec<Step>) {
        let holds = self.of_client(client);
        let record = |hold: usize| &state.holds[hold];
        // A process's releases precede its requests, unless a release got no answer.
        let waits = |hold: usize| {
            let record = record(hold);
            let over = matches!(record.stage, Stage::None | Stage::Gone | Stage::Crashed);
            !(over || record.ends() && record.tried && record.depth() == 0)
        };
        let unused = |hold: &usize| {
            let traces = self.design != Design::SharedField && !state.is_traceless(*hold);
            record(*hold).stage == Stage::None && !traces
        };
        if !holds.clone().any(waits)
            && let Some(hold) = holds.clone().find(unused)
        {
            steps.extend(self.leases.iter().map(|lease| Step::Ask(hold, *lease)));
        }
        for hold in holds {
            self.hold_steps(state, hold, steps);
        }
        if state.crashes > 0 && self.of_client(client).any(|hold| record(hold).stage != Stage::None) {
            steps.push(Step::Crash(client));
        }
    }

    fn hold_steps(&self, state: &State, hold: usize, steps: &mut Vec<Step>) {
        let record = &state.holds[hold];
        let depth = record.depth();
        if self.local && depth < self.depth && state.is_certain(self, hold) {
            steps.push(Step::NestLocally(hold));
        }
        if self.thread && record.is_due_for_backup_renewal() {
            steps.push(Step::BeginBackupRenewal(hold));
        }
        if record.backup_renewal.is_some() {
            steps.push(Step::EndBackupRenewal(hold, true));
            if state.faults > 0 {
                steps.push(Step::EndBackupRenewal(hold, false));
            }
        }
        if record.lives() && state.is_idle(self, hold) {
            if depth < self.depth {
                steps.extend(self.leases.iter().map(|lease| Step::Nest(hold, *lease)));
            }
            if self.extends && record.sure < LONGEST {
                let fixed = (0..depth).filter(|level| record.levels[usize::from(*level)] < LONGEST + 1);
                steps.extend(fixed.map(|level| Step::Extend(hold, level + 1)).chain([Step::Extend(hold, 0)]));
            }
        }
        for level in 0..usize::from(depth) {
            if record.levels[..level].contains(&record.levels[level]) {
                continue;
            }
            // The end of a level that no command asked for takes no command either.
            let is_owed = record.stands >= depth;
            let sends =
                record.stage == Stage::Stands && record.command.is_none() && !record.unsettled && is_owed;
            if sends && state.set(hold, client::LACKING) != 0 {
                steps.push(Step::Leave(hold, level, true));
            }
            steps.push(Step::Leave(hold, level, false));
        }
        if state.next_action(self, hold).is_some() {
            steps.push(Step::Background(hold));
        }
        if state.is_decided(self, hold) && (state.faults > 0 || !state.is_awaited(hold)) {
            steps.push(Step::Conclude(hold));
        }
        if state.faults > 0 && record.command.is_some() {
            if state.is_awaited(hold) {
                steps.push(Step::GiveUp(hold));
            }
            if record.command.is_some_and(|under| matches!(under.command, Command::Acquire { .. })) {
                steps.push(Step::Abandon(hold));
            }
        }
        if state.doubts > 0 && record.lives() && !record.unsettled {
            steps.push(Step::Doubt(hold));
        }
    }

    fn master_steps(&self, state: &State, at: usize, steps: &mut Vec<Step>) {
        let master = &state.masters[at];
        for hold in 0..HOLDS {
            let link = &master.links[hold];
            let changes = |command: &Command| {
                let mut after = *master;
                after.run(hold, *command, state.holds[hold].token, self.fenced, self.design);
                after != *master
            };
            // Commands that were given up are before it in the connection, unless it goes over another one.
            let overtakes =
                |command: &Command| self.design == Design::EndOvertakes && *command == Command::END;
            let is_next = |command: &Command| match *command {
                Command::END if self.replaced => !link.overtaken,
                _ => !self.streams || link.stray.is_empty() || overtakes(command),
            };
            for command in link.flying.iter().filter(is_next) {
                steps.push(Step::Run(hold, at, command));
                if state.faults > 0 && changes(&command) {
                    steps.push(Step::RunUnanswered(hold, at, command));
                }
            }
            let runs = |command: &Command| self.streams || changes(command);
            steps.extend(link.stray.iter().filter(runs).map(|command| Step::RunLate(hold, at, command)));
            if state.faults > 0 && !state.stragglers(hold, at).is_empty() {
                steps.push(Step::LoseStragglers(hold, at));
            }
        }
        if state.restarts > 0 && (master.field > 0 || master.young > 0) {
            steps.push(Step::Restart(at));
        }
        if state.jumps > 0 && master.field > 0 && master.ttl != master::FAR {
            steps.push(Step::Jump(at));
        }
    }
}

impl State {
    /// Returns whether something is awaited.
    fn is_under_way(&self) -> bool {
        let links = || self.masters.iter().flat_map(|master| &master.links);
        self.holds.iter().any(|hold| hold.command.is_some() || hold.backup_renewal.is_some())
            || !links().all(|link| link.flying.union(link.ran).is_empty())
    }

    fn run(&mut self, model: &HoldModel, hold: usize, at: usize, command: Command) -> Answer {
        let link = &mut self.masters[at].links[hold];
        link.overtaken |= model.replaced && command == Command::END && link.has_maker();
        self.masters[at].run(hold, command, self.holds[hold].token, model.fenced, model.design)
    }

    /// Returns the representative of all states that differ only by the names of masters and clients.
    fn canonical(mut self, masters: usize) -> State {
        let mut swapped = self;
        swapped.holds.rotate_left(2);
        for master in &mut swapped.masters {
            master.links.rotate_left(2);
            if master.field > 0 {
                master.field = (master.field + 1) % 4 + 1;
            }
        }
        self.masters[..masters].sort_unstable();
        swapped.masters[..masters].sort_unstable();
        self.min(swapped)
    }
}

impl Model for HoldModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut masters = [Master::default(); 3];
        if self.fenced {
            // An earlier holder has left a token that a majority knows, and a counter that is ahead of it.
            for (master, counter) in masters.iter_mut().zip([3, 1, 1]) {
                master.counter = counter;
            }
        }
        let (faults, restarts, crashes, doubts) = (self.faults, self.restarts, self.crashes, self.doubts);
        let holds = [Hold::default(); HOLDS];
        let (jumps, token, token_fell, reentered_lost) = (self.jumps, 0, false, false);
        vec![State {
            masters,
            holds,
            faults,
            restarts,
            crashes,
            doubts,
            jumps,
            token,
            token_fell,
            reentered_lost,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for client in 0..2 {
            self.client_steps(state, client, steps);
        }
        for at in 0..self.masters {
            self.master_steps(state, at, steps);
        }
        if state.faults > 0 || !state.is_under_way() {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = *last;
        match step {
            Step::Ask(hold, lease) => state.ask(self, hold, lease),
            Step::Nest(hold, lease) => state.nest(self, hold, lease),
            Step::NestLocally(hold) => state.nest_locally(self, hold),
            Step::BeginBackupRenewal(hold) => state.begin_backup_renewal(hold),
            Step::EndBackupRenewal(hold, answers) => {
                state.faults -= u8::from(!answers);
                state.end_backup_renewal(self, hold, answers);
            }
            Step::Leave(hold, level, now) => state.leave(self, hold, level, now),
            Step::Extend(hold, level) => state.extend(self, hold, level),
            Step::Background(hold) => state.background(self, hold),
            Step::Run(hold, at, command) => {
                let answer = state.run(self, hold, at, command);
                state.answered(self, hold, at, command, answer);
            }
            Step::RunUnanswered(hold, at, command) => {
                state.faults -= 1;
                state.run(self, hold, at, command);
                if !self.twice {
                    let link = &mut state.masters[at].links[hold];
                    link.flying.remove(command);
                    link.ran.insert(command);
                }
            }
            Step::RunLate(hold, at, command) => {
                state.run(self, hold, at, command);
                if self.streams {
                    state.masters[at].links[hold].stray.remove(command);
                }
            }
            Step::Conclude(hold) => {
                state.faults -= u8::from(state.is_awaited(hold));
                state.conclude(self, hold);
            }
            Step::GiveUp(hold) => {
                state.faults -= 1;
                state.give_up(self, hold);
                state.conclude(self, hold);
            }
            Step::Abandon(hold) => {
                state.faults -= 1;
                state.abandon(self, hold);
            }
            Step::LoseStragglers(hold, at) => {
                state.faults -= 1;
                state.lose_stragglers(self, hold, at);
            }
            Step::Doubt(hold) => {
                state.doubts -= 1;
                state.doubt_hold(hold);
            }
            Step::Crash(client) => {
                state.crashes -= 1;
                state.crash(self, self.of_client(client));
            }
            Step::Restart(at) => {
                state.restarts -= 1;
                state.masters[at].restart(LONGEST, self.thread);
            }
            Step::Jump(at) => {
                state.jumps -= 1;
                state.masters[at].jump();
            }
            Step::Tick => {
                state.faults -= u8::from(state.is_under_way());
                state.masters.iter_mut().for_each(Master::tick);
                state.holds.iter_mut().for_each(|hold| hold.tick(self.design));
            }
        }
        state.tidy(self);
        if state == *last {
            return None;
        }
        Some(if self.symmetric { state.canonical(self.masters) } else { state })
    }

    fn properties(&self) -> Vec<Property<HoldModel>> {
        vec![
            Property::always("holds of different clients never overlap", |_, state: &State| {
                let lives = |client: usize| state.holds[2 * client..][..2].iter().any(Hold::lives);
                !(lives(0) && lives(1))
            }),
            Property::always("tokens increase over fresh grants", |_, state: &State| !state.token_fell),
            Property::always("no re-entry on a hold that was lost", |_, state: &State| !state.reentered_lost),
            Property::always(
                "the count at rest is that of the levels that were asked for",
                |model: &HoldModel, state: &State| (0..HOLDS).all(|hold| model.count_is_right(state, hold)),
            ),
            Property::always("what has ended leaves no field", |model: &HoldModel, state: &State| {
                model.twice || (0..HOLDS).all(|hold| leaves_no_field(state, hold))
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.token <= 7 && state.masters.iter().all(|master| master.counter <= 8)
    }
}

impl HoldModel {
    fn count_is_right(&self, state: &State, hold: usize) -> bool {
        let record = &state.holds[hold];
        let rests = record.lives() && state.is_idle(self, hold) && record.stands <= record.depth();
        let is_right = |master: &&Master| {
            let link = &master.links[hold];
            let unknown = link.sets & client::UNKNOWN != 0 || !link.is_quiet();
            master.field != hold as u8 + 1 || master.count == record.stands || unknown
        };
        !rests || state.masters.iter().take(self.masters).filter(is_right).count() > self.masters / 2
    }
}

fn leaves_no_field(state: &State, hold: usize) -> bool {
    let is_left = |master: &Master| {
        let link = &master.links[hold];
        master.field == hold as u8 + 1 && link.is_quiet()
    };
    state.holds[hold].stage != Stage::None || !state.masters.iter().any(is_left)
}

#[cfg(test)]
mod tests;
