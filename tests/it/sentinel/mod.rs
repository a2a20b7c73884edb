//! A master that sentinels monitor: the client connects to it, and follows failovers.

mod anew;
mod connect;
mod failover;
mod replicas;

use crate::support::SECOND;
