//! What happens in one run, as data: who asks for what, and what goes wrong. A part of it can be taken out, and the rest stays.

use std::fmt;
use std::time::Duration;

use crate::sim::dice::{Dice, Key};

pub(super) const NAMES: [&str; 3] = ["stock", "order", "price"];

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) seed: u64,
    pub(super) setup: Setup,
    pub(super) callers: Vec<CallerPlan>,
    pub(super) faults: Vec<Fault>,
}

/// What is the same for the whole run.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) masters: usize,
    pub(super) processes: usize,
    pub(super) lease: Duration,
    pub(super) longest_lease: Duration,
    pub(super) node_timeout: Duration,
    pub(super) poll_interval: Duration,
    /// Then all faults are over, and nobody begins anything new.
    pub(super) trouble: Duration,
    /// The longest way of a message in a good network.
    pub(super) latency: Duration,
    /// How late a task may be polled that was woken; zero: at once.
    pub(super) lateness: Duration,
    /// Clocks of masters run fast or slow, within what the drift allows.
    pub(super) drifts: bool,
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
    /// A guard, and what is done while it lives.
    Lock(Locking),
    /// The same by `run`.
    Run(Locking),
    Scope(Vec<Op>),
    /// Of the innermost guard.
    Extend(Duration),
    Force(usize),
    Look(usize),
    /// The operation's future is dropped after that long.
    GivenUp(Duration, Box<Op>),
    Close,
}

#[derive(Clone, Debug)]
pub(super) struct Locking {
    pub(super) name: usize,
    pub(super) way: Way,
    pub(super) fenced: bool,
    pub(super) fixed: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) inner: Vec<Op>,
    pub(super) stays: Duration,
    pub(super) end: End,
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
    /// The guard is kept beyond its caller.
    Leak,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// What it draws is named by this.
    pub(super) id: u64,
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    pub(super) kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// One in so many commands of one process to one master does not arrive.
    LosesCommands(usize, usize, u64),
    /// The command runs, and its answer does not arrive.
    LosesAnswers(usize, usize, u64),
    /// Commands take up to that long, and with a new connection they may be overtaken.
    SlowCommands(usize, usize, Duration),
    SlowAnswers(usize, usize, Duration),
    /// The master does not know the script of one in so many commands: it is sent again with its text.
    Forgets(usize, usize, u64),
    LosesMessages(usize, usize, u64),
    SlowMessages(usize, usize, Duration),
    /// Nothing arrives in either direction; at the end the connections are reset.
    Cut(usize, usize),
    /// The master runs nothing.
    Stall(usize),
    /// The master is restarted, with or without its data.
    Restart(usize, bool),
    /// No task of the process is polled.
    Freeze(usize),
    /// The process ends without a word.
    Crash(usize),
}

impl Fault {
    pub(super) fn is_active(&self, since_start: Duration) -> bool {
        self.at <= since_start && since_start < self.at + self.lasts
    }
}

impl Program {
    pub(super) fn draw(seed: u64) -> Program {
        let mut dice = Dice::new(Key::new(seed).with(0));
        let setup = Setup::draw(&mut dice);
        let forces = dice.one_in(4);
        let closes = dice.one_in(12);
        let leaks = dice.one_in(6);
        let names = 1 + dice.pick(&[0, 0, 1, 2]);
        let lease = setup.lease.min(MINUTE);
        let longest_stay = dice.pick(&[20 * MILLISECOND, SECOND, 2 * lease]).min(setup.trouble);
        let writer = Writer { setup: &setup, forces, closes, leaks, names, longest_stay };
        let callers = (0..1 + dice.roll(8)).map(|_| 0).collect::<Vec<_>>();
        let callers = callers.iter().enumerate().map(|(at, _)| {
            let mut dice = Dice::new(Key::new(seed).with(1).with(at as u64));
            writer.caller(at as u64 + 1, &mut dice)
        });
        let callers = callers.collect();
        let count = dice.pick(&[0, 0, 1, 2, 3, 5, 8]);
        let deadly = dice.one_in(8);
        let mute = dice.one_in(6);
        let faults = (0..count).map(|at| {
            let mut dice = Dice::new(Key::new(seed).with(2).with(at));
            writer.fault(at + 1, deadly, mute, &mut dice)
        });
        let faults: Vec<Fault> = faults.collect();
        let faults = if dice.one_in(6) { writer.burst(&mut dice) } else { faults };
        Program { seed, callers, faults, setup }
    }

    pub(super) fn has(&self, kind: impl Fn(&FaultKind) -> bool) -> bool {
        self.faults.iter().any(|fault| kind(&fault.kind))
    }

    pub(super) fn has_op(&self, is: impl Fn(&Op) -> bool + Copy) -> bool {
        fn any(ops: &[Op], is: impl Fn(&Op) -> bool + Copy) -> bool {
            ops.iter().any(|op| {
                is(op)
                    || match op {
                        Op::Lock(locking) | Op::Run(locking) => any(&locking.inner, is),
                        Op::Scope(inner) => any(inner, is),
                        Op::GivenUp(_, op) => any(std::slice::from_ref(&**op), is),
                        _ => false,
                    }
            })
        }
        self.callers.iter().any(|caller| any(&caller.ops, is))
    }

