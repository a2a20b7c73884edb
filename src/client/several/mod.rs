//! Requests for several locks: each name has a request of its own, and all of them are polled in one task.

mod acquire;
mod guards;
mod mutexes;

pub use guards::Guards;
pub use mutexes::Mutexes;
