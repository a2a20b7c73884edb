//! Draws the program of a seed.

use std::time::Duration;

use crate::BareReentry;
use crate::sim::dice::{Dice, Key};
use crate::sim::program::{
    CallerPlan, End, Fault, FaultKind, Foreign, Locking, Neglect, Op, Program, Resuming, Setup, Step, Way,
};

/// The current edition of these draws. New editions draw more; with an earlier edition a seed draws what it drew then.
pub(super) const EDITION: u32 = 12;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

impl Program {
    pub(super) fn draw(seed: u64, edition: u32) -> Program {
        let mut dice = Dice::new(Key::new(seed).with(0));
        let mut setup = Setup::draw(&mut dice);
        setup.portable = edition >= 4 && Key::new(seed).with(8).one_in(2);
        if edition >= 6 {
            let mut dice = Dice::new(Key::new(seed).with(11));
            setup.handoff = dice.pick(&[0, 10, 200, 3_600_000]) * MILLISECOND;
        }
        if edition >= 9 && Key::new(seed).with(16).one_in(2) {
            // Only a single master keeps a line.
            (setup.fair, setup.masters) = (true, 1);
            setup.others = edition >= 10 && Key::new(seed).with(17).one_in(3);
            setup.polls = edition >= 12 && Key::new(seed).with(19).one_in(3);
        }
        let nests = Key::new(seed).with(17);
        if edition >= 10 {
            let bare = if nests.with(1).one_in(2) { BareReentry::Local } else { BareReentry::Asked };
            setup.reentry = (bare, nests.one_in(4));
        }
        if edition >= 11 && setup.lease < MINUTE && Key::new(seed).with(18).one_in(4) {
            // An extension makes a hold valid for a long time, during which nothing may confirm it for more than half a lease.
            setup.longest_lease = 20 * setup.lease;
        }
        let chains = Key::new(seed).with(15);
        let has_chains = edition >= 8 && chains.one_in(8);
        if has_chains {
            setup.has_long_chains();
        }
        let forces = dice.one_in(4);
        let closes = dice.one_in(12);
        let leaks = dice.one_in(6);
        let names = 1 + dice.pick(&[0, 0, 1, 2]);
        let lease = setup.lease.min(MINUTE);
        let longest_stay = dice.pick(&[20 * MILLISECOND, SECOND, 2 * lease]).min(setup.trouble);
        let writer = Writer { edition, setup: &setup, forces, closes, leaks, names, longest_stay };
        let callers = (0..1 + dice.roll(8)).map(|_| 0).collect::<Vec<_>>();
        let callers = callers.iter().enumerate().map(|(at, _)| {
            let mut dice = Dice::new(Key::new(seed).with(1).with(at as u64));
            writer.caller(at as u64 + 1, &mut dice)
        });
        let mut callers: Vec<CallerPlan> = callers.collect();
        let crowd = Key::new(seed).with(12);
        if edition >= 6 && crowd.one_in(2) {
            writer.crowd(&mut callers, crowd);
        }
        let hands_over = Key::new(seed).with(13);
        if edition >= 7 && hands_over.one_in(2) {
            writer.hand_over(&mut callers, hands_over);
        }
        let keeps = Key::new(seed).with(14);
        if edition >= 7 && keeps.one_in(3) {
            let mut dice = Dice::new(keeps);
            callers.iter_mut().for_each(|caller| writer.keep(&mut caller.ops, &mut dice));
        }
        if has_chains {
            writer.chain(&mut callers, chains);
        }
        let count = dice.pick(&[0, 0, 1, 2, 3, 5, 8]);
        let deadly = dice.one_in(8);
        let mute = dice.one_in(6);
        let faults = (0..count).map(|at| {
            let mut dice = Dice::new(Key::new(seed).with(2).with(at));
            writer.fault(at + 1, deadly, mute, &mut dice)
        });
        let faults: Vec<Fault> = faults.collect();
        let faults = if dice.one_in(6) { writer.burst(&mut dice) } else { faults };
        let aimed = Key::new(seed).with(9);
        let faults = if edition >= 5 && aimed.one_in(5) { writer.all_over(aimed) } else { faults };
        Program { seed, edition, over_streams: false, sealed: false, callers, faults, setup }
    }