    /// How many operations and faults it has.
    pub(super) fn size(&self) -> usize {
        fn ops(of: &[Op]) -> usize {
            let size = |op: &Op| match op {
                Op::Lock(locking) | Op::Run(locking) => ops(&locking.inner),
                Op::Scope(inner) => ops(inner),
                Op::GivenUp(_, op) => ops(std::slice::from_ref(&**op)),
                _ => 0,
            };
            of.iter().map(|op| 1 + size(op)).sum()
        }
        self.faults.len() + self.callers.iter().map(|caller| 1 + ops(&caller.ops)).sum::<usize>()
    }
}

impl Setup {
    fn draw(dice: &mut Dice) -> Setup {
        let lease = dice.pick(&[SECOND, 3 * SECOND, 5 * SECOND, 30 * SECOND, 1800 * SECOND]);
        let node_timeout = dice.pick(&[100 * MILLISECOND, 500 * MILLISECOND, 500 * MILLISECOND, SECOND]);
        let lateness = match dice.roll(3) {
            0 => dice.pick(&[20 * MILLISECOND, 60 * MILLISECOND, 3 * node_timeout]),
            _ => Duration::ZERO,
        };
        Setup {
            masters: dice.pick(&[1, 1, 3, 3, 5]),
            processes: dice.pick(&[1, 2, 2, 3, 4]),
            lease,
            longest_lease: 2 * lease,
            node_timeout,
            poll_interval: dice.pick(&[5 * SECOND, 3600 * SECOND]),
            trouble: dice.pick(&[SECOND, 10 * SECOND, 40 * SECOND]),
            latency: dice.pick(&[0, 1, 4, 20]) * MILLISECOND,
            lateness: lateness.min(lease / 5),
            drifts: dice.one_in(3),
            fenced: [dice.one_in(2), dice.one_in(2), false],
        }
    }
}

/// Writes callers and faults.
struct Writer<'a> {
    setup: &'a Setup,
    forces: bool,
    closes: bool,
    leaks: bool,
    names: usize,
    longest_stay: Duration,
}

