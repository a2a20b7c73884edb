//! A master in this process.

mod counters;
mod lines;
mod memory;
mod store;
mod sweep;

pub use memory::Memory;
pub(crate) use store::PendingReply;
