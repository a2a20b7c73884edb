//! All decisions about the locks of one process, as plain state: no I/O, no clock.

mod admission;
mod agenda;
mod claims;
mod entry;
mod expiry;
mod handed_over;
mod handoff;
mod hold;
mod holder;
mod level;
mod offer;
mod order;
mod orphans;
mod outcome;
mod queue;
mod seen;
mod subscription;
mod table;
mod terms;
mod turns;
mod waits;

pub(crate) use admission::{AcquireParams, Admission, NewLevel, NotHeld, Pause};
pub(crate) use claims::HandOver;
pub(crate) use entry::{LockEntry, LogEvent};
pub(crate) use expiry::retry_pause;
pub(crate) use handoff::Taken;
pub(crate) use hold::Hold;
pub(crate) use holder::Usage;
pub(crate) use level::Level;
pub(crate) use order::{Inversion, LockOrder, Named};
pub(crate) use outcome::{LateAnswer, Meaning, ReleaseStep};
pub(crate) use queue::{Ambiguous, HEAD_PATIENCE, Waiter};
pub(crate) use seen::Owned;
pub(crate) use table::{LockTable, VisitEffects};
pub(crate) use terms::Terms;
