//! The contract over a cluster.

use crate::support::home::redis::ClusterHome as Home;

#[path = "contract/mod.rs"]
mod contract;
