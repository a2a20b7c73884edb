//! What can only be seen over a store in this process: leases of hours that pass at once, to the millisecond.

mod checks;
mod drops;
mod leases;
mod losses;
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

/// The crate's default lease and node timeout.
const LEASE: Duration = Duration::from_secs(30);
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns a `Locks` with the crate's default lease and node timeout.
async fn locks(home: &Home) -> Locks {
    options(home).connect().await.unwrap()
}

fn options(home: &Home) -> Builder {
    home.builder().node_timeout(NODE_TIMEOUT)
}

async fn stock(home: &Home) -> Mutex {
    locks(home).await.mutex("stock")
}

/// Checks that it is now this time. Timers fire at whole milliseconds, and each step that follows may take another one.
#[track_caller]
fn assert_now(expected: Instant) {
    let now = Instant::now();
    assert!(now >= expected, "{:?} too early", expected - now);
    assert!(now <= expected + 3 * MILLISECOND, "{:?} too late", now - expected);
}

/// Returns once everything that can happen now has happened: time advances only when all tasks are idle.
async fn rest() {
    sleep(MILLISECOND).await;
}
