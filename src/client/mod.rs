//! What users call.

mod acquire;
mod claim;
mod connect;
mod fenced;
mod fenced_guard;
mod guard;
mod guard_scope;
mod hold_times;
mod lock_status;
mod locks;
mod mutex;
mod request;
mod resume;
mod run;
mod several;

pub use claim::Claim;
#[cfg(all(test, not(shuttle)))]
pub(crate) use connect::connect_all;
pub use fenced::FencedMutex;
pub use fenced_guard::FencedGuard;
pub use guard::Guard;
pub use guard_scope::GuardScope;
pub use lock_status::LockStatus;
pub use locks::Locks;
pub use mutex::Mutex;
pub use request::{FencedLock, FencedTryLock, Lock, TryLock};
pub use run::{FencedRun, FencedTryRun, Run, TryRun};
pub use several::{FencedGuards, FencedMutexes, Guards, Mutexes, Tokens};
pub use several::{FencedLockAll, FencedRunAll, FencedTryLockAll, FencedTryRunAll};
pub use several::{LockAll, RunAll, TryLockAll, TryRunAll};
