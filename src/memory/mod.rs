//! A master in this process.

mod counters;
mod lines;
mod memory;
mod store;

pub use memory::Memory;
pub(crate) use store::PendingReply;
