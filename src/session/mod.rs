//! One process's view of its locks, and the background task that keeps them.

mod ask;
pub(crate) mod clock;
mod events;
mod outage;
mod session;
#[cfg(test)]
pub(crate) mod testing;
mod watchdog;

pub(crate) use events::{EventRelay, MasterEvents};
pub(crate) use session::{Handle, Session, Stage};

#[cfg(test)]
use testing::gated;

/// What a task of a session is spawned as. A simulation puts it behind a gate, which polls it late or not at all.
#[cfg(not(test))]
fn gated<T>(task: T) -> T {
    task
}
