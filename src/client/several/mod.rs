//! Several locks at once: a request of its own for each name, and all of them polled in one task.

mod acquire;
mod fenced;
mod fenced_guards;
mod guards;
mod mutexes;
mod requests;
mod run;

pub use fenced::FencedMutexes;
pub use fenced_guards::{FencedGuards, Tokens};
pub use guards::Guards;
pub use mutexes::Mutexes;
pub use requests::{FencedLockAll, FencedTryLockAll, LockAll, TryLockAll};
pub use run::{FencedRunAll, FencedTryRunAll, RunAll, TryRunAll};
