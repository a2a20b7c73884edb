//! The line: processes that wait for a lock stand in a line on the server, and a hold's end hands the lock on.
//!
//! One server, one lock, two or three processes. No other model has the server's line.
//!
//! # The protocol
//!
//! A process's **head request** asks (`acquire`) under a field of its own. If the lock is busy, its **entry** joins
//! the lock's line. A script that ends a hold also **serves** the line: the first entry's field becomes the holder
//! for a short time, and a **message** notifies its process. An entry whose process does not receive messages is
//! removed, and the next one is served. The message is a hint: the request asks again under the same field, finds
//! that the field is the holder, and gets the whole lease.
//!
//! - A first ask takes a free lock. A later ask of the same field (after a message, a timer, or a new connection)
//!   serves the line, and takes the lock only if its own entry is the one served.
//! - A release removes its field's entry first, then ends the hold, then serves the line. It is sent until it is
//!   answered. Holders send it, requests that are dropped send it, and it is sent for a field that a message or an
//!   answer names if no request waits with that field.
//! - A waiting request asks again at the end of the TTL in its last answer, counted from its ask, or at the poll
//!   interval.
//! - A hand-over notifies the second of the line to ask at the end of the short time, and if the first one leaves, the
//!   next is notified when the key ends. A request that is notified while it asks, asks once more. A message for a
//!   field that no request uses any more applies to all requests that wait in its process.
//! - A process that may not subscribe **polls**: its entry says so, and the lock is handed to it all the same. It may
//!   not publish either: it hands the lock on without a message, and a request that is refused while such a process
//!   has the lock polls, too. A process that learns of this only while it stands in the line ends its field, and
//!   enters again as one that polls.
//! - Other programs' clients publish a `0` to the lock's channel when they release. Each process that waits subscribes
//!   to that channel, asks again soon after that, and asks at each `0`.
//! - A release leaves the lock to another program's client that waits, if it is that client's turn: it publishes `00`,
//!   and notifies the first of the line to ask at once, and the second to ask after the short time. The first gives way
//!   only once. Which of the entries give way depends on their numbers and on the length of the line. It also publishes
//!   `00` if it hands the lock on and nobody is left in the line, or if the last one leaves the line then.
//! - A request whose ask has no answer ends its field, and asks with a fresh one.
//! - A fenced hold's **token** is made by the ask that takes the lock, or the first one after a hand-over. A repeat of
//!   that ask gets the token that is there.
//!
//! # What a step stands for
//!
//! The server runs a script in one step (`server.rs`). A process takes a decision in one step (`process.rs`).
//! Commands of a connection run in the order in which they were sent, unless one [overtakes](LineModel::overtakes)
//! another. After `NOSCRIPT` a command is [sent again](LineModel::flushes), after those that were sent in between; answers
//! are read in order. Messages come over another connection, in any order with the answers. Commands that were sent
//! over a connection that is lost never run, or run at any [later](LineModel::late) time; their answers do not arrive.
//!
//! # What is left out, and why that is sound
//!
//! - **Time** is in ticks. Each deadline is kept as the ticks that are left. All clocks run at the same rate, but the
//!   server's may [step](LineModel::steps).
//! - **Time passes for free only while nothing is under way** that a running process or the server does at once. A
//!   tick while something is under way costs one of the [`delays`](LineModel::delays). During all [other
//!   ticks](LineModel::idle) the lock may not be free while a request waits.
//! - **A field that nothing names is as good as a new one**, and processes have no names: of the states that differ
//!   only by these names, the least one stands for all.
//! - **More than three commands, answers or messages of one process on their way** are not explored.
//! - **Holds are not renewed or nested.**
//! - **A hold that the server loses belongs to nobody**: it may be lost by a restart, a failover to a replica that
//!   lacks the last step, a step of the clock or a forced release. That two processes hold the lock then is
//!   documented, and not what this model is about. A failover to a server whose clock differs is a failover and a
//!   [step](LineModel::clocks).
//! - **The line's own TTL**: a waiting process asks more often than that TTL ends. So entries of crashed processes
//!   stay until they are served.
//! - **Of fencing tokens** only the order is kept, not the values: a server that has lost its counter gives a greater
//!   one than any before, by its clock, unless [that is behind](Design::ClockBehind).
//! - **Two failures at once**: if both the process that was notified when to ask and the one that the lock was handed
//!   to are gone, the others wait for their own timers. In that case the lock may be free for longer.
//! - **Several names** have a model of their own, [`several`](crate::several). A request stands only in the line of the
//!   name that it waits for. For each other lock it is a holder, or a request that is dropped, and later a new one.
//! - **A queue in the process.** The head of the process, whichever request that is, asks with the field that stands
//!   in the line.
//! - **Other programs' clients.** There is one at a time. It waits as Redisson's `RLock` does, for a message or the end
//!   of the TTL that it was answered. A client that is woken may be slow for any time.
mod process;
mod server;

