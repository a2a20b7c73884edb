//! Waiters: whether a request that waits for a free lock is going to ask for it.
//!
//! Two processes with up to two requests each, three masters. A request arrives, asks, sleeps, is woken, is granted,
//! releases, and is dropped. A release publishes on each master separately; a subscription is requested, confirmed
//! and broken on each separately.
//!
//! # What a step stands for
//!
//! A visit of `LockEntry` is one step (`entry.rs`, whose functions have the names of those in `src/table/`).
//! Commands, confirmations and messages are on their way until a step of their own. They arrive in any order that one
//! connection allows: an acquire before its end, a confirmation before the messages. A task that is woken is polled
//! in a step of its own.
//!
//! # What is left out, and why that is sound
//!
//! - **Each command runs once and is answered**: the model `hold` covers what a lost command leaves. So a request may
//!   be refused, but never fails.
//! - **Timers**: the short ones (a pause after a split vote, or before the subscription is confirmed) may end at any
//!   time. The long ones (the poll interval, the end of the other's lease) end only if nothing else can happen, and
//!   only if messages are lost: the property is that nobody needs them otherwise.
//! - **Two attempts of a process are known at once**: one under way or held, and what an earlier one has left. A
//!   request that would be the third waits for a short time.
//! - **Messages are counted, not named**: the code too does not know which release a message belongs to.
//! - **The second of a line has never been its first**, so it has not asked and does not sleep. The model does not
//!   show what a new head must do if it had gone to sleep before.
//! - **Children, branches, heads that are not polled, and nested levels**: they stand in other lines, or are passed
//!   over by time.
//!
//! Two requests have more states than a test can explore: the tests explore all executions of some steps, and
//! `scripts/lab/models` as many as its time allows.
mod entry;

use stateright::{Model, Property};

use entry::Answer;
pub use entry::{Entry, Phase, Stage, Subscription, Try, Waiter};

/// How many masters there are.
pub const MASTERS: usize = 3;
/// All of them, as a set.
pub const ALL: u8 = (1 << MASTERS) - 1;

/// The design that is checked: the one in use, or one that is known to be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// The design of the code.
    Sound,
    /// A head does not ask again once it is subscribed.
    NoSecondLook,
    /// A message that arrives while the head asks is forgotten.
    MessageWhileAsking,
    /// The message of this process's own release is taken for that of another process.
    EchoIsForeign,
    /// An echo is expected from a master where the release found nothing.
    EchoOfNothing,
}

/// What is checked, and within which bounds.
#[derive(Clone, Debug)]
pub struct WakeModel {
    /// The design that is checked.
    pub design: Design,
    /// How many requests each process makes.
    pub requests: [u8; 2],
    /// How many requests may be dropped.
    pub drops: u8,
    /// How many messages may be lost.
    pub losses: u8,
    /// How many subscriptions may break.
    pub cuts: u8,
    /// Whether one master has just restarted, so that nobody asks it for the lock.
    pub young: bool,
    /// For each process: the only masters at which it is subscribed, from the beginning to the end. 0 means that it
    /// subscribes while it waits.
    pub subscribed: [u8; 2],
}

impl WakeModel {
    /// Everything that can go wrong, at once.
    #[must_use]
    pub fn everything() -> WakeModel {
        let (design, subscribed) = (Design::Sound, [0; 2]);
        WakeModel { design, requests: [2, 2], drops: 1, losses: 1, cuts: 1, young: false, subscribed }
    }

    /// A model for which release each message belongs to.
    #[must_use]
    pub fn echoes() -> WakeModel {
        WakeModel { drops: 0, losses: 0, cuts: 0, subscribed: [ALL; 2], ..WakeModel::everything() }
    }
}

/// A master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Master {
    /// The field, as a process and its attempt.
    pub field: Option<(u8, u8)>,
    /// The channels, by process.
    pub channels: [Channel; 2],
}

/// A process's subscription as a master knows it, and what is on its way back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// Whether `SUBSCRIBE` is on its way.
    pub asked: bool,
    /// Whether messages are sent.
    pub on: bool,
    /// Whether the confirmation is on its way.
    pub confirms: bool,
    /// Messages on their way: those of the process's own releases, and those of others.
    pub messages: [u8; 2],
}

/// All masters, both processes, and what is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    /// The masters, by index.
    pub masters: [Master; MASTERS],
    /// The processes, by index.
    pub entries: [Entry; 2],
    requests: [u8; 2],
    drops: u8,
    losses: u8,
    cuts: u8,
    /// For each process: messages of others' releases that did not make it ask for its holds.
    news: [u8; 2],
    /// Whether a process asked for its holds although there was no such message.
    asked_for_echo: bool,
}

