//! The contract over three stores in this process, asked as one. Time advances as soon as all tasks are idle.

use crate::support::home::memory::QuorumHome as Home;

#[path = "contract/mod.rs"]
mod contract;