use stateright::{Model, Property};

pub use process::{Life, Phase, Process, Request};
pub use server::{Data, Entry, Held, Place};

/// A field of the lock's hash. The fields of one process have consecutive numbers.
pub type Field = u8;
/// The field of another program's client.
pub const FOREIGN: Field = 99;
/// How many fields of each process may leave traces at once.
const FIELDS: u8 = 3;

/// The process that the field belongs to.
#[must_use]
pub const fn owner(field: Field) -> usize {
    (field / FIELDS) as usize
}

/// A short ordered list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Few<T, const N: usize>([Option<T>; N]);

impl<T: Copy, const N: usize> Default for Few<T, N> {
    fn default() -> Few<T, N> {
        Few([None; N])
    }
}

impl<T: Copy + PartialEq, const N: usize> Few<T, N> {
    /// Returns the items from the first to the last.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<T, N> {
        self.0.into_iter().flatten()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.first().is_none_or(Option::is_none)
    }

    fn len(&self) -> usize {
        self.iter().count()
    }

    pub(crate) fn contains(&self, item: &T) -> bool {
        self.iter().any(|other| other == *item)
    }

    /// Adds the item as the last one.
    pub(crate) fn push(&mut self, item: T) {
        self.insert(self.len(), item);
    }

    fn insert(&mut self, at: usize, item: T) {
        assert!(self.len() < N, "the scope needs more room");
        self.0[at..].rotate_right(1);
        self.0[at] = Some(item);
    }

    pub(crate) fn take(&mut self, at: usize) -> Option<T> {
        let item = self.0.get_mut(at).and_then(Option::take);
        self.0[at..].rotate_left(1);
        item
    }

    pub(crate) fn remove(&mut self, is: impl Fn(&T) -> bool) {
        if let Some(at) = self.iter().position(|item| is(&item)) {
            self.take(at);
        }
    }
}

/// The design that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// The protocol as documented.
    Sound,
    /// A request whose ask has no answer asks with a fresh field, and does not end the one before.
    FormerStays,
    /// The next request of a process has the field of the one before.
    SharedField,
    /// A release ends whatever field there is.
    UncheckedRelease,
    /// A release leaves the field's entry in the line.
    ReleaseKeepsEntry,
    /// The first of the line becomes the holder even if its process can't be notified.
    ReceiversNotCounted,
    /// A process that polls is taken for one that is gone, since it can't be notified.
    PollersAreGone,
    /// A request that is refused while a process that polls, and may not publish, has the lock sleeps as usual.
    SleepsBehindSilent,
    /// The time to ask again counts from the answer, not from the ask.
    TimerFromAnswer,
    /// A request that asks again takes a free lock.
    AskerTakes,
    /// A request that enters the line stands before the others.
    NewcomersFirst,
    /// A dropped request leaves its entry.
    DropLeavesEntry,
    /// A message for a field that nobody waits for is ignored.
    StrangeHintIgnored,
    /// A message for a field is ignored while a release of that field has no answer.
    LeavingHintIgnored,
    /// A message that comes before the answer to an ask is forgotten.
    HintForgotten,
    /// A request does not ask again over a new connection.
    NotAgain,
    /// A hold's time counts from the answer.
    DeadlineFromAnswer,
    /// The ask after a hand-over makes no fencing token: it gets the token that is there.
    TokenAtAnswer,
    /// The clock of a server that takes over is behind, so a new token is greater than that server's counter alone.
    ClockBehind,
    /// A request in the line that can no longer be notified keeps its field.
    DeniedStays,
    /// Entries of the line are ordered by the server's clock.
    OrderByClock,
    /// The lock is never left to other programs' clients.
    NoTurns,
    /// A hand-over that empties the line does not notify other programs' clients.
    OthersNotTold,
    /// No process subscribes to the lock's channel.
    NobodyListens,
    /// A hand-over does not notify the second of the line when to ask.
    SecondNotTold,
    /// A request that is notified while it asks sleeps after the answer.
    TimeForgotten,
}

