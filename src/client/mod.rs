//! What users call.
//!
//! - the way to a lock: `connect`, `locks`, `mutex`;
//! - a request: `request` is the future, with the options in `call`; `acquire` gets the grant, and `answer` makes of it what the future
//!   resolves to; `several` requests several locks;
//! - a hold: `guard` and `guard_scope`, `run` and `hold` (what its work sees), `kind` (with or without fencing tokens);
//! - other processes: `claim` and `resume` (a hold that moves to one of them); `lock_status` is about this one.

mod acquire;
mod answer;
mod call;
mod claim;
mod connect;
mod guard;
mod guard_scope;
mod hold;
mod kind;
mod lock_status;
mod locks;
mod mutex;
mod request;
mod resume;
mod run;
mod several;

pub use answer::Answer;
pub use claim::Claim;
#[cfg(all(test, not(shuttle)))]
pub(crate) use connect::connect_all;
pub use guard::Guard;
pub use hold::Hold;
pub use kind::{Fenced, Kind, Plain};
pub use lock_status::LockStatus;
pub use locks::Locks;
pub use mutex::Mutex;
pub use request::Request;
pub use run::Run;
pub use several::{Guards, Mutexes};
