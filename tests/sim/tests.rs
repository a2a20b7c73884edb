use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use crate::BareReentry;
use crate::sim::draw::EDITION;
use crate::sim::program::{CallerPlan, End, Fault, FaultKind, Locking, NAMES, Op, Program, Setup, Way};
use crate::sim::shrink::shrink;
use crate::sim::world::{Outcome, run};

const SECOND: Duration = Duration::from_secs(1);

/// How many seeds run with each test of the crate.
const SEEDS: u64 = 300;

/// How many seeds run over streams.
const STREAM_SEEDS: u64 = 100;

/// Seeds that have found a fault of the crate, with their editions.
const FOUND: [(u64, u32); 7] = [
    (49276, 0),
    (3490, 3),
    (13022479, 7),
    (710000589, 10),
    (710001432, 10),
    (740011772, 10),
    (940015902, 11),
];

/// Seeds that have found a fault of the checker.
const MISTAKEN: [(u64, u32); 28] = [
    (21, 1),
    (404, 3),
    (409, 3),
    (1587, 3),
    (3299, 3),
    (3828, 3),
    (4950, 3),
    (26027, 4),
    (26590, 4),
    (121849, 4),
    (103318, 4),
    (104180, 4),
    (5031797, 4),
    (5039171, 4),
    (5049172, 4),
    (5055871, 4),
    (6001390, 4),
    (6009591, 4),
    (7000183, 7),
    (7005788, 7),
    (7051651, 7),
    (7055188, 7),
    (13045687, 7),
    (13062697, 7),
    (36036775, 7),
    (38089645, 7),
    (600029933, 10),
    (9500018576, 12),
];

/// Seeds that have found a fault of the crate over streams.
const FOUND_OVER_STREAMS: [(u64, u32); 2] = [(31001603, 7), (610004420, 10)];
const MISTAKEN_OVER_STREAMS: [(u64, u32); 6] =
    [(31000194, 7), (31002172, 7), (31004558, 7), (31009730, 7), (32001325, 7), (32006742, 7)];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs the program twice. Returns what happened. Over streams it tries again if the two runs differ: tasks that wait for one `watch` of
/// tokio are woken in an order that tokio draws at random, and connections use `watch`.
fn run_twice(program: &Program) -> Outcome {
    let tries = if program.over_streams { 5 } else { 1 };
    for left in (0..tries).rev() {
        let (one, other) = (run(program, true), run(program, true));
        if one.lines == other.lines {
            return one;
        }
        let differs = one.lines.iter().zip(&other.lines).find(|(one, other)| one != other);
        assert!(
            left > 0,
            "seed {}: {differs:?}, {} and {} lines",
            program.seed,
            one.lines.len(),
            other.lines.len()
        );
    }
    unreachable!("the last try returns or fails")
}

#[test]
fn two_runs_of_one_seed_are_the_same() {
    let traces: usize = (0..20).map(|seed| run_twice(&Program::draw(seed, EDITION)).lines.len()).sum();
    assert!(traces > 1000, "only {traces} lines");
}

/// Leaves out 11, since every second pair of its runs differs.
fn seeds_over_streams() -> impl Iterator<Item = u64> {
    (0..21).filter(|seed| *seed != 11)
}