impl Writer<'_> {
    fn caller(&self, id: u64, dice: &mut Dice) -> CallerPlan {
        let process = dice.roll(self.setup.processes);
        let begins = dice.time(self.setup.trouble);
        let ops = (0..1 + dice.roll(4)).map(|_| self.op(&[], false, dice)).collect();
        CallerPlan { id, process, begins, ops }
    }

    /// `held`: the names that the caller holds there, the outermost first.
    fn op(&self, held: &[usize], guarded: bool, dice: &mut Dice) -> Op {
        match dice.roll(20) {
            0 | 1 => Op::Stay(dice.time(self.longest_stay)),
            2 if guarded => Op::Extend(MILLISECOND * 10 + dice.time(self.setup.longest_lease - SECOND / 10)),
            3 if self.forces => Op::Force(dice.roll(self.names)),
            4 => Op::Look(dice.roll(self.names)),
            5 if held.len() < 3 => Op::Scope(self.inner(held, guarded, dice)),
            6 | 7 => {
                let longest = dice.pick(&[2 * self.setup.latency, self.setup.node_timeout, 5 * SECOND]);
                Op::GivenUp(dice.time(longest), Box::new(self.op(held, guarded, dice)))
            }
            8 if self.closes && dice.one_in(3) => Op::Close,
            9..=12 if held.len() < 3 => Op::Run(self.locking(held, false, dice)),
            _ if held.len() < 3 => Op::Lock(self.locking(held, true, dice)),
            _ => Op::Stay(dice.time(self.longest_stay)),
        }
    }

    fn inner(&self, held: &[usize], guarded: bool, dice: &mut Dice) -> Vec<Op> {
        let most = if held.is_empty() { 2 } else { 3 };
        (0..dice.roll(most)).map(|_| self.op(held, guarded, dice)).collect()
    }

    fn locking(&self, held: &[usize], guarded: bool, dice: &mut Dice) -> Locking {
        let name = match held.last() {
            Some(last) if !dice.one_in(3) => *last,
            _ => dice.roll(self.names),
        };
        // In the order of names nobody waits in a circle; against it, not for ever.
        let ordered = held.contains(&name) || held.iter().all(|outer| *outer < name);
        let way = match dice.roll(10) {
            0..=5 if ordered => Way::Waits,
            0..=7 => Way::Within(dice.time(3 * SECOND)),
            _ => Way::Tries,
        };
        // Longer than a grant takes.
        let least = 20 * MILLISECOND + 8 * self.setup.latency + 4 * self.setup.lateness;
        let fixed = dice.one_in(8).then(|| least + dice.time(self.setup.lease - least.min(self.setup.lease)));
        let max_hold = dice.one_in(12).then(|| 20 * MILLISECOND + dice.time(self.longest_stay));
        let end = match dice.roll(10) {
            0..=5 => End::Release,
            9 if self.leaks && guarded && (fixed.is_some() || max_hold.is_some()) => End::Leak,
            _ => End::Drop,
        };
        let fenced = self.setup.fenced[name] && (!held.contains(&name) || dice.one_in(2));
        let held: Vec<_> = held.iter().copied().chain([name]).collect();
        let inner = self.inner(&held, guarded, dice);
        Locking { name, way, fenced, fixed, max_hold, inner, stays: dice.time(self.longest_stay), end }
    }

    /// Several faults at once, of which a promise has to stand the worst combination.
    fn burst(&self, dice: &mut Dice) -> Vec<Fault> {
        let Setup { masters, processes, node_timeout, lease, trouble, .. } = *self.setup;
        let at = Duration::from_millis(dice.next().roll(trouble.as_millis() as u64 / 2));
        let lasts = (dice.pick(&[1, 2, 3]) * lease / 2).clamp(4 * node_timeout, MINUTE).min(trouble - at);
        let process = dice.roll(processes);
        let amnesia = dice.one_in(2);
        let mut kinds = Vec::new();
        if amnesia {
            // All masters forget while a holder sees nothing.
            kinds.push((at, lasts, FaultKind::Freeze(process)));
            let then = at + lasts / 4;
            kinds.extend((0..masters).map(|m| (then, MILLISECOND, FaultKind::Restart(m, dice.one_in(4)))));
        } else {
            // Answers are late, and then none comes while the lease runs out.
            let cut = lasts / 4;
            for m in 0..masters {
                kinds.push((at, cut, FaultKind::SlowAnswers(process, m, node_timeout * 4 / 5)));
                kinds.push((at + cut, lasts - cut, FaultKind::Cut(process, m)));
            }
        }
        let numbered = kinds.into_iter().zip(101..);
        numbered.map(|((at, lasts, kind), id)| Fault { id, at, lasts, kind }).collect()
    }

    fn fault(&self, id: u64, deadly: bool, mute: bool, dice: &mut Dice) -> Fault {
        let Setup { masters, processes, node_timeout, lease, .. } = *self.setup;
        let at = Duration::from_millis(dice.next().roll(self.setup.trouble.as_millis() as u64));
        let longest = dice.pick(&[node_timeout, 5 * node_timeout, (lease * 3 / 2).min(MINUTE)]);
        let lasts = (10 * MILLISECOND + dice.time(longest)).min(self.setup.trouble - at);
        let (process, master) = (dice.roll(processes), dice.roll(masters));
        let one_in = dice.pick(&[1, 2, 5]);
        let slow = dice.pick(&[node_timeout / 2, 2 * node_timeout, 5 * node_timeout]);
        let kind = match dice.roll(20) {
            0..3 => FaultKind::LosesCommands(process, master, one_in),
            3..6 => FaultKind::LosesAnswers(process, master, one_in),
            6 | 7 => FaultKind::SlowCommands(process, master, slow),
            8 => FaultKind::SlowAnswers(process, master, slow),
            9 => FaultKind::Forgets(process, master, one_in),
            10 if mute => FaultKind::LosesMessages(process, master, one_in),
            11 => FaultKind::SlowMessages(process, master, slow),
            12 | 13 => FaultKind::Cut(process, master),
            14 | 15 => FaultKind::Stall(master),
            16 => FaultKind::Restart(master, dice.one_in(2)),
            17 if deadly => FaultKind::Crash(process),
            _ => FaultKind::Freeze(process),
        };
        Fault { id, at, lasts, kind }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:?}", self.seed, self.setup)?;
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
    let indent = "  ".repeat(depth);
    match op {
        Op::Lock(locking) | Op::Run(locking) => {
            let how = if matches!(op, Op::Lock(_)) { "lock" } else { "run" };
            let Locking { name, way, fenced, fixed, max_hold, stays, end, .. } = locking;
            let name = NAMES[*name];
            let fenced = if *fenced { " fenced" } else { "" };
            let fixed = fixed.map(|fixed| format!(" fixed {fixed:?}")).unwrap_or_default();
            let most = max_hold.map(|most| format!(" max_hold {most:?}")).unwrap_or_default();
            writeln!(f, "{indent}{how} {name} {way:?}{fenced}{fixed}{most}, stays {stays:?}, {end:?}")?;
            locking.inner.iter().try_for_each(|op| show(f, op, depth + 1))
        }
        Op::Scope(inner) => {
            writeln!(f, "{indent}scope")?;
            inner.iter().try_for_each(|op| show(f, op, depth + 1))
        }
        Op::GivenUp(after, op) => {
            writeln!(f, "{indent}given up after {after:?}")?;
            show(f, op, depth + 1)
        }
        op => writeln!(f, "{indent}{op:?}"),
    }
}
