//! A program that breaks a promise, with all taken out that it breaks it without.

use std::time::Duration;

use crate::sim::history::Promise;
use crate::sim::program::{Op, Program};
use crate::sim::world::run;

/// So many runs are tried at most.
const MOST: usize = 1500;

pub(super) fn shrink(program: &Program, promise: Promise) -> Program {
    let mut best = program.clone();
    let mut tries = 0;
    loop {
        let before = best.size();
        let mut at = 0;
        while let Some(smaller) = variant(&best, at) {
            tries += 1;
            if tries > MOST {
                return best;
            }
            let broken = run(&smaller, false).violation.is_some_and(|violation| violation.promise == promise);
            if broken {
                best = smaller;
            } else {
                at += 1;
            }
        }
        if best.size() == before {
            return best;
        }
    }
}

/// The `at`-th way to make the program smaller.
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

/// Takes one operation out, or puts what is in it in its place, or makes it plainer.
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
