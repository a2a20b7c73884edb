//! Several locks at once: a request of its own for each name, and all of them polled in one task.

mod acquire;
mod guards;
mod mutexes;

pub use guards::Guards;
pub use mutexes::Mutexes;
