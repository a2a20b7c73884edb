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

/// A seed that breaks a promise is made smaller, and shown.
#[test]
fn promises_are_kept_whatever_happens() {
    let (first, seeds) = (number("SIM_FIRST").unwrap_or(0), number("SIM_SEEDS").unwrap_or(SEEDS));
    let (mut grants, mut commands, mut simulated) = (0, 0, Duration::ZERO);
    let mut longest_wait = (Duration::ZERO, 0);
    let edition = number("SIM_EDITION").map_or(EDITION, |edition| edition as u32);
    let fresh = (first..first + seeds).map(|seed| (seed, edition));
    for (seed, edition) in FOUND.into_iter().chain(MISTAKEN).chain(fresh) {
        let program = Program::draw(seed, edition);
        let outcome = run(&program, false);
        if let (Some(violation), true) = (&outcome.violation, std::env::var("SIM_SURVEY").is_ok()) {
            println!("seed {seed} of edition {edition}: {violation}");
            continue;
        }
        if let Some(violation) = outcome.violation {
            let small = shrink(&program, violation.promise);
            let lines = run(&small, true).lines.join("\n");
            panic!("seed {seed} of edition {edition}: {violation}\n{small}{lines}");
        }
        grants += outcome.grants;
        commands += outcome.commands;
        simulated += outcome.simulated;
        if program.faults.is_empty() {
            longest_wait = longest_wait.max((outcome.longest_wait, seed));
        }
    }
    if std::env::var("SIM_TRACE").is_ok() {
        let program = Program::draw(first, edition);
        println!("{program}\n{}", run(&program, true).lines.join("\n"));
    }
    println!("{seeds} seeds, {grants} grants, {commands} commands, {} s simulated", simulated.as_secs());
    let (longest, seed) = longest_wait;
    println!("the longest wait for a free lock without faults: {longest:?}, of seed {seed}");
}
