//! What users call.

mod acquire;
mod attempts;
mod enroll;
mod guard;
mod locks;
mod mutex;
mod request;
mod run;
mod wish;

pub use guard::Guard;
pub use locks::Locks;
pub use mutex::Mutex;
pub use request::{Lock, TryLock};
pub use run::{Run, TryRun};