#[test]
fn two_runs_of_one_seed_are_the_same_over_streams() {
    let traces: usize = seeds_over_streams()
        .map(|seed| run_twice(&Program::draw(seed, EDITION).over_streams()).lines.len())
        .sum();
    assert!(traces > 1000, "only {traces} lines");
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[test]
fn two_runs_of_one_seed_are_the_same_over_sealed_streams() {
    let traces: usize = seeds_over_streams()
        .map(|seed| run_twice(&Program::draw(seed, EDITION).over_sealed_streams()).lines.len())
        .sum();
    assert!(traces > 1000, "only {traces} lines");
}

/// Returns a program in which one process holds, re-enters and renews, and another one waits for the message of the release.
fn handed_over(masters: usize) -> Program {
    let locks = [
        (0, SECOND / 10, lock(0, 5 * SECOND, vec![lock(0, SECOND / 10, Vec::new())])),
        (1, SECOND / 2, lock(0, SECOND / 10, Vec::new())),
    ];
    over_streams(1, masters, locks, Vec::new())
}

fn lock(name: usize, stays: Duration, inner: Vec<Op>) -> Op {
    Op::Lock(locking(name, stays, inner))
}

fn locking(name: usize, stays: Duration, inner: Vec<Op>) -> Locking {
    Locking {
        name,
        way: Way::Waits,
        fenced: false,
        fixed: None,
        max_hold: None,
        at_least: None,
        inner,
        stays,
        watches: false,
        end: End::Release,
    }
}

/// Returns a program of two processes; each caller begins at its time and does one operation.
fn over_streams(
    seed: u64,
    masters: usize,
    ops: impl IntoIterator<Item = (usize, Duration, Op)>,
    faults: Vec<Fault>,
) -> Program {
    let setup = Setup {
        masters,
        processes: 2,
        lease: 3 * SECOND,
        longest_lease: 6 * SECOND,
        node_timeout: SECOND / 2,
        poll_interval: 3600 * SECOND,
        trouble: 20 * SECOND,
        latency: Duration::from_millis(4),
        lateness: Duration::ZERO,
        drifts: false,
        portable: false,
        fair: false,
        others: false,
        polls: false,
        handoff: Duration::ZERO,
        reentry: (BareReentry::Asked, true),
        fenced: [false; NAMES.len()],
    };
    let callers = ops.into_iter().zip(1..);
    let callers = callers
        .map(|((process, begins, op), id)| CallerPlan { id, process, begins, ops: vec![op] })
        .collect();
    Program { seed, edition: EDITION, over_streams: true, sealed: false, setup, callers, faults }
}

/// One channel is subscribed, and the server confirms another one late. In the meantime a ping is due, but it is not sent after a request
/// without an answer.
#[test]
fn a_late_confirmation_is_waited_for_without_a_poll_after_the_other() {
    for seed in 0..20 {
        let ops = [
            (0, SECOND / 10, lock(0, 8 * SECOND, Vec::new())),
            (0, SECOND / 10, lock(1, 8 * SECOND, Vec::new())),
            (1, SECOND / 2, lock(0, SECOND / 10, Vec::new())),
            (1, SECOND * 5 / 4, lock(1, SECOND / 10, Vec::new())),
        ];
        let (at, lasts) = (SECOND, 3 * SECOND);
        let late = Fault { id: 1, at, lasts, kind: FaultKind::SlowMessages(1, 0, 5 * SECOND) };
        let Outcome { violation, lines, .. } = run(&over_streams(seed, 1, ops, vec![late]), true);
        assert_eq!(violation, None, "seed {seed} {}", lines.join("\n"));
    }
}

#[test]
fn a_lock_is_handed_over_by_connections_that_are_streams() {
    for masters in [1, 3] {
        let program = handed_over(masters);
        let Outcome { violation, lines, grants, longest_wait, .. } = run_twice(&program);
        let shown = || lines.join("\n");
        assert_eq!(violation, None, "{}", shown());
        assert_eq!(grants, 3, "{}", shown());
        // The message woke the waiter, since the lease is longer. With several masters, one may send its message before the others are
        // free.
        let longest = Duration::from_millis(if masters == 1 { 100 } else { 1500 });
        assert!(longest_wait < longest, "{longest_wait:?} {}", shown());
        for part in ["Renew", "is subscribed", "message of", "not subscribed"] {
            let of_masters = (0..masters).all(|master| {
                lines.iter().any(|line| line.contains(part) && line.contains(&format!("-m{master}.")))
            });
            assert!(of_masters, "{part} {}", shown());
        }
    }
}

/// The connection for messages breaks, or falls silent, together with the message of a release. Two more releases follow: the waiters are
/// woken by messages over the next connection, and not by the end of a lease.
#[test]
fn a_subscription_that_is_lost_is_made_anew() {
    for seed in 0..20 {
        let ops = [
            (0, SECOND / 10, lock(0, 2 * SECOND, Vec::new())),
            (1, SECOND / 2, lock(0, 8 * SECOND, Vec::new())),
            (0, SECOND * 3 / 5, lock(0, 2 * SECOND, Vec::new())),
            (1, SECOND * 7 / 10, lock(0, SECOND / 10, Vec::new())),
        ];
        let (at, lasts) = (SECOND, SECOND * 3 / 2);
        let faults =
            (0..2).map(|p| Fault { id: p, at, lasts, kind: FaultKind::LosesMessages(p as usize, 0, 1) });
        let mut program = over_streams(seed, 1, ops, faults.collect());
        (program.setup.lease, program.setup.longest_lease) = (1800 * SECOND, 3600 * SECOND);
        let Outcome { violation, lines, longest_wait, grants, .. } = run(&program, true);
        assert_eq!(violation, None, "seed {seed} {}", lines.join("\n"));
        assert_eq!(grants, 4, "seed {seed} {}", lines.join("\n"));
        assert!(longest_wait < 5 * SECOND, "seed {seed} {longest_wait:?} {}", lines.join("\n"));
    }
}

/// Two holds are renewed in one pipeline, and the server knows neither script. One run of a script renews both, unless they have tokens.
#[test]
fn each_answer_is_for_its_own_call_where_scripts_are_forgotten() {
    for (masters, fenced) in [(1, false), (3, false), (1, true), (3, true)] {
        let lock = |name, stays, inner| Op::Lock(Locking { fenced, ..locking(name, stays, inner) });
        let ops = [
            (0, SECOND / 10, lock(0, 8 * SECOND, vec![lock(1, 8 * SECOND, Vec::new())])),
            (1, SECOND, lock(0, SECOND / 10, Vec::new())),
            (1, SECOND, lock(1, SECOND / 10, Vec::new())),
        ];
        let forgets = (0..masters).map(|m| {
            let (at, lasts) = (Duration::ZERO, 20 * SECOND);
            Fault { id: m as u64, at, lasts, kind: FaultKind::Forgets(0, m, 1) }
        });
        let mut program = over_streams(1, masters, ops, forgets.collect());
        program.setup.fenced = [fenced; NAMES.len()];
        let Outcome { violation, lines, grants, .. } = run(&program, true);
        assert_eq!(violation, None, "{}", lines.join("\n"));
        assert_eq!(grants, 4, "{}", lines.join("\n"));
    }
}

/// Many levels are released one after another, by guards or by the ends of runs. That takes longer than a lease, and leaves no gap between
/// two commands for the background.
#[test]
fn a_hold_is_renewed_while_levels_of_it_are_released_for_longer_than_a_lease() {
    for (kind, streams) in
        [(Op::Lock as fn(Locking) -> Op, false), (Op::Run, false), (Op::Lock, true), (Op::Run, true)]
    {
        let nested = (0..40).fold(Vec::new(), |inner, _| vec![kind(locking(0, Duration::ZERO, inner))]);
        let ops = nested.into_iter().map(|outer| (0, SECOND / 10, outer));
        let mut program = Program { over_streams: streams, ..over_streams(1, 1, ops, Vec::new()) };
        (program.setup.lease, program.setup.latency) = (SECOND, Duration::from_millis(60));
        let Outcome { violation, lines, grants, .. } = run(&program, true);
        assert_eq!(violation, None, "{}", lines.join("\n"));
        assert_eq!(grants, 40);
    }
}

/// The sums over the runs of several seeds.
#[derive(Default)]
struct Sums {
    grants: u64,
    passed: u64,
    commands: u64,
    simulated: Duration,
    /// The longest wait for a free lock without faults, and its seed. A lock that was kept, handed over, or leaked is not free, although
    /// nobody has it: those programs do not count.
    longest_wait: (Duration, u64),
}

impl Sums {
    /// Runs a program. If it breaks a promise, it is made smaller and shown.
    fn run(&mut self, program: Program) {
        let Program { seed, edition, .. } = program;
        let outcome = run(&program, false);
        if let (Some(violation), true) = (&outcome.violation, std::env::var("SIM_SURVEY").is_ok()) {
            println!("seed {seed} of edition {edition}: {violation}");
            return;
        }
        if let Some(violation) = outcome.violation {
            let small = shrink(&program, violation.promise);
            let lines = run(&small, true).lines.join("\n");
            panic!("seed {seed} of edition {edition}: {violation}\n{small}{lines}");
        }
        self.grants += outcome.grants;
        self.passed += outcome.passed;
        self.commands += outcome.commands;
        self.simulated += outcome.simulated;
        if program.faults.is_empty() && !program.leaves_locks() {
            self.longest_wait = self.longest_wait.max((outcome.longest_wait, seed));
        }
    }

    fn and(self, other: Sums) -> Sums {
        Sums {
            grants: self.grants + other.grants,
            passed: self.passed + other.passed,
            commands: self.commands + other.commands,
            simulated: self.simulated + other.simulated,
            longest_wait: self.longest_wait.max(other.longest_wait),
        }
    }
}

#[test]
fn promises_are_kept_whatever_happens() {
    let known = FOUND.into_iter().chain(MISTAKEN);
    keeps_promises("", known, SEEDS, Program::draw);
}

#[test]
fn promises_are_kept_over_streams() {
    let known = FOUND_OVER_STREAMS.into_iter().chain(MISTAKEN_OVER_STREAMS);
    keeps_promises(" over streams", known, STREAM_SEEDS, |seed, edition| {
        Program::draw(seed, edition).over_streams()
    });
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[test]
fn promises_are_kept_over_sealed_streams() {
    keeps_promises(" over sealed streams", [], STREAM_SEEDS, |seed, edition| {
        Program::draw(seed, edition).over_sealed_streams()
    });
}

/// Runs the programs of known seeds, and of fresh ones.
fn keeps_promises(
    over: &str,
    known: impl IntoIterator<Item = (u64, u32)>,
    seeds: u64,
    draw: fn(u64, u32) -> Program,
) {
    let (first, seeds) = (number("SIM_FIRST").unwrap_or(0), number("SIM_SEEDS").unwrap_or(seeds));
    let edition = number("SIM_EDITION").map_or(EDITION, |edition| edition as u32);
    let all: Vec<_> = known.into_iter().chain((first..first + seeds).map(|seed| (seed, edition))).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let sums = thread::scope(|scope| {
        let each = (0..threads).map(|at| {
            let mine = all.iter().skip(at).step_by(threads);
            scope.spawn(move || {
                let mut sums = Sums::default();
                mine.for_each(|(seed, edition)| sums.run(draw(*seed, *edition)));
                sums
            })
        });
        let each: Vec<_> = each.collect();
        let joined = each.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.fold(Sums::default(), Sums::and)
    });
    if std::env::var("SIM_TRACE").is_ok() {
        let program = draw(first, edition);
        println!("{program}\n{}", run(&program, true).lines.join("\n"));
    }
    let Sums { grants, passed, commands, simulated, longest_wait: (longest, seed) } = sums;
    println!(
        "{seeds} seeds{over}, {grants} grants, {passed} of them passed on, {commands} commands, {} s simulated",
        simulated.as_secs()
    );
    println!("the longest wait for a free lock without faults: {longest:?}, of seed {seed}");
}
