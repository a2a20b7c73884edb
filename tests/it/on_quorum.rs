//! The contract over three stores in this process, asked as one, where time passes as soon as nothing else is to be done.

use crate::support::home::memory::QuorumHome as Home;

#[path = "contract/mod.rs"]
mod contract;