    /// Makes the program run over streams. There a command may need two round trips within its node timeout.
    pub(super) fn over_streams(mut self) -> Program {
        let Setup { node_timeout, latency, .. } = self.setup;
        (self.over_streams, self.setup.portable) = (true, false);
        self.setup.latency = latency.min(node_timeout / 16);
        let mut dice = Dice::new(Key::new(self.seed).with(10));
        if dice.one_in(2) {
            self.disturb_connections(&mut dice);
        }
        self
    }

    /// Makes the program run over streams that behave like connections over TLS, but without a cipher.
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    pub(super) fn over_sealed_streams(self) -> Program {
        Program { sealed: true, ..self.over_streams() }
    }

    /// Replaces the faults by one kind of fault on all connections, again and again until the trouble is over.
    fn disturb_connections(&mut self, dice: &mut Dice) {
        let Setup { masters, processes, node_timeout, trouble, .. } = self.setup;
        let (kind, one_in) = (dice.roll(8), dice.pick(&[2, 5, 20]));
        let keeps = dice.one_in(2);
        if dice.one_in(2) {
            // A waiter that misses a message then waits for longer than any fault excuses.
            (self.setup.lease, self.setup.longest_lease) = (1800 * SECOND, 3600 * SECOND);
            self.setup.poll_interval = 3600 * SECOND;
        }
        let at = Duration::from_millis(dice.next().roll(trouble.as_millis() as u64 / 2));
        let lasts = trouble - at;
        let links = (0..processes).flat_map(|process| (0..masters).map(move |master| (process, master)));
        let mut some_time = |longest: Duration| {
            let begins = at + Duration::from_millis(dice.next().roll(lasts.as_millis() as u64));
            (begins, (MILLISECOND + dice.time(longest)).min(trouble - begins))
        };
        let kinds: Vec<_> = match kind {
            0 | 1 => links.map(|(p, m)| (at, lasts, FaultKind::LosesMessages(p, m, one_in.min(5)))).collect(),
            2 => links.map(|(p, m)| (at, lasts, FaultKind::LosesCommands(p, m, one_in))).collect(),
            3 => links.map(|(p, m)| (at, lasts, FaultKind::LosesAnswers(p, m, one_in))).collect(),
            4 => links.map(|(p, m)| (at, lasts, FaultKind::Forgets(p, m, one_in / 4 + 1))).collect(),
            5 => links.map(|(p, m)| (at, lasts, FaultKind::Reorders(p, m, node_timeout))).collect(),
            6 => (0..3)
                .flat_map(|_| links.clone().collect::<Vec<_>>())
                .map(|(p, m)| {
                    let (at, lasts) = some_time(2 * node_timeout);
                    (at, lasts, FaultKind::Cut(p, m))
                })
                .collect(),
            _ => (0..2 * masters)
                .map(|nth| {
                    let (at, _) = some_time(MILLISECOND);
                    (at, MILLISECOND, FaultKind::Restart(nth % masters, keeps))
                })
                .collect(),
        };
        let numbered = kinds.into_iter().zip(301..);
        self.faults = numbered.map(|((at, lasts, kind), id)| Fault { id, at, lasts, kind }).collect();
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
            portable: false,
            fair: false,
            others: false,
            polls: false,
            handoff: Duration::ZERO,
            reentry: (BareReentry::Asked, true),
            fenced: [dice.one_in(2), dice.one_in(2), false],
        }
    }

    /// Sets times with which the commands of a chain take longer than a lease.
    fn has_long_chains(&mut self) {
        (self.lease, self.longest_lease, self.latency) = (SECOND, 2 * SECOND, 40 * MILLISECOND);
        self.lateness = self.lateness.min(20 * MILLISECOND);
        self.trouble = self.trouble.max(10 * SECOND);
    }
}

/// Makes some of the guards end as claims, and some be checked.
fn hand_over_some(ops: &mut [Op], dice: &mut Dice) {
    for op in ops {
        if let Op::Lock(locking) = op {
            if !locking.fenced && locking.end != End::Leak && dice.one_in(2) {
                locking.end = End::HandOver;
            }
            if dice.one_in(4) {
                locking.inner.push(Op::Check);
            }
        }
        op.bodies_mut().into_iter().for_each(|body| hand_over_some(body, dice));
    }
}

