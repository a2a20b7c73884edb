//! The contract over a real server.

use crate::support::home::redis::Home;

#[path = "contract/mod.rs"]
mod contract;
