use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use crate::sim::draw::EDITION;
use crate::sim::program::Program;
use crate::sim::shrink::shrink;
use crate::sim::world::run;

/// So many seeds run with each test of the crate.
const SEEDS: u64 = 300;

/// Seeds that have found a fault of the crate, and their editions.
const FOUND: [(u64, u32); 2] = [(49276, 0), (3490, 3)];

/// Those that have found one of the checker.
const MISTAKEN: [(u64, u32); 18] = [
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
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn two_runs_of_one_seed_are_the_same() {
    let mut traces = 0;
    for seed in 0..20 {
        let program = Program::draw(seed, EDITION);
        let (one, other) = (run(&program, true), run(&program, true));
        let differs = one.lines.iter().zip(&other.lines).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.lines.len(), other.lines.len(), "seed {seed}");
        traces += one.lines.len();
    }
    assert!(traces > 1000, "only {traces} lines");
}

/// What the runs of several seeds amount to.
#[derive(Default)]
struct Sums {
    grants: u64,
    commands: u64,
    simulated: Duration,
    /// The longest wait for a free lock without faults, and its seed.
    longest_wait: (Duration, u64),
}

impl Sums {
    /// A seed that breaks a promise is made smaller, and shown.
    fn run(&mut self, seed: u64, edition: u32) {
        let program = Program::draw(seed, edition);
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
        self.commands += outcome.commands;
        self.simulated += outcome.simulated;
        if program.faults.is_empty() {
            self.longest_wait = self.longest_wait.max((outcome.longest_wait, seed));
        }
    }

    fn and(self, other: Sums) -> Sums {
        Sums {
            grants: self.grants + other.grants,
            commands: self.commands + other.commands,
            simulated: self.simulated + other.simulated,
            longest_wait: self.longest_wait.max(other.longest_wait),
        }
    }
}

#[test]
fn promises_are_kept_whatever_happens() {
    let (first, seeds) = (number("SIM_FIRST").unwrap_or(0), number("SIM_SEEDS").unwrap_or(SEEDS));
    let edition = number("SIM_EDITION").map_or(EDITION, |edition| edition as u32);
    let fresh = (first..first + seeds).map(|seed| (seed, edition));
    let all = FOUND.into_iter().chain(MISTAKEN).chain(fresh);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let sums = thread::scope(|scope| {
        let each = (0..threads).map(|at| {
            let mine = all.clone().skip(at).step_by(threads);
            scope.spawn(move || {
                let mut sums = Sums::default();
                mine.for_each(|(seed, edition)| sums.run(seed, edition));
                sums
            })
        });
        let each: Vec<_> = each.collect();
        let joined = each.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.fold(Sums::default(), Sums::and)
    });
    if std::env::var("SIM_TRACE").is_ok() {
        let program = Program::draw(first, edition);
        println!("{program}\n{}", run(&program, true).lines.join("\n"));
    }
    let Sums { grants, commands, simulated, longest_wait: (longest, seed) } = sums;
    println!("{seeds} seeds, {grants} grants, {commands} commands, {} s simulated", simulated.as_secs());
    println!("the longest wait for a free lock without faults: {longest:?}, of seed {seed}");
}