/// A step. Processes, attempts, masters and waiters are given by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A request begins.
    Arrive(usize),
    /// A waiter that was woken is polled, or its short timer ends.
    Poll(usize, usize),
    /// The poll interval passes, or the other's lease ends.
    PollCap(usize, usize),
    /// A request is dropped.
    Drop(usize, usize),
    /// A command runs, and its answer arrives.
    Run(usize, usize, usize),
    /// The process looks at the answers.
    Conclude(usize, usize),
    /// The guard is released.
    Release(usize),
    /// The background task ends what a refused attempt has left.
    Sweep(usize, usize),
    /// `SUBSCRIBE` reaches the master.
    Subscribe(usize, usize),
    /// Its confirmation reaches the process.
    Confirm(usize, usize),
    /// A message reaches the process: of its own release if `true`.
    Message(usize, usize, bool),
    /// A message is lost.
    Lose(usize, usize, bool),
    /// The connection for messages breaks.
    Cut(usize, usize),
}

impl State {
    /// Runs a command on a master. A release is published.
    fn run(&mut self, process: usize, attempt: usize, at: usize) {
        let field = Some((process as u8, attempt as u8));
        let link = &mut self.entries[process].tries[attempt].links[at];
        let master = &mut self.masters[at];
        // Over one connection the acquire goes first.
        if link.acquires {
            link.acquires = false;
            let free = master.field.is_none();
            if free {
                master.field = field;
            }
            self.entries[process].answered(attempt, at, if free { Answer::Done } else { Answer::Not }, false);
            return;
        }
        link.ends = false;
        let there = master.field == field;
        if there {
            master.field = None;
            for (listener, channel) in master.channels.iter_mut().enumerate() {
                if channel.on {
                    channel.messages[usize::from(listener != process)] += 1;
                }
            }
        }
        self.entries[process].answered(attempt, at, if there { Answer::Done } else { Answer::Not }, true);
    }

    /// Models what follows a visit of an entry: `LockEntry::subscription_change`.
    fn end_of_visit(&mut self, model: &WakeModel, process: usize) {
        if model.subscribed[process] != 0 {
            return;
        }
        match self.entries[process].subscription_change() {
            Some(true) => {
                self.masters.iter_mut().for_each(|master| master.channels[process].asked = true);
            }
            Some(false) => {
                self.masters.iter_mut().for_each(|master| master.channels[process] = Channel::default());
            }
            None => {}
        }
    }

    /// Returns the representative of all states that differ only by the names of masters and processes.
    fn canonical(self, model: &WakeModel) -> State {
        let [one, other] = model.subscribed;
        let same = self.sorted();
        if one == other { same.min(self.swapped().sorted()) } else { same }
    }

    /// Puts the masters in order.
    fn sorted(mut self) -> State {
        let column = |at: &usize| (self.masters[*at], self.entries.map(|entry| entry.column(*at)));
        let mut order = [0, 1, 2];
        order.sort_by_key(column);
        self.masters = order.map(|at| self.masters[at]);
        self.entries.iter_mut().for_each(|entry| entry.reorder(order));
        self
    }

    /// Swaps the processes.
    fn swapped(mut self) -> State {
        self.entries.swap(0, 1);
        self.requests.swap(0, 1);
        self.news.swap(0, 1);
        for master in &mut self.masters {
            master.channels.swap(0, 1);
            master.field = master.field.map(|(process, attempt)| (1 - process, attempt));
        }
        self
    }

    /// Returns whether nothing is under way, and nobody is going to do anything before a long timer ends.
    fn is_quiet(&self) -> bool {
        (0..2).all(|process| self.is_at_rest(process))
    }

    /// Returns whether nothing of this process or for it is under way, and it does nothing before a long timer ends.
    fn is_at_rest(&self, process: usize) -> bool {
        let still = |channel: &Channel| !channel.asked && !channel.confirms && channel.messages == [0, 0];
        self.masters.iter().all(|master| still(&master.channels[process])) && self.entries[process].is_quiet()
    }

    /// Returns whether the lock is free, a request of this process does not know that, and no process is going to
    /// release it again.
    fn is_forgotten(&self, process: usize, lost: bool) -> bool {
        let other = 1 - process;
        self.masters.iter().all(|master| master.field.is_none())
            && self.entries[process].is_stuck(lost)
            && self.is_at_rest(process)
            && (self.entries[other].is_idle() || self.is_at_rest(other))
    }

    /// Returns whether it expects an echo from a master where neither one of its releases nor a message is on its
    /// way.
    fn expects_in_vain(&self, process: usize) -> bool {
        let entry = &self.entries[process];
        let comes = |at: usize| self.masters[at].channels[process].messages[0] > 0;
        entry.has_no_tries() && (0..MASTERS).any(|at| entry.echoes[at] > 0 && !comes(at))
    }
}

