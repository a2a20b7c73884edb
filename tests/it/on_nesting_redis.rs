//! The contract over a real server, where bare requests nest without a command as those of a `run` do.

use crate::support::home::redis::NestingHome as Home;

#[path = "contract/mod.rs"]
mod contract;
