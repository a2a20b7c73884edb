//! One process's view of its locks, and the background task that keeps them.

mod asking;
pub(crate) mod clock;
mod outage;
mod session;
mod wake;
mod watchdog;

pub(crate) use session::{Handle, Session, Stage, Watch};
pub(crate) use wake::{Bell, Doorbell};
pub(crate) use watchdog::watch;
