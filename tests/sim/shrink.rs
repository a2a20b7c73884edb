//! Makes a program that breaks a promise smaller: it removes all that is not needed for that, and makes times as short and as round as
//! possible.

use std::time::Duration;

use crate::sim::history::Promise;
use crate::sim::program::{Op, Program};
use crate::sim::world::run;

/// The largest number of runs that are tried.
const MOST: usize = 1500;

pub(super) fn shrink(program: &Program, promise: Promise) -> Program {
    let mut search = Search { best: program.clone(), promise, tries: 0 };
    loop {
        let before = (search.best.size(), search.best.total());
        search.go_through(variant);
        search.go_through(with_shorter_time);
        if (search.best.size(), search.best.total()) == before || search.tries > MOST {
            return search.best;
        }
    }
}

struct Search {
    best: Program,
    promise: Promise,
    tries: usize,
}

impl Search {
    /// Tries one variant after another, and keeps those that break the promise too.
    fn go_through(&mut self, variant: impl Fn(&Program, usize) -> Option<Program>) {
        let mut at = 0;
        while let Some(smaller) = variant(&self.best, at) {
            self.tries += 1;
            if self.tries > MOST {
                return;
            }
            let broken = run(&smaller, false).violation;
            if broken.is_some_and(|violation| violation.promise == self.promise) {
                self.best = smaller;
            } else {
                at += 1;
            }
        }
    }
}

/// Returns the `at`-th variant with a shorter time: zero, half of it, or whole tenths of a second.
fn with_shorter_time(program: &Program, at: usize) -> Option<Program> {
    let mut shorter = program.clone();
    let mut left = at;
    for time in shorter.times() {
        let millis = time.as_millis() as u64;
        let ways = [0, millis / 2, millis / 100 * 100].map(Duration::from_millis);
        let ways: Vec<Duration> = ways.into_iter().filter(|way| way < time).collect();
        if let Some(way) = ways.get(left) {
            *time = *way;
            return Some(shorter);
        }
        left -= ways.len();
    }
    None
}

/// Returns the `at`-th variant that is smaller.
fn variant(program: &Program, at: usize) -> Option<Program> {
    let mut smaller = program.clone();
    let (faults, callers) = (program.faults.len(), program.callers.len());
    if at < callers {
        smaller.callers.remove(at);
        return Some(smaller);
    }
    if at < callers + faults {
        smaller.faults.remove(at - callers);
        return Some(smaller);
    }
    if at == callers + faults {
        if program.setup.lateness.is_zero() && !program.setup.drifts {
            return variant(program, at + 1);
        }
        (smaller.setup.lateness, smaller.setup.drifts) = (Duration::ZERO, false);
        return Some(smaller);
    }
    let mut left = at - callers - faults - 1;
    for caller in &mut smaller.callers {
        if without(&mut caller.ops, &mut left) {
            return Some(smaller);
        }
    }
    None
}

/// Removes one operation, or replaces it by the operations inside it, or simplifies it.
fn without(ops: &mut Vec<Op>, left: &mut usize) -> bool {
    let mut at = 0;
    while at < ops.len() {
        if *left == 0 {
            ops.remove(at);
            return true;
        }
        *left -= 1;
        for body in ops[at].bodies().into_iter().filter(|body| !body.is_empty()).cloned().collect::<Vec<_>>()
        {
            if *left == 0 {
                ops.splice(at..=at, body);
                return true;
            }
            *left -= 1;
        }
        if let Op::Lock(locking) | Op::Run(locking) = &mut ops[at]
            && (locking.fixed.is_some() || locking.max_hold.is_some())
        {
            if *left == 0 {
                (locking.fixed, locking.max_hold) = (None, None);
                return true;
            }
            *left -= 1;
        }
        if ops[at].bodies_mut().into_iter().any(|body| without(body, left)) {
            return true;
        }
        at += 1;
    }
    false
}