/// Removes tokens: below a hold without a token no request may ask for one.
fn unfence(ops: &mut [Op]) {
    for op in ops {
        if let Op::Lock(locking) | Op::Run(locking) = op {
            locking.fenced = false;
        }
        op.bodies_mut().into_iter().for_each(|body| unfence(body));
    }
}

/// Writes the callers and faults of a program.
struct Writer<'a> {
    edition: u32,
    setup: &'a Setup,
    forces: bool,
    closes: bool,
    leaks: bool,
    names: usize,
    longest_stay: Duration,
}

/// The position of an operation that is to be drawn.
#[derive(Clone, Copy)]
struct Within<'a> {
    /// The names that the caller holds at this position, the outermost first.
    held: &'a [usize],
    /// Inside branches: how many of these names were held before the branches began.
    branch: Option<usize>,
    /// Whether the innermost hold has a guard.
    guarded: bool,
}

impl Within<'_> {
    /// Returns whether a wait for this name is safe. If everybody waits in the order of the names, nobody waits in a circle. A name that
    /// was held before the branches began may be waited for in any branch.
    fn is_in_order(self, name: usize) -> bool {
        let (before, since) = self.held.split_at(self.branch.unwrap_or_default());
        let follows = |held: &[usize]| held.iter().all(|outer| *outer < name);
        since.contains(&name) || follows(since) && (before.contains(&name) || follows(before))
    }
}

