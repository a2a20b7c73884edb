//! `Simulation`: replaces the runtime's scheduling, the time of day, and chance.

use crate::base::Task;
use std::cell::Cell;

/// The replacements for all tasks of the crate that are polled on this thread.
#[derive(Clone, Copy)]
pub(crate) struct Simulation {
    pub(crate) gate: fn(Task) -> Task,
    pub(crate) time_of_day: fn() -> u64,
    pub(crate) chance: fn() -> u64,
}

thread_local! {
    static CURRENT: Cell<Option<Simulation>> = const { Cell::new(None) };
}

/// Makes this thread simulate from now on; `None` ends the simulation.
#[cfg(not(shuttle))]
pub(crate) fn simulate(simulation: Option<Simulation>) {
    CURRENT.set(simulation);
}

pub(crate) fn gated(task: Task) -> Task {
    match CURRENT.get() {
        Some(simulation) => (simulation.gate)(task),
        None => task,
    }
}

pub(crate) fn time_of_day() -> Option<u64> {
    CURRENT.get().map(|simulation| (simulation.time_of_day)())
}

/// Returns a number that the simulation draws in place of a random one.
pub(crate) fn chance() -> Option<u64> {
    CURRENT.get().map(|simulation| (simulation.chance)())
}
