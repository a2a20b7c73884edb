//! The contract over a real server that keeps a line of the waiting processes.

use crate::support::home::redis::FairHome as Home;

#[path = "contract/mod.rs"]
mod contract;
