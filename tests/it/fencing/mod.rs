//! Fencing tokens on real servers: together with Redisson's, on a server that refuses, and over several servers that fail.

mod masters;
mod redisson;
mod server;

use nestlock::{Fenced, Mutex, Owner};

use crate::support::{SECOND, soon};

/// The counter of the lock `stock`.
const COUNTER: &str = "redisson_lock_token:{stock}";

/// Takes the lock, and returns the token of the grant.
async fn next(mutex: &Mutex<Fenced>) -> u64 {
    let guard = soon("the lock", mutex.lock().owner(&Owner::new())).await.unwrap();
    let given = guard.token();
    guard.release().await.unwrap();
    given
}