/// What is checked, and within which bounds.
#[derive(Clone, Debug)]
pub struct LineModel {
    /// The design that is checked.
    pub design: Design,
    /// How many requests each process makes.
    pub requests: [u8; 3],
    /// The processes that may not subscribe, as bits.
    pub pollers: u8,
    /// Whether processes receive messages from the beginning.
    pub heard: bool,
    /// How many ticks a lease has.
    pub lease: u8,
    /// How many ticks a hand-over has.
    pub short: u8,
    /// How many ticks are between two asks.
    pub poll: u8,
    /// For how many quiet ticks the lock may be free while a request waits.
    pub idle: u8,
    /// Whether holds have fencing tokens.
    pub fenced: bool,
    /// Whether commands that were sent over a connection that is lost may still run.
    pub late: bool,
    /// How many ticks may pass while something is under way.
    pub delays: u8,
    /// How many connections may break.
    pub cuts: u8,
    /// Whether the server may take a broken connection for open.
    pub half_open: bool,
    /// How many requests may be dropped.
    pub drops: u8,
    /// How many processes may crash.
    pub crashes: u8,
    /// How often a process may be stopped for a time.
    pub freezes: u8,
    /// How many forced releases there may be.
    pub forces: u8,
    /// How often the server may restart empty.
    pub restarts: u8,
    /// How many failovers there may be, to a replica that has all or lacks the last step.
    pub failovers: u8,
    /// How many holds another program's client may have.
    pub foreign: u8,
    /// How many commands may run before the one that was sent before them.
    pub overtakes: u8,
    /// How many commands may find that the server does not know their script, so that they are sent again.
    pub flushes: u8,
    /// How many processes may lose the right to subscribe.
    pub denials: u8,
    /// How often the server's clock may step.
    pub steps: u8,
    /// How it may step.
    pub clocks: &'static [Clock],
}

/// A step of the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Ahead by a tick.
    Ahead,
    /// Back by a tick.
    Back,
    /// Ahead of the time of the line, which nobody has asked in for long enough.
    AheadOfLine,
    /// Ahead of the time of the line and of the lock.
    AheadOfAll,
}

/// All steps of the clock.
const CLOCKS: &[Clock] = &[Clock::Ahead, Clock::Back, Clock::AheadOfLine, Clock::AheadOfAll];

/// Another program's client that waits for the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Other {
    /// It does not wait.
    #[default]
    Away,
    /// It was refused, and asks again after so many ticks.
    Asleep(u8),
    /// A message or its time has woken it. It asks at any time after that, or never.
    Woken,
}

/// A command on its way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command {
    /// `acquire`.
    Ask {
        /// The field that asks.
        field: Field,
        /// How it enters the line. `None`: it does not, since its process can't be notified yet.
        place: Option<Place>,
        /// Whether an earlier ask of the field may have run.
        again: bool,
    },
    /// `release`, or `settle` to 0.
    Release(Field),
    /// Subscribes to the lock's channel.
    Listen,
}

impl Command {
    /// Returns the field that it names.
    fn field(&mut self) -> Option<&mut Field> {
        match self {
            Command::Ask { field, .. } | Command::Release(field) => Some(field),
            Command::Listen => None,
        }
    }
}

/// An answer on its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reply {
    /// The field holds the lock, with this token.
    Granted(Field, u8),
    /// Another field holds the lock.
    Busy {
        /// The field that asked.
        field: Field,
        /// The TTL of the key.
        ttl: u8,
        /// Whether the holder's process polls.
        polls: bool,
    },
    /// The field is gone.
    Released(Field),
    /// Messages on the lock's channel arrive.
    Listening,
    /// The server does not know the script of this command.
    Unknown(Command),
}

/// A message from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// The lock was handed to this field.
    Yours(Field),
    /// Ask with this field in so many ticks: the lock may be free then.
    Later(Field, u8),
    /// The lock is free: `0` to its channel.
    Free,
    /// The lock is free, and left to other programs' clients: `00` to its channel.
    Left,
}

impl Reply {
    /// Returns the field that it names.
    fn field(&mut self) -> Option<&mut Field> {
        match self {
            Reply::Granted(field, _) | Reply::Busy { field, .. } | Reply::Released(field) => Some(field),
            Reply::Unknown(command) => command.field(),
            Reply::Listening => None,
        }
    }
}

impl Message {
    /// Returns the field that it names.
    fn field(&mut self) -> Option<&mut Field> {
        match self {
            Message::Yours(field) | Message::Later(field, _) => Some(field),
            Message::Free | Message::Left => None,
        }
    }
}

