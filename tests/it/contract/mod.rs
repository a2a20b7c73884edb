//! What the lock promises over every backend. Each test here runs over each kind of `Home`, and uses only what all of them can do.

mod at_least;
mod basics;
mod branches;
mod causes;
mod check;
mod claims;
mod close;
mod decisions;
mod dropped;
mod ends;
mod guards;
mod handoff;
mod heads;
mod heirs;
mod hold;
mod holder;
mod holds;
mod kinds;
mod late;
mod lazily;
mod leases;
mod line;
mod losses;
mod lost;
mod max_hold;
mod names;
mod nested;
mod options;
mod owners;
mod polls;
mod promises;
mod recursion;
mod runs;
mod runtimes;
mod several;
mod tokens;
mod trouble;
mod waits;
mod wakers;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nestlock::{Builder, Guard, Locks};
use tokio::task::yield_now;

use super::Home;
use crate::support::{self, HOUR, SECOND, less_drift};

/// A lease longer than any test waits: neither its end nor a renewal can be the cause of anything within the test.
const LONG: Duration = Duration::from_secs(600);

/// Returns a `Locks` whose leases outlive the test.
async fn long_lived(home: &Home) -> Locks {
    home.builder().lease(LONG).connect().await.unwrap()
}

/// Returns a `Locks` that sends a command for each nested level, so that the server counts it.
async fn counting(home: &Home) -> Locks {
    home.builder().lease(LONG).confirm_reentry(true).connect().await.unwrap()
}

/// Returns options with which no timer wakes a waiter.
fn without_timers(home: &Home) -> Builder {
    support::without_timers(home.builder())
}

/// Returns a guard of another process, on a lease that outlives every test.
async fn foreign_guard(home: &Home, name: &str) -> Guard {
    home.locks().await.mutex(name).lock().fixed_lease(HOUR).await.unwrap()
}

/// Leaves a hold whose process has crashed: nobody renews it, and only its lease ends it.
async fn crash(home: &Home, name: &str, lease: Duration) {
    let locks = home.builder().lease(lease).connect().await.unwrap();
    let guard = locks.mutex(name).lock().await.unwrap();
    locks.close().await.unwrap();
    std::mem::forget(guard);
}

/// Counts the tasks inside what a lock guards: at most one at a time is allowed.
#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    ever: AtomicUsize,
}

impl Inside {
    /// Stays inside for a while. Fails if another task is inside too.
    async fn stay(&self) {
        assert_eq!(self.now.fetch_add(1, Ordering::SeqCst), 0, "two were inside at once");
        for _ in 0..5 {
            yield_now().await;
            assert_eq!(self.now.load(Ordering::SeqCst), 1, "two were inside at once");
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.ever.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many times a task was inside.
    fn ever(&self) -> usize {
        self.ever.load(Ordering::SeqCst)
    }
}
