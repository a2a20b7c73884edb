//! The contract over a real server, with bare requests that nest without a command, as `run` does.

use crate::support::home::redis::NestingHome as Home;

#[path = "contract/mod.rs"]
mod contract;
