//! A master that sentinels monitor: the client connects to it, and follows failovers.

mod again;
mod connect;
mod failover;
mod replicas;

use crate::support::SECOND;
