//! What happens in one run, as data: what callers ask for, and what goes wrong. A part can be removed without changing the rest.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::BareReentry;

pub(super) const NAMES: [&str; 3] = ["stock", "order", "price"];

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) seed: u64,
    pub(super) edition: u32,
    /// The run uses streams of bytes to a server instead of a wire.
    pub(super) over_streams: bool,
    /// What is written passes through the layer above a socket for TLS: the tasks that write use it, and a part may have to wait for room.
    pub(super) sealed: bool,
    pub(super) setup: Setup,
    pub(super) callers: Vec<CallerPlan>,
    pub(super) faults: Vec<Fault>,
}

/// What stays the same during the whole run.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) masters: usize,
    pub(super) processes: usize,
    pub(super) lease: Duration,
    pub(super) longest_lease: Duration,
    pub(super) node_timeout: Duration,
    pub(super) poll_interval: Duration,
    /// The time after which all faults are over, and no caller begins anything new.
    pub(super) trouble: Duration,
    /// The longest time that a message takes in a good network.
    pub(super) latency: Duration,
    /// How late a woken task may be polled; zero means at once.
    pub(super) lateness: Duration,
    /// Whether clocks of masters run fast or slow, within what the drift allows.
    pub(super) drifts: bool,
    /// Whether the background of a session moves to another runtime when its own ends.
    pub(super) portable: bool,
    /// Whether processes wait in a line that the master keeps.
    pub(super) fair: bool,
    /// Whether every second process does not know the line.
    pub(super) others: bool,
    /// Whether every third process may not subscribe, so that it polls.
    pub(super) polls: bool,
    /// For how long after its grant a hold passes on inside a process.
    pub(super) handoff: Duration,
    /// How bare requests re-enter, and whether each level is confirmed by a command.
    pub(super) reentry: (BareReentry, bool),
    /// The names whose outermost holds have fencing tokens.
    pub(super) fenced: [bool; NAMES.len()],
}

#[derive(Clone, Debug)]
pub(super) struct CallerPlan {
    pub(super) id: u64,
    pub(super) process: usize,
    pub(super) begins: Duration,
    pub(super) ops: Vec<Op>,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Stay(Duration),
    /// Takes a guard; the operations run while it lives.
    Lock(Locking),
    /// Calls `run`; the operations are its work.
    Run(Locking),
    Scope(Vec<Op>),
    /// Extends the innermost guard.
    Extend(Duration),
    /// Checks the innermost guard.
    Check,
    /// Resumes a claim, the hold of a caller that has handed it over; the guard is that of the resumed hold.
    Resume(Locking, Resuming),
    Force(usize),
    Look(usize),
    /// Runs these branches side by side in one task. The number draws the order in which they are polled.
    Branches(u64, Vec<Vec<Op>>),
    /// Drops the future of these operations after this time.
    GivenUp(Duration, Vec<Op>),
    Neglected(Neglect, Vec<Op>),
    Close,
}

#[derive(Clone, Debug)]
pub(super) struct Locking {
    pub(super) name: usize,
    pub(super) way: Way,
    pub(super) fenced: bool,
    pub(super) fixed: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) at_least: Option<Duration>,
    pub(super) inner: Vec<Op>,
    pub(super) stays: Duration,
    /// The stay ends as soon as the guard reports a loss.
    pub(super) watches: bool,
    pub(super) end: End,
}

impl Locking {
    /// Returns the earliest time at which the fixed lease may be over if it was asked for at `asked`.
    pub(super) fn may_end_from(&self, asked: Instant) -> Option<Instant> {
        // The drift of clocks is less than a fifth.
        self.fixed.map(|fixed| asked + fixed * 4 / 5)
    }
}

/// How a claim is resumed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resuming {
    /// How long it waits for a claim to appear.
    pub(super) waits: Duration,
    /// Whether others find the claim too.
    pub(super) copies: bool,
    /// The future is dropped after this time.
    pub(super) given_up: Option<Duration>,
    pub(super) neglect: Option<Neglect>,
}

