//! The contract over a store in this process.

use crate::support::home::memory::Home;

#[path = "contract/mod.rs"]
mod contract;
