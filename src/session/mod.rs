//! One process's view of its locks, and the background task that maintains them.

mod ask;
mod backup_thread;
pub(crate) mod clock;
mod events;
mod hints;
mod pulse;
mod session;
mod watchdog;

pub(crate) use ask::Sent;
pub(crate) use events::{EventRelay, MasterEvents};
pub(crate) use session::{Handle, Session, Stage, check_runtime};