/// How a future is polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neglect {
    /// How many polls it gets before it is not polled for the time of `pause`.
    pub(super) polls: u32,
    pub(super) pause: Duration,
    /// Whether it is dropped after that, instead of being polled again.
    pub(super) dropped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Waits,
    Within(Duration),
    Tries,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Release,
    Drop,
    /// The guard outlives its caller.
    Leak,
    /// The guard becomes a claim, which another caller may resume.
    HandOver,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// Names the draws of this fault.
    pub(super) id: u64,
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    pub(super) kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// One in this many commands of one process to one master does not arrive.
    LosesCommands(usize, usize, u64),
    /// The command runs, and its answer does not arrive.
    LosesAnswers(usize, usize, u64),
    /// Commands take up to this long. A command over a newer connection may overtake them.
    SlowCommands(usize, usize, Duration),
    SlowAnswers(usize, usize, Duration),
    /// One in this many commands arrives twice, the second time later by up to this time.
    RepeatsCommands(usize, usize, u64, Duration),
    /// Commands and answers take up to this long, and overtake one another.
    Reorders(usize, usize, Duration),
    /// For one in this many commands the master does not know the script, so the command is sent again with its text.
    Forgets(usize, usize, u64),
    LosesMessages(usize, usize, u64),
    SlowMessages(usize, usize, Duration),
    /// Nothing arrives in either direction. At the end the connections are reset.
    Cut(usize, usize),
    /// The master runs nothing.
    Stall(usize),
    /// The master restarts; the flag says whether it keeps its data.
    Restart(usize, bool),
    /// The master writes nothing, but still deletes and expires keys. `None` means all masters.
    Full(Option<usize>),
    /// Another program uses the key of a lock, or of its counter.
    Foreign(Option<usize>, usize, Foreign),
    /// An operator deletes the key of a lock.
    Deletes(Option<usize>, usize),
    /// The clock of a master is set forward or back.
    Steps(usize, Duration, Step),
    /// The machine of all processes is suspended. Its connections may break.
    Suspend(Duration, bool),
    /// The runtime ends on which the process has connected.
    EndsRuntime(usize),
    /// No task of the process is polled.
    Freeze(usize),
    /// The process ends without sending anything.
    Crash(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Forward,
    Back,
}

/// What another program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// A string without a TTL, instead of the lock.
    Text,
    /// A lock of its own with a TTL, instead of ours.
    Lock,
    /// A field beside ours, or alone if we have none.
    Field,
    /// Another value instead of the fencing counter.
    Counter,
}

impl Fault {
    /// Returns whether a command may run after one that was sent later.
    pub(super) fn is_late(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::SlowCommands(..) | FaultKind::RepeatsCommands(..) | FaultKind::Reorders(..)
        )
    }

    /// Returns whether a command may run after one that was sent later over a newer connection.
    pub(super) fn holds_bytes(&self) -> bool {
        matches!(self.kind, FaultKind::Cut(..) | FaultKind::Stall(_))
    }

    /// Returns whether this fault may lose a hold that the masters still have.
    pub(super) fn ends_holds(&self) -> bool {
        !matches!(
            self.kind,
            FaultKind::Full(_)
                | FaultKind::Foreign(..)
                | FaultKind::Deletes(..)
                | FaultKind::Forgets(..)
                | FaultKind::RepeatsCommands(..)
                | FaultKind::LosesMessages(..)
                | FaultKind::SlowMessages(..)
                | FaultKind::Steps(..)
        )
    }

    /// Returns whether this fault may make requests fail.
    pub(super) fn fails_requests(&self) -> bool {
        self.ends_holds()
            || matches!(self.kind, FaultKind::Full(_) | FaultKind::Foreign(_, _, Foreign::Counter))
    }

    pub(super) fn is_active(&self, since_start: Duration) -> bool {
        self.at <= since_start && since_start < self.at + self.lasts
    }
}

impl Program {
    pub(super) fn has(&self, kind: impl Fn(&FaultKind) -> bool) -> bool {
        self.faults.iter().any(|fault| kind(&fault.kind))
    }

    pub(super) fn has_op(&self, is: impl Fn(&Op) -> bool) -> bool {
        let mut found = false;
        self.each_op(&mut |op| found |= is(op));
        found
    }

    /// Returns the number of callers, operations and faults.
    pub(super) fn size(&self) -> usize {
        let mut ops = 0;
        self.each_op(&mut |_| ops += 1);
        self.faults.len() + self.callers.len() + ops
    }