/// The server, all processes, and what is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    /// What the server has.
    pub data: Data,
    /// What its replica has, if there are failovers.
    replica: Data,
    /// The processes, by index.
    pub processes: [Process; 3],
    foreign: u8,
    delays: u8,
    cuts: u8,
    drops: u8,
    crashes: u8,
    freezes: u8,
    forces: u8,
    restarts: u8,
    failovers: u8,
    overtakes: u8,
    flushes: u8,
    denials: u8,
    steps: u8,
    /// The client of another program that waits, if any.
    other: Other,
    /// Not in the protocol: how many releases have handed the lock on since that client fell asleep.
    behind: u8,
    /// Not in the protocol: the greatest token with which a hold has begun in its process.
    begun: u8,
    /// Whether the server's clock was set back.
    set_back: bool,
    /// Not in the protocol: fields in the order in which they entered the line.
    order: Few<Field, 6>,
    passed_over: bool,
    old_token: bool,
    /// Whether the script that runs may not publish. `false` between two steps.
    silent: bool,
    /// For how many quiet ticks the lock has been free while a request waits.
    idle: u8,
    late_ran: bool,
}

/// A step. Processes are given by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A request asks for the first time.
    Begin(usize),
    /// The first command of a connection runs, or the second one if `true`.
    Run(usize, bool),
    /// An answer is read.
    Answer(usize),
    /// A message is read.
    Message(usize),
    /// A command of a lost connection runs.
    RunLate(usize),
    /// The server does not know the script of the first command of a connection.
    Unknown(usize),
    /// A request asks again, because its time has come.
    AskAgain(usize),
    /// A hold's time is up.
    Lapse(usize),
    /// A holder releases.
    Release(usize),
    /// A request is dropped.
    Drop(usize),
    /// A connection is lost. `true`: the server takes it for open.
    Cut(usize, bool),
    /// The connection for commands is lost, and there is another one.
    CutCommands(usize),
    /// There is a new connection, and its process receives messages.
    Connect(usize),
    /// A process learns that it may no longer subscribe.
    Deny(usize),
    /// The server notices that a connection is gone.
    Notice(usize),
    /// A process crashes. `true`: the server does not notice.
    Crash(usize, bool),
    /// A process is stopped.
    Freeze(usize),
    /// A stopped process runs again.
    Thaw(usize),
    /// A forced release.
    Force,
    /// The server restarts empty.
    Restart,
    /// A replica becomes the master. `true`: it lacks the last step.
    Failover(bool),
    /// Another program's client releases the lock.
    OtherReleases,
    /// Another program's client asks for the lock, and waits if it is busy.
    OtherAsks,
    /// The server's clock steps.
    ClockStep(Clock),
    /// Time passes.
    Tick,
}

impl LineModel {
    /// A model in which nothing goes wrong.
    #[must_use]
    pub fn base(requests: [u8; 3]) -> LineModel {
        LineModel {
            design: Design::Sound,
            requests,
            pollers: 0,
            heard: true,
            lease: 3,
            short: 2,
            poll: 3,
            idle: 0,
            fenced: false,
            late: false,
            delays: 0,
            cuts: 0,
            half_open: false,
            drops: 0,
            crashes: 0,
            freezes: 0,
            forces: 0,
            restarts: 0,
            failovers: 0,
            foreign: 0,
            overtakes: 0,
            flushes: 0,
            denials: 0,
            steps: 0,
            clocks: &[Clock::Ahead],
        }
    }

    /// The big configurations.
    #[must_use]
    pub fn scopes() -> Vec<LineModel> {
        let two = LineModel { idle: 1, ..LineModel::base([2, 2, 0]) };
        let three = LineModel { idle: 1, ..LineModel::base([1, 1, 1]) };
        let lossy =
            |cuts, model: &LineModel| LineModel { cuts, late: true, half_open: true, ..model.clone() };
        let late = lossy(1, &three);
        vec![
            LineModel { drops: 1, delays: 1, ..lossy(1, &two) },
            // An acquire that runs late, and whose end is lost with a second connection, keeps the lock for its lease.
            LineModel { idle: three.lease, ..lossy(2, &three) },
            LineModel { crashes: 1, ..late.clone() },
            LineModel { freezes: 1, delays: 1, ..three.clone() },
            LineModel { freezes: 1, delays: 1, ..two.clone() },
            LineModel { forces: 1, drops: 1, ..late.clone() },
            LineModel { restarts: 1, delays: 1, ..three.clone() },
            LineModel { failovers: 1, delays: 1, ..three.clone() },
            LineModel { pollers: 0b100, crashes: 1, delays: 1, idle: 3, ..three.clone() },
            LineModel { overtakes: 1, drops: 1, delays: 1, ..three.clone() },
            LineModel { flushes: 2, drops: 1, delays: 1, ..three.clone() },
            LineModel { fenced: true, ..late },
            LineModel { fenced: true, failovers: 1, delays: 1, ..three.clone() },
            LineModel { denials: 1, drops: 1, delays: 1, idle: 4, ..three.clone() },
            LineModel { foreign: 2, ..three.clone() },
            LineModel { foreign: 1, freezes: 1, lease: 6, ..two },
            LineModel { foreign: 1, drops: 1, delays: 1, idle: 2, ..three.clone() },
            LineModel { steps: 2, clocks: CLOCKS, failovers: 1, idle: 3, ..three },
        ]
    }

