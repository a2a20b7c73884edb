//! Finds the master by its sentinels.

mod reports;
mod sentinel;

pub(crate) use sentinel::Sentinels;