    /// Returns all times of the program: when something happens, and for how long.
    pub(super) fn times(&mut self) -> Vec<&mut Duration> {
        fn of_ops<'a>(ops: &'a mut [Op], times: &mut Vec<&'a mut Duration>) {
            for op in ops {
                match op {
                    Op::Stay(time) => times.push(time),
                    Op::Lock(locking) | Op::Run(locking) => {
                        times.push(&mut locking.stays);
                        of_ops(&mut locking.inner, times);
                    }
                    Op::Resume(locking, how) => {
                        times.extend([&mut locking.stays, &mut how.waits]);
                        of_ops(&mut locking.inner, times);
                    }
                    Op::GivenUp(time, body) => {
                        times.push(time);
                        of_ops(body, times);
                    }
                    Op::Neglected(how, body) => {
                        times.push(&mut how.pause);
                        of_ops(body, times);
                    }
                    op => op.bodies_mut().into_iter().for_each(|body| of_ops(body, times)),
                }
            }
        }
        let mut times = vec![&mut self.setup.latency];
        for fault in &mut self.faults {
            times.extend([&mut fault.at, &mut fault.lasts]);
        }
        for caller in &mut self.callers {
            times.push(&mut caller.begins);
            of_ops(&mut caller.ops, &mut times);
        }
        times
    }

    pub(super) fn total(&self) -> Duration {
        self.clone().times().into_iter().map(|time| *time).sum()
    }

    pub(super) fn each_op(&self, look: &mut impl FnMut(&Op)) {
        fn each(ops: &[Op], look: &mut impl FnMut(&Op)) {
            for op in ops {
                look(op);
                op.bodies().into_iter().for_each(|body| each(body, look));
            }
        }
        self.callers.iter().for_each(|caller| each(&caller.ops, look));
    }

    /// Returns how many names its callers lock, at least one.
    pub(super) fn count_of_names(&self) -> u64 {
        let mut names = BTreeSet::new();
        self.each_op(&mut |op| {
            if let Op::Lock(of) | Op::Run(of) | Op::Resume(of, _) = op {
                names.insert(of.name);
            }
        });
        names.len().max(1) as u64
    }
}

impl Op {
    /// Returns the lists of operations inside this one.
    pub(super) fn bodies(&self) -> Vec<&Vec<Op>> {
        match self {
            Op::Lock(locking) | Op::Run(locking) | Op::Resume(locking, _) => vec![&locking.inner],
            Op::Scope(body) | Op::GivenUp(_, body) | Op::Neglected(_, body) => vec![body],
            Op::Branches(_, branches) => branches.iter().collect(),
            Op::Stay(_) | Op::Extend(_) | Op::Check | Op::Force(_) | Op::Look(_) | Op::Close => Vec::new(),
        }
    }

    pub(super) fn bodies_mut(&mut self) -> Vec<&mut Vec<Op>> {
        match self {
            Op::Lock(locking) | Op::Run(locking) | Op::Resume(locking, _) => vec![&mut locking.inner],
            Op::Scope(body) | Op::GivenUp(_, body) | Op::Neglected(_, body) => vec![body],
            Op::Branches(_, branches) => branches.iter_mut().collect(),
            Op::Stay(_) | Op::Extend(_) | Op::Check | Op::Force(_) | Op::Look(_) | Op::Close => Vec::new(),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = match (self.over_streams, self.sealed) {
            (_, true) => " over sealed streams",
            (true, false) => " over streams",
            (false, false) => "",
        };
        writeln!(f, "seed {} of edition {}{over}: {:?}", self.seed, self.edition, self.setup)?;
        for fault in &self.faults {
            writeln!(f, "  fault at {:?} for {:?}: {:?}", fault.at, fault.lasts, fault.kind)?;
        }
        for caller in &self.callers {
            writeln!(f, "  caller {} in process {} at {:?}", caller.id, caller.process, caller.begins)?;
            for op in &caller.ops {
                show(f, op, 2)?;
            }
        }
        Ok(())
    }
}

fn show(f: &mut fmt::Formatter<'_>, op: &Op, depth: usize) -> fmt::Result {
    write!(f, "{}", "  ".repeat(depth))?;
    match op {
        Op::Lock(locking) | Op::Run(locking) => {
            let how = if matches!(op, Op::Lock(_)) { "lock" } else { "run" };
            let Locking { name, way, fenced, fixed, max_hold, at_least, stays, end, .. } = locking;
            let name = NAMES[*name];
            let fenced = if *fenced { " fenced" } else { "" };
            let fixed = fixed.map(|fixed| format!(" fixed {fixed:?}")).unwrap_or_default();
            let most = max_hold.map(|most| format!(" max_hold {most:?}")).unwrap_or_default();
            let least = at_least.map(|least| format!(" at_least {least:?}")).unwrap_or_default();
            writeln!(f, "{how} {name} {way:?}{fenced}{fixed}{most}{least}, stays {stays:?}, {end:?}")?;
        }
        Op::Resume(Locking { name, stays, end, .. }, how) => {
            writeln!(f, "resume {} {how:?}, stays {stays:?}, {end:?}", NAMES[*name])?;
        }
        Op::Scope(_) => writeln!(f, "scope")?,
        Op::GivenUp(after, _) => writeln!(f, "given up after {after:?}")?,
        Op::Neglected(how, _) => writeln!(f, "{how:?}")?,
        Op::Branches(_, branches) => {
            writeln!(f, "branches")?;
            for branch in branches {
                writeln!(f, "{}a branch", "  ".repeat(depth + 1))?;
                branch.iter().try_for_each(|op| show(f, op, depth + 2))?;
            }
            return Ok(());
        }
        op => writeln!(f, "{op:?}")?,
    }
    op.bodies().into_iter().flatten().try_for_each(|op| show(f, op, depth + 1))
}
