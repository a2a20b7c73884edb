//! What users call.

mod acquire;
mod attempts;
mod connect;
mod guard;
mod locks;
mod mutex;
mod options;
mod request;
mod run;

pub use guard::Guard;
pub use locks::Locks;
pub use mutex::Mutex;
pub use request::{Lock, TryLock};
pub use run::{Run, TryRun};
