//! What is to be seen over a store in this process alone: leases of hours that pass at once, and to the millisecond.

mod checks;
mod drops;
mod leases;
mod losses;
mod order;
mod polls;
mod replies;
mod runtimes;
mod shared;
mod torture;
mod waits;
mod watchdog;

use std::time::Duration;

use nestlock::{Builder, Locks, Mutex};
use tokio::time::{Instant, sleep};

use crate::support::home::memory::Home;
use crate::support::{HOUR, SECOND, less_drift};

const MILLISECOND: Duration = Duration::from_millis(1);

/// The lease and the node timeout that a `Locks` has by default.
const LEASE: Duration = Duration::from_secs(30);
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// A `Locks` with all defaults.
async fn locks(home: &Home) -> Locks {
    options(home).connect().await.unwrap()
}

fn options(home: &Home) -> Builder {
    home.builder().node_timeout(NODE_TIMEOUT)
}

async fn stock(home: &Home) -> Mutex {
    locks(home).await.mutex("stock")
}

/// It is that time now. Timers go off at whole milliseconds, and what follows from one may take another.
#[track_caller]
fn assert_now(expected: Instant) {
    let now = Instant::now();
    assert!(now >= expected, "{:?} too early", expected - now);
    assert!(now <= expected + 3 * MILLISECOND, "{:?} too late", now - expected);
}

/// Time advances only when all tasks are idle: then all that can happen now has happened.
async fn rest() {
    sleep(MILLISECOND).await;
}
