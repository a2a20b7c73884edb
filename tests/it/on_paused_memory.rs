//! The contract over a store in this process. Time advances as soon as all tasks are idle.

use crate::support::home::memory::PausedHome as Home;

#[path = "contract/mod.rs"]
mod contract;