impl Model for WakeModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            masters: [Master::default(); MASTERS],
            entries: [Entry::default(); 2],
            requests: self.requests,
            drops: self.drops,
            losses: self.losses,
            cuts: self.cuts,
            news: [0; 2],
            asked_for_echo: false,
        };
        state.entries.iter_mut().for_each(|entry| entry.barred = u8::from(self.young));
        for process in (0..2).filter(|process| self.subscribed[*process] != 0) {
            let at = self.subscribed[process];
            state.entries[process].subscribe_at(at);
            for (master, state) in state.masters.iter_mut().enumerate() {
                state.channels[process].on = at & (1 << master) != 0;
            }
        }
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (process, entry) in state.entries.iter().enumerate() {
            if state.requests[process] > 0 && entry.has_room() {
                steps.push(Step::Arrive(process));
            }
            for (at, waiter) in entry.waiters.iter().enumerate() {
                let Some(waiter) = waiter else { continue };
                if waiter.woken || matches!(waiter.phase, Phase::Asleep { soon: true } | Phase::Pausing) {
                    steps.push(Step::Poll(process, at));
                }
                if self.losses > 0 && waiter.phase == (Phase::Asleep { soon: false }) && state.is_quiet() {
                    steps.push(Step::PollCap(process, at));
                }
                if state.drops > 0 {
                    steps.push(Step::Drop(process, at));
                }
            }
            for (number, attempt) in entry.tries.iter().enumerate() {
                let flying = |at: &usize| attempt.links[*at].acquires || attempt.links[*at].ends;
                steps.extend((0..MASTERS).filter(flying).map(|at| Step::Run(process, number, at)));
                if attempt.is_decided() {
                    steps.push(Step::Conclude(process, number));
                }
                if attempt.stage == Stage::Held {
                    steps.push(Step::Release(process));
                }
                if attempt.is_to_be_swept() {
                    steps.push(Step::Sweep(process, number));
                }
            }
            for (at, master) in state.masters.iter().enumerate() {
                let channel = &master.channels[process];
                if channel.asked {
                    steps.push(Step::Subscribe(process, at));
                }
                if channel.confirms {
                    // Over one connection the confirmation goes before the messages.
                    steps.push(Step::Confirm(process, at));
                }
                for own in [true, false] {
                    if channel.messages[usize::from(!own)] > 0 {
                        if !channel.confirms {
                            steps.push(Step::Message(process, at, own));
                        }
                        if state.losses > 0 {
                            steps.push(Step::Lose(process, at, own));
                        }
                    }
                }
                if state.cuts > 0 && channel.on {
                    steps.push(Step::Cut(process, at));
                }
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = *last;
        let process = match step {
            Step::Arrive(process) => {
                state.requests[process] -= 1;
                state.entries[process].arrive();
                process
            }
            Step::Poll(process, at) | Step::PollCap(process, at) => {
                state.entries[process].poll(at);
                process
            }
            Step::Drop(process, at) => {
                state.drops -= 1;
                state.entries[process].drop_request(at);
                process
            }
            Step::Run(process, attempt, at) => {
                state.run(process, attempt, at);
                process
            }
            Step::Conclude(process, attempt) => {
                state.entries[process].conclude(attempt, self.design);
                process
            }
            Step::Release(process) => {
                state.entries[process].release();
                process
            }
            Step::Sweep(process, attempt) => {
                state.entries[process].sweep(attempt);
                process
            }
            Step::Subscribe(process, at) => {
                let channel = &mut state.masters[at].channels[process];
                (channel.asked, channel.on, channel.confirms) = (false, true, true);
                process
            }
            Step::Confirm(process, at) => {
                state.masters[at].channels[process].confirms = false;
                state.entries[process].subscribed(at, self.design);
                process
            }
            Step::Message(process, at, own) => {
                state.masters[at].channels[process].messages[usize::from(!own)] -= 1;
                state.news[process] += u8::from(!own);
                if state.entries[process].message(at, self.design) {
                    state.asked_for_echo |= state.news[process] == 0;
                    state.news[process] = state.news[process].saturating_sub(1);
                }
                process
            }
            Step::Lose(process, at, own) => {
                state.losses -= 1;
                state.masters[at].channels[process].messages[usize::from(!own)] -= 1;
                process
            }
            Step::Cut(process, at) => {
                state.cuts -= 1;
                state.masters[at].channels[process] = Channel { asked: true, ..Channel::default() };
                state.entries[process].unsubscribed(at);
                process
            }
        };
        state.end_of_visit(self, process);
        (state != *last).then(|| state.canonical(self))
    }

    fn properties(&self) -> Vec<Property<WakeModel>> {
        vec![
            Property::always("no wake-up is lost", |model: &WakeModel, state: &State| {
                let lost = state.losses < model.losses;
                (0..2).all(|process| !state.is_forgotten(process, lost))
            }),
            Property::always("no echo is expected that never comes", |model: &WakeModel, state: &State| {
                state.losses < model.losses || (0..2).all(|process| !state.expects_in_vain(process))
            }),
            // An echo that arrives before its subscription is known, or one of a dropped request, is taken for
            // another's release. That only costs a look.
            Property::always("an echo is no news", |model: &WakeModel, state: &State| {
                model.subscribed != [ALL; 2] || model.drops > 0 || !state.asked_for_echo
            }),
        ]
    }
}

#[cfg(test)]
mod tests;