    /// Returns what the counter of a server is worth that has lost its last commands: a new token is no less than the
    /// server's time, which is ahead of all tokens of before.
    fn floor(&self, last: &State, counter: u8) -> u8 {
        if self.design == Design::ClockBehind { counter } else { last.data.token }
    }

    /// Returns whether each process that waits subscribes to the lock's channel, and asks when it learns of a release
    /// there. In the code it always does so; in the model only if there is something to hear.
    fn hears_releases(&self) -> bool {
        self.foreign > 0 || self.steps > 0
    }
}

impl State {
    /// Returns a field without a trace. Nothing depends on a field's name, so such a field is as good as a new one.
    fn fresh_field(&self, model: &LineModel, at: usize) -> Option<Field> {
        let first = at as u8 * FIELDS;
        if model.design == Design::SharedField {
            return Some(first);
        }
        (first..first + FIELDS).find(|field| !self.has_trace(*field))
    }

    fn has_trace(&self, field: Field) -> bool {
        let names = |data: &Data| {
            data.lock.is_some_and(|lock| lock.field == field)
                || data.line.iter().any(|entry| entry.field == field)
        };
        let process = &self.processes[owner(field)];
        let is_this = |of: Option<&mut Field>| of.is_some_and(|of| *of == field);
        names(&self.data)
            || names(&self.replica)
            || process.commands.iter().chain(process.late.iter()).any(|mut command| is_this(command.field()))
            || process.answers.iter().any(|mut reply| is_this(reply.field()))
            || process.messages.iter().any(|mut message| is_this(message.field()))
            || process.leaving.contains(&field)
            || process.request.is_some_and(|request| request.field == field)
    }

    /// Returns whether the process can do nothing before a timer ends, and nothing is under way for it.
    fn is_quiet(&self, at: usize) -> bool {
        let process = &self.processes[at];
        if process.life != Life::Alive {
            return process.life == Life::Crashed || process.commands.is_empty();
        }
        let still = process.commands.is_empty() && process.answers.is_empty() && process.messages.is_empty();
        still && !self.connects(at) && !self.has_due(at)
    }

    fn has_due(&self, at: usize) -> bool {
        self.processes[at].request.is_some_and(|request| match request.phase {
            Phase::InLine => request.ask_in == 0,
            Phase::Held => request.valid == 0,
            Phase::Asking { .. } => false,
        })
    }

    fn connects(&self, at: usize) -> bool {
        let process = &self.processes[at];
        let waits = process.request.is_some_and(|request| request.phase == Phase::InLine);
        process.life == Life::Alive && !process.heard && !process.polls && waits
    }

    /// Returns whether the process that has the lock knows that, or can't.
    fn is_used(&self) -> bool {
        self.data.lock.is_some_and(|lock| {
            if lock.field == FOREIGN || lock.unknown {
                return true;
            }
            let process = &self.processes[owner(lock.field)];
            let holds = |request: Request| request.field == lock.field && request.phase == Phase::Held;
            process.request.is_some_and(holds)
        })
    }

    /// Returns whether a request waits while the lock is free, or held by a field that its process does not know of; or
    /// another program's client sleeps while the lock is free.
    fn idles(&self) -> bool {
        let waits = |process: &Process| {
            process.life == Life::Alive
                && process.request.is_some_and(|request| request.phase == Phase::InLine)
        };
        let sleeps = self.data.lock.is_none() && matches!(self.other, Other::Asleep(_));
        !self.is_used() && (sleeps || self.processes.iter().any(waits))
    }

    fn is_lock_of(&self, at: usize) -> bool {
        self.data.lock.is_some_and(|lock| lock.field != FOREIGN && owner(lock.field) == at)
    }

    fn tick(&mut self) {
        if let Some(lock) = &mut self.data.lock {
            lock.ttl -= 1;
            if lock.ttl == 0 {
                self.data.lock = None;
            }
        }
        if let Some(lock) = &mut self.replica.lock {
            lock.ttl -= 1;
            if lock.ttl == 0 {
                self.replica.lock = None;
            }
        }
        self.other = match self.other {
            Other::Asleep(ticks) if ticks > 1 => Other::Asleep(ticks - 1),
            Other::Asleep(_) => Other::Woken,
            other => other,
        };
        for process in &mut self.processes {
            if let Some(request) = &mut process.request {
                request.age = (request.age + 1).min(9);
                request.ask_in = request.ask_in.saturating_sub(1);
                request.valid = request.valid.saturating_sub(1);
            }
        }
    }

