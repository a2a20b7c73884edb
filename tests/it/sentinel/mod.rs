//! A master that sentinels monitor: the crate connects to it, and follows it through failovers.

mod anew;
mod connect;
mod failover;
mod replicas;

use crate::support::SECOND;
