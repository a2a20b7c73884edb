//! A master that sentinels monitor: one is connected to it, and follows it through failovers.

mod anew;
mod connect;
mod failover;
mod replicas;

use crate::support::SECOND;