    /// Records that the server has lost this hold, so that it belongs to nobody.
    fn void(&mut self, field: Option<Held>) {
        let Some(lock) = field.filter(|lock| lock.field != FOREIGN) else { return };
        let request = self.processes[owner(lock.field)].request.as_mut();
        if let Some(request) = request.filter(|request| request.field == lock.field) {
            request.void = true;
        }
    }

    /// Models that all connections are lost, and all processes notice that.
    fn lose_all(&mut self, model: &LineModel) {
        self.order = Few::default();
        for entry in self.data.line.iter().filter(|entry| self.waits(entry.field)).collect::<Vec<_>>() {
            self.order.push(entry.field);
        }
        for at in 0..self.processes.len() {
            self.lose_connection(at, false);
            self.lose_command_connection(model, at);
            self.processes[at].late = Few::default();
        }
    }

    fn holders(&self) -> usize {
        let holds = |process: &&Process| {
            let request = process.request.filter(|_| process.life != Life::Crashed);
            request.is_some_and(|request| request.phase == Phase::Held && request.valid > 0 && !request.void)
        };
        let foreign = self.data.lock.is_some_and(|lock| lock.field == FOREIGN);
        self.processes.iter().filter(holds).count() + usize::from(foreign)
    }

    /// Returns whether all requests are done, and nothing is under way.
    fn is_over(&self) -> bool {
        (0..self.processes.len()).all(|at| {
            let process = &self.processes[at];
            process.life == Life::Alive
                && process.requests == 0
                && process.request.is_none()
                && process.leaving.is_empty()
                && self.is_quiet(at)
        })
    }

