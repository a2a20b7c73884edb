//! Finds the master through its sentinels.

mod reports;
mod sentinel;

pub(crate) use sentinel::Sentinels;
