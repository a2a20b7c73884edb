//! Fencing tokens on real servers: together with Redisson's, on a server that refuses commands, and over several servers that fail.

mod masters;
mod redisson;
mod server;

use crate::support::{SECOND, next_token};

/// The counter of the lock `stock`.
const COUNTER: &str = "redisson_lock_token:{stock}";
