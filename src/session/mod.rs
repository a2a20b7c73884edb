//! One process's view of its locks, and the background task that maintains them.
//!
//! `session` visits the table, at a moment of the `clock`, and `ask` sends what the visits leave to send. `watchdog` is the background task;
//! `backup_thread` renews if `pulse` shows that no runtime runs. `events` and `hints` are what the masters report.

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
