//! Where the master is, by its sentinels.

mod opinion;
mod sentinel;

pub(crate) use sentinel::Sentinels;
