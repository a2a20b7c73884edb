//! The contract over a store in this process, where time passes as soon as nothing else is to be done.

use crate::support::home::memory::PausedHome as Home;

#[path = "contract/mod.rs"]
mod contract;
