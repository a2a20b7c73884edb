//! What users call.

mod acquire;
mod attempts;
mod connect;
mod fenced;
mod guard;
mod locks;
mod mutex;
mod options;
mod request;
mod run;

pub use fenced::{FencedGuard, FencedMutex};
pub use guard::Guard;
pub use locks::Locks;
pub use mutex::Mutex;
pub use request::{FencedLock, FencedTryLock, Lock, TryLock};
pub use run::{FencedRun, FencedTryRun, Run, TryRun};
