//! Makes all decisions about the locks of one process, as plain state, without I/O. `now` is an argument.
//!
//! `table` has the entries; an `entry` is one lock name, with its holds (`hold`, `level`) and its requests (`queue`). The methods of
//! `LockEntry` are divided among files by what they are about:
//!
//! - a request: `admission` (its turn), `line` (its place on the server), `long_waits` (the log), `subscription` and `messages`
//!   (what wakes it);
//! - a level: `grant` (in), `outcome` (out: `leave`), `handoff` and `offer` (to the next request of this process);
//! - a command: `hold` begins it, `outcome` interprets its answer, `copies` and `orphans` record how the masters differ;
//! - time: `expiry` (ends, losses, what is due), `agenda` (when to look), `outage`, `backup_renewals` (for a blocked runtime);
//! - other processes: `claims` (a hold that moves to one of them), `seen` and `holder` (who has the lock).
//!
//! `effects` is the work that a visit leaves for when the table is unlocked.

mod admission;
mod agenda;
mod backup_renewals;
mod claims;
mod copies;
mod effects;
mod entry;
mod expiry;
mod grant;
mod handoff;
mod hold;
mod holder;
mod level;
mod line;
mod long_waits;
mod messages;
mod numbers;
mod offer;
mod orphans;
mod outage;
mod outcome;
mod queue;
mod seen;
mod subscription;
mod table;
mod timing;

pub(crate) use admission::{AcquireParams, Admission, Refusal};
pub(crate) use backup_renewals::BackupRenewal;
pub(crate) use claims::Obstacle;
pub(crate) use effects::LogEvent;
pub(crate) use entry::LockEntry;
pub(crate) use expiry::retry_pause;
pub(crate) use grant::{Grantee, NewLevel, NotHeld};
pub(crate) use hold::Hold;
pub(crate) use holder::Usage;
pub(crate) use level::{Grant, Level, Polled};
pub(crate) use numbers::Numbers;
pub(crate) use outcome::{LateAnswer, Meaning};
pub(crate) use queue::{Ambiguous, HEAD_PATIENCE, Waiter};
pub(crate) use seen::Owned;
pub(crate) use table::{LockTable, VisitEffects};
pub(crate) use timing::{Timing, WarnAfter};