impl Writer<'_> {
    fn draws(&self, edition: u32) -> bool {
        edition <= self.edition
    }

    fn caller(&self, id: u64, dice: &mut Dice) -> CallerPlan {
        let process = dice.roll(self.setup.processes);
        let begins = dice.time(self.setup.trouble);
        let at = Within { held: &[], branch: None, guarded: false };
        let ops = (0..1 + dice.roll(4)).map(|_| self.op(at, dice)).collect();
        CallerPlan { id, process, begins, ops }
    }

    /// Adds many callers that want one lock at the same time, each for a moment. They are in one or two processes.
    fn crowd(&self, callers: &mut Vec<CallerPlan>, key: Key) {
        let mut dice = Dice::new(key);
        let begins = dice.time(self.setup.trouble);
        let shortest = dice.pick(&[Duration::ZERO, MILLISECOND, 20 * MILLISECOND]);
        for at in 0..2 + dice.roll(8) {
            let process = dice.roll(self.setup.processes.min(2));
            let within = Within { held: &[], branch: None, guarded: true };
            let ops = (0..1 + dice.roll(6)).map(|_| {
                let locking = self.locking_of(0, within, &mut dice);
                let stays = locking.stays.min(shortest);
                let locking = Locking { stays, ..locking };
                if dice.one_in(4) { Op::Run(locking) } else { Op::Lock(locking) }
            });
            let ops = ops.collect();
            callers.push(CallerPlan { id: 101 + at as u64, process, begins, ops });
        }
    }

    fn op(&self, at: Within, dice: &mut Dice) -> Op {
        if self.draws(1) {
            match dice.roll(16) {
                0 if at.held.len() < 2 && at.branch.is_none() => return self.branches(at, dice),
                1 => return Op::Neglected(self.neglect(dice), vec![self.op(at, dice)]),
                _ => {}
            }
        }
        let locks = at.held.len() < 3;
        match dice.roll(20) {
            0 | 1 => Op::Stay(dice.time(self.longest_stay)),
            2 if at.guarded => {
                Op::Extend(MILLISECOND * 10 + dice.time(self.setup.longest_lease - SECOND / 10))
            }
            3 if self.forces => Op::Force(dice.roll(self.names)),
            4 => Op::Look(dice.roll(self.names)),
            5 if locks => Op::Scope(self.inner(at, dice)),
            6 | 7 => {
                let longest = dice.pick(&[2 * self.setup.latency, self.setup.node_timeout, 5 * SECOND]);
                Op::GivenUp(dice.time(longest), vec![self.op(at, dice)])
            }
            8 if self.closes && dice.one_in(3) => Op::Close,
            9..=12 if locks => Op::Run(self.locking(Within { guarded: false, ..at }, dice)),
            _ if locks => Op::Lock(self.locking(Within { guarded: true, ..at }, dice)),
            _ => Op::Stay(dice.time(self.longest_stay)),
        }
    }

    fn inner(&self, at: Within, dice: &mut Dice) -> Vec<Op> {
        let most = if at.held.is_empty() { 2 } else { 3 };
        (0..dice.roll(most)).map(|_| self.op(at, dice)).collect()
    }

    /// Returns branches that all ask for one name in their first poll.
    fn branches(&self, at: Within, dice: &mut Dice) -> Op {
        let (order, kind, name) = (dice.next().bits(), dice.roll(3), self.name(at, dice));
        let at = Within { branch: Some(at.held.len()), guarded: kind > 0, ..at };
        let op = |dice: &mut Dice| {
            let locking = self.locking_of(name, at, dice);
            match kind {
                0 => Op::Run(locking),
                1 => Op::Lock(locking),
                _ => Op::Scope(vec![Op::Lock(locking)]),
            }
        };
        let branches = (0..2 + dice.roll(2)).map(|_| (0..1 + dice.roll(2)).map(|_| op(dice)).collect());
        Op::Branches(order, branches.collect())
    }

    fn neglect(&self, dice: &mut Dice) -> Neglect {
        let longest = dice.pick(&[60 * MILLISECOND, 4 * self.setup.node_timeout, 5 * SECOND]);
        Neglect { polls: 1 + dice.roll(4) as u32, pause: dice.time(longest), dropped: dice.one_in(2) }
    }

    fn name(&self, at: Within, dice: &mut Dice) -> usize {
        match at.held.last() {
            Some(last) if !dice.one_in(3) => *last,
            _ => dice.roll(self.names),
        }
    }

    fn locking(&self, at: Within, dice: &mut Dice) -> Locking {
        self.locking_of(self.name(at, dice), at, dice)
    }

    fn locking_of(&self, name: usize, at: Within, dice: &mut Dice) -> Locking {
        let way = match dice.roll(10) {
            0..=5 if at.is_in_order(name) => Way::Waits,
            0..=7 => Way::Within(dice.time(3 * SECOND)),
            _ => Way::Tries,
        };
        // This is longer than a grant takes.
        let least = 20 * MILLISECOND + 8 * self.setup.latency + 4 * self.setup.lateness;
        let fixed = dice.one_in(8).then(|| least + dice.time(self.setup.lease - least.min(self.setup.lease)));
        let max_hold = dice.one_in(12).then(|| 20 * MILLISECOND + dice.time(self.longest_stay));
        let end = match dice.roll(10) {
            0..=5 => End::Release,
            9 if self.leaks
                && at.guarded
                && at.branch.is_none()
                && (fixed.is_some() || max_hold.is_some()) =>
            {
                End::Leak
            }
            _ => End::Drop,
        };
        let fenced = self.setup.fenced[name] && (!at.held.contains(&name) || dice.one_in(2));
        let held: Vec<_> = at.held.iter().copied().chain([name]).collect();
        let inner = self.inner(Within { held: &held, ..at }, dice);
        let stays = dice.time(self.longest_stay);
        let watches = self.draws(3) && dice.one_in(3);
        let at_least = None;
        Locking { name, way, fenced, fixed, max_hold, at_least, inner, stays, watches, end }
    }

    /// Adds one or two callers that hold a lock and send many commands of that hold, one after another. Either the levels are nested and
    /// then released, or each one is released before the next one is taken.
    fn chain(&self, callers: &mut Vec<CallerPlan>, key: Key) {
        let mut dice = Dice::new(key);
        for at in 0..1 + dice.roll(2) {
            let (process, begins) = (dice.roll(self.setup.processes), dice.time(self.setup.trouble / 2));
            let (deep, short, runs) = (dice.one_in(2), dice.one_in(3), dice.pick(&[0, 1, 2]));
            let mut link = |inner: Vec<Op>| {
                // This is longer than a grant takes, and too short for a renewal of the hold.
                let fixed = (short && dice.one_in(2)).then_some(10 * self.setup.latency);
                let end = if dice.one_in(16) { End::Drop } else { End::Release };
                let locking = Locking {
                    name: 0,
                    way: Way::Waits,
                    fenced: false,
                    fixed,
                    max_hold: None,
                    at_least: None,
                    inner,
                    stays: Duration::ZERO,
                    watches: false,
                    end,
                };
                match runs {
                    0 => Op::Lock(locking),
                    1 if dice.one_in(2) => Op::Lock(locking),
                    _ => Op::Run(locking),
                }
            };
            let mut inner = Vec::new();
            for _ in 0..40 {
                inner =
                    if deep { vec![link(inner)] } else { inner.into_iter().chain([link(vec![])]).collect() };
            }
            let mut outer = link(inner);
            if let Op::Lock(locking) | Op::Run(locking) = &mut outer {
                (locking.fixed, locking.fenced) = (None, self.setup.fenced[0]);
            }
            callers.push(CallerPlan { id: 401 + at as u64, process, begins, ops: vec![outer] });
        }
    }

    /// Makes some of the callers hand their holds over, and adds callers that resume them.
    fn hand_over(&self, callers: &mut Vec<CallerPlan>, key: Key) {
        let mut dice = Dice::new(key);
        for caller in callers.iter_mut() {
            hand_over_some(&mut caller.ops, &mut dice);
        }
        for at in 0..1 + dice.roll(4) {
            let (process, begins) = (dice.roll(self.setup.processes), dice.time(self.setup.trouble));
            let ops = (0..1 + dice.roll(6)).map(|_| {
                let name = dice.roll(self.names);
                let within = Within { held: &[], branch: None, guarded: true };
                let locking = self.locking_of(name, within, &mut dice);
                let end = if dice.one_in(3) { End::HandOver } else { locking.end };
                let (fixed, max_hold) = (None, None);
                let end = if end == End::Leak { End::Release } else { end };
                let locking = Locking { end, fixed, max_hold, fenced: false, ..locking };
                let longest = dice.pick(&[2 * self.setup.latency, self.setup.node_timeout]);
                let how = Resuming {
                    waits: dice.time(self.setup.trouble),
                    copies: dice.one_in(3),
                    given_up: dice.one_in(4).then(|| dice.time(longest)),
                    neglect: dice.one_in(6).then(|| self.neglect(&mut dice)),
                };
                let mut op = Op::Resume(locking, how);
                op.bodies_mut().into_iter().for_each(|body| unfence(body));
                op
            });
            let ops = ops.collect();
            callers.push(CallerPlan { id: 201 + at as u64, process, begins, ops });
        }
    }

    /// Makes some of the locks be kept for a time.
    fn keep(&self, ops: &mut [Op], dice: &mut Dice) {
        for op in ops {
            if let Op::Lock(locking) | Op::Run(locking) = op
                && dice.one_in(2)
            {
                let ends = [locking.fixed, locking.max_hold, Some(self.setup.longest_lease)];
                let longest = ends.into_iter().flatten().min().unwrap_or_default().min(MINUTE);
                let time = 20 * MILLISECOND + dice.time(longest.saturating_sub(20 * MILLISECOND));
                locking.at_least = Some(time.min(longest));
            }
            op.bodies_mut().into_iter().for_each(|body| self.keep(body, dice));
        }
    }

    /// Returns several faults at once; a promise has to withstand their worst combination.
    fn burst(&self, dice: &mut Dice) -> Vec<Fault> {
        let Setup { masters, processes, node_timeout, lease, trouble, .. } = *self.setup;
        let at = Duration::from_millis(dice.next().roll(trouble.as_millis() as u64 / 2));
        let lasts = (dice.pick(&[1, 2, 3]) * lease / 2).clamp(4 * node_timeout, MINUTE).min(trouble - at);
        let process = dice.roll(processes);
        let amnesia = dice.one_in(2);
        let mut kinds = Vec::new();
        if amnesia {
            // All masters lose their data while a holder is frozen.
            kinds.push((at, lasts, FaultKind::Freeze(process)));
            let then = at + lasts / 4;
            kinds.extend((0..masters).map(|m| (then, MILLISECOND, FaultKind::Restart(m, dice.one_in(4)))));
        } else {
            // First answers are late, and then no answer arrives until the lease is over.
            let cut = lasts / 4;
            for m in 0..masters {
                kinds.push((at, cut, FaultKind::SlowAnswers(process, m, node_timeout * 4 / 5)));
                kinds.push((at + cut, lasts - cut, FaultKind::Cut(process, m)));
            }
        }
        let numbered = kinds.into_iter().zip(101..);
        numbered.map(|((at, lasts, kind), id)| Fault { id, at, lasts, kind }).collect()
    }

    /// Returns one kind of fault everywhere and for most of the time: its consequences are too rare to be met if it lasts only for moments.
    fn all_over(&self, key: Key) -> Vec<Fault> {
        let Setup { masters, processes, node_timeout, trouble, latency, .. } = *self.setup;
        let mut dice = Dice::new(key);
        let (kind, one_in) = (dice.roll(3), dice.pick(&[1, 2, 5]));
        let late = dice.pick(&[latency, node_timeout / 2]).max(MILLISECOND);
        let at = Duration::from_millis(dice.next().roll(trouble.as_millis() as u64 / 2));
        let lasts = trouble - at;
        let links = (0..processes).flat_map(|process| (0..masters).map(move |master| (process, master)));
        let kinds: Vec<_> = match kind {
            0 => links.map(|(p, m)| (at, lasts, FaultKind::RepeatsCommands(p, m, one_in, late))).collect(),
            1 => {
                links.map(|(p, m)| (at, lasts, FaultKind::SlowAnswers(p, m, node_timeout * 4 / 5))).collect()
            }
            // The masters are full only at times, since otherwise nothing would be granted.
            _ => (0..4).map(|nth| (at + lasts * nth / 4, lasts / 8, FaultKind::Full(None))).collect(),
        };
        let numbered = kinds.into_iter().zip(201..);
        numbered.map(|((at, lasts, kind), id)| Fault { id, at, lasts, kind }).collect()
    }

    fn one_or_all(&self, master: usize, dice: &mut Dice) -> Option<usize> {
        dice.one_in(2).then_some(master)
    }

    fn fault(&self, id: u64, deadly: bool, mute: bool, dice: &mut Dice) -> Fault {
        let Setup { masters, processes, node_timeout, lease, .. } = *self.setup;
        let at = Duration::from_millis(dice.next().roll(self.setup.trouble.as_millis() as u64));
        let longest = dice.pick(&[node_timeout, 5 * node_timeout, (lease * 3 / 2).min(MINUTE)]);
        let lasts = (10 * MILLISECOND + dice.time(longest)).min(self.setup.trouble - at);
        let (process, master) = (dice.roll(processes), dice.roll(masters));
        let one_in = dice.pick(&[1, 2, 5]);
        let slow = dice.pick(&[node_timeout / 2, 2 * node_timeout, 5 * node_timeout]);
        let sides = [20, 20, 24, 30, 35, 35, 35, 35, 35, 35, 35, 35, 35][self.edition as usize];
        let kind = match dice.roll(sides) {
            20..22 => {
                let late = dice.pick(&[self.setup.latency, slow, lease.min(MINUTE)]);
                FaultKind::RepeatsCommands(process, master, one_in, late)
            }
            22 | 23 => FaultKind::Reorders(process, master, slow),
            24 | 25 => FaultKind::Full(self.one_or_all(master, dice)),
            26 | 27 => {
                let what = dice.pick(&[Foreign::Text, Foreign::Lock, Foreign::Field, Foreign::Counter]);
                FaultKind::Foreign(self.one_or_all(master, dice), dice.roll(self.names), what)
            }
            28 | 29 => FaultKind::Deletes(self.one_or_all(master, dice), dice.roll(self.names)),
            30 | 31 => {
                let by = dice.time((2 * lease).min(MINUTE));
                FaultKind::Steps(master, by, dice.pick(&[Step::Forward, Step::Back]))
            }
            32 | 33 => FaultKind::Suspend(dice.time((2 * lease).min(MINUTE)), dice.one_in(2)),
            34.. => FaultKind::EndsRuntime(process),
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