    /// Returns the representative of all states that differ only by the names of processes.
    fn canonical(mut self, model: &LineModel) -> State {
        if model.fenced {
            self.rank_tokens();
        }
        let orders = [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let used = if model.requests[2] == 0 { &orders[1..2] } else { &orders[..] };
        used.iter().map(|order| self.renamed(*order)).fold(self, State::min)
    }

    /// Returns the same state with the processes in this order.
    fn renamed(&self, order: [usize; 3]) -> State {
        let mut state = *self;
        state.processes = order.map(|at| self.processes[at]);
        let mut places = [0; 3];
        order.iter().enumerate().for_each(|(place, at)| places[*at] = place);
        let field = |field: &mut Field| {
            if *field != FOREIGN {
                *field = places[owner(*field)] as u8 * FIELDS + *field % FIELDS;
            }
        };
        for data in [&mut state.data, &mut state.replica] {
            data.lock.iter_mut().for_each(|lock| field(&mut lock.field));
            data.line.iter_mut().for_each(|entry| field(&mut entry.field));
        }
        state.order.iter_mut().for_each(field);
        for process in &mut state.processes {
            process.request.iter_mut().for_each(|request| field(&mut request.field));
            process.leaving.iter_mut().for_each(field);
            let commands = process.commands.iter_mut().chain(process.late.iter_mut());
            commands.filter_map(Command::field).for_each(field);
            process.answers.iter_mut().filter_map(Reply::field).for_each(field);
            process.messages.iter_mut().filter_map(Message::field).for_each(field);
        }
        state
    }

    /// Replaces the tokens by their ranks, since only their order matters.
    fn rank_tokens(&mut self) {
        let State { data, replica, processes, begun, .. } = self;
        let answers = processes.iter_mut().flat_map(|process| process.answers.iter_mut());
        let granted = answers.filter_map(|reply| match reply {
            Reply::Granted(_, token) => Some(token),
            _ => None,
        });
        let mut tokens: Vec<&mut u8> = granted.chain([&mut data.token, &mut replica.token, begun]).collect();
        let mut ranks: Vec<u8> = tokens.iter().map(|token| **token).collect();
        ranks.sort_unstable();
        ranks.dedup();
        for token in &mut tokens {
            **token = ranks.iter().take_while(|rank| **rank < **token).count() as u8;
        }
    }

    fn clock_steps(&mut self, clock: Clock) {
        let held = self.data.lock;
        match (&mut self.data.lock, clock) {
            (Some(lock), Clock::Ahead) if lock.ttl > 1 => lock.ttl -= 1,
            (Some(lock), Clock::Back) => lock.ttl += 1,
            (_, Clock::AheadOfLine) => {}
            (lock, _) => *lock = None,
        }
        self.set_back |= clock == Clock::Back;
        if matches!(clock, Clock::AheadOfLine | Clock::AheadOfAll) {
            (self.data.line, self.order) = (Few::default(), Few::default());
        }
        if matches!(clock, Clock::Ahead | Clock::AheadOfAll) {
            self.void(held);
        }
    }

    fn run_next(&mut self, model: &LineModel, at: usize, second: bool) {
        let Some(command) = self.processes[at].commands.take(usize::from(second)) else { return };
        let reply = self.run(model, at, command, false);
        self.processes[at].answers.push(reply);
    }
}

impl Model for LineModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut processes = [Process::default(); 3];
        for (at, process) in processes.iter_mut().enumerate() {
            process.requests = self.requests[at];
            (process.polls, process.mute) = (self.pollers & (1 << at) != 0, self.pollers & (1 << at) != 0);
            process.heard = !process.polls && self.heard;
        }
        let state = State {
            data: Data::default(),
            replica: Data::default(),
            processes,
            foreign: self.foreign,
            delays: self.delays,
            cuts: self.cuts,
            drops: self.drops,
            crashes: self.crashes,
            freezes: self.freezes,
            forces: self.forces,
            restarts: self.restarts,
            failovers: self.failovers,
            overtakes: self.overtakes,
            flushes: self.flushes,
            denials: self.denials,
            steps: self.steps,
            other: Other::Away,
            behind: 0,
            begun: 0,
            set_back: false,
            order: Few::default(),
            passed_over: false,
            old_token: false,
            silent: false,
            idle: 0,
            late_ran: false,
        };
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (at, process) in state.processes.iter().enumerate() {
            if !process.commands.is_empty() && process.life != Life::Crashed {
                steps.push(Step::Run(at, false));
                if state.overtakes > 0 && process.commands.len() > 1 {
                    steps.push(Step::Run(at, true));
                }
                if state.flushes > 0 {
                    steps.push(Step::Unknown(at));
                }
            }
            if !process.late.is_empty() {
                steps.push(Step::RunLate(at));
            }
            if process.believed || (process.life == Life::Crashed && process.heard) {
                steps.push(Step::Notice(at));
            }
            match process.life {
                Life::Crashed => continue,
                Life::Frozen => {
                    steps.push(Step::Thaw(at));
                    continue;
                }
                Life::Alive => {}
            }
            if !process.answers.is_empty() {
                steps.push(Step::Answer(at));
            }
            if !process.messages.is_empty() {
                steps.push(Step::Message(at));
            }
            if process.requests > 0 && process.request.is_none() && state.fresh_field(self, at).is_some() {
                steps.push(Step::Begin(at));
            }
            if let Some(request) = process.request {
                match request.phase {
                    Phase::InLine if request.ask_in == 0 => steps.push(Step::AskAgain(at)),
                    Phase::Held if request.valid == 0 => steps.push(Step::Lapse(at)),
                    Phase::Held => steps.push(Step::Release(at)),
                    _ => {}
                }
                if state.drops > 0 && request.phase != Phase::Held {
                    steps.push(Step::Drop(at));
                }
            }
            if state.connects(at) {
                steps.push(Step::Connect(at));
            }
            if state.denials > 0 && !process.polls && process.request.is_some() {
                steps.push(Step::Deny(at));
            }
            if process.request.is_some() || !process.leaving.is_empty() || process.is_asking() {
                if state.cuts > 0 && process.heard {
                    steps.push(Step::Cut(at, false));
                    if self.half_open {
                        steps.push(Step::Cut(at, true));
                    }
                }
                if state.cuts > 0 && process.is_asking() {
                    steps.push(Step::CutCommands(at));
                }
                if state.crashes > 0 {
                    steps.push(Step::Crash(at, false));
                    if self.half_open {
                        steps.push(Step::Crash(at, true));
                    }
                }
                if state.freezes > 0 {
                    steps.push(Step::Freeze(at));
                }
            }
        }
        let held = state.data.lock;
        if held.is_some_and(|lock| lock.field != FOREIGN) {
            if state.forces > 0 {
                steps.push(Step::Force);
            }
            if state.steps > 0 {
                steps.extend(self.clocks.iter().copied().map(Step::ClockStep));
            }
        }
        if held.is_some() || !state.data.line.is_empty() {
            if state.restarts > 0 {
                steps.push(Step::Restart);
            }
            if state.failovers > 0 {
                let lacks = state.replica != state.data;
                steps.push(Step::Failover(false));
                if lacks {
                    steps.push(Step::Failover(true));
                }
            }
        }
        let asks = !matches!(state.other, Other::Asleep(_));
        if state.foreign > 0 && asks && held.is_none_or(|lock| lock.field != FOREIGN) {
            steps.push(Step::OtherAsks);
        }
        if held.is_some_and(|lock| lock.field == FOREIGN) {
            steps.push(Step::OtherReleases);
        }
        if state.delays > 0 || (0..3).all(|at| state.is_quiet(at)) {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = *last;
        match step {
            Step::Begin(at) => {
                let field = state.fresh_field(self, at)?;
                state.begin(self, at, field);
            }
            Step::Run(at, second) => {
                state.overtakes -= u8::from(second);
                state.run_next(self, at, second);
            }
            Step::Answer(at) => {
                let reply = state.processes[at].answers.take(0)?;
                state.answered(self, at, reply);
            }
            Step::Message(at) => {
                let message = state.processes[at].messages.take(0)?;
                state.message(self, at, message);
            }
            Step::RunLate(at) => {
                let command = state.processes[at].late.take(0)?;
                state.run(self, at, command, true);
            }
            Step::Unknown(at) => {
                state.flushes -= 1;
                let command = state.processes[at].commands.take(0)?;
                state.processes[at].answers.push(Reply::Unknown(command));
            }
            Step::AskAgain(at) => state.ask(self, at, true),
            Step::Lapse(at) | Step::Release(at) => state.leave(self, at),
            Step::Drop(at) => {
                state.drops -= 1;
                state.leave(self, at);
            }
            Step::Cut(at, believed) => {
                state.cuts -= 1;
                state.lose_connection(at, believed);
            }
            Step::CutCommands(at) => {
                state.cuts -= 1;
                state.lose_command_connection(self, at);
            }
            Step::Connect(at) => state.connect(self, at),
            Step::Deny(at) => {
                state.denials -= 1;
                state.processes[at].polls = true;
                state.lose_connection(at, false);
            }
            Step::Notice(at) => {
                let process = &mut state.processes[at];
                process.believed = false;
                process.heard &= process.life != Life::Crashed;
            }
            Step::Crash(at, believed) => {
                state.crashes -= 1;
                state.crash(self, at, believed);
                state.mark_unknown(last.is_lock_of(at));
            }
            Step::Freeze(at) => {
                state.freezes -= 1;
                state.processes[at].life = Life::Frozen;
                state.mark_unknown(last.is_lock_of(at));
            }
            Step::Thaw(at) => state.processes[at].life = Life::Alive,
            Step::Force => {
                state.forces -= 1;
                state.void(last.data.lock);
                state.force(self);
            }
            Step::Restart => {
                state.restarts -= 1;
                state.void(last.data.lock);
                state.data = Data { token: self.floor(last, 0), ..Data::default() };
                state.lose_all(self);
            }
            Step::Failover(behind) => {
                state.failovers -= 1;
                if behind {
                    state.void(last.data.lock);
                    state.data = last.replica;
                    state.data.token = self.floor(last, last.replica.token);
                    state.mark_unknown(true);
                }
                state.lose_all(self);
            }
            Step::OtherReleases => state.other_releases(),
            Step::OtherAsks => state.other_asks(self),
            Step::ClockStep(clock) => {
                state.steps -= 1;
                state.clock_steps(clock);
            }
            Step::Tick => {
                if (0..3).all(|at| last.is_quiet(at)) {
                    state.idle = if last.idles() { last.idle + 1 } else { 0 };
                } else {
                    state.delays -= 1;
                }
                state.tick();
            }
        }
        if state.is_used() {
            state.idle = 0;
        }
        if self.failovers > 0 && state.data != last.data && !matches!(step, Step::Failover(_) | Step::Tick) {
            state.replica = last.data;
        }
        let full = state.processes.iter().any(Process::is_full);
        (state != *last && !full).then(|| state.canonical(self))
    }

    fn properties(&self) -> Vec<Property<LineModel>> {
        vec![
            Property::always("no two hold the lock", |_: &LineModel, state: &State| state.holders() <= 1),
            Property::always("nobody who is there is passed over", |_: &LineModel, state: &State| {
                !state.passed_over
            }),
            Property::always("no free lock idles beside a waiter", |model: &LineModel, state: &State| {
                state.idle <= model.idle
            }),
            Property::always("tokens grow", |_: &LineModel, state: &State| !state.old_token),
            Property::always("other programs' clients have their turns", |_: &LineModel, state: &State| {
                state.behind <= 1
            }),
            Property::always("nothing is left in the end", |_: &LineModel, state: &State| {
                let empty =
                    state.data.line.is_empty() && state.data.lock.is_none_or(|lock| lock.field == FOREIGN);
                empty || state.late_ran || !state.is_over()
            }),
        ]
    }
}

#[cfg(test)]
mod tests;
