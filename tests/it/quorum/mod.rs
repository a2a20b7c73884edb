//! Several masters, asked as one. Most tests use stores in this process in paused time, since a test can look into them directly.

mod checks;
mod claims;
mod ends;
mod grants;
mod holders;
mod kept;
mod network;
mod one_vote;
mod random;
mod repair;
mod resent;
mod restarts;
pub mod servers;

use std::time::Duration;

use nestlock::{Builder, Guard, Locks, Memory};

use crate::support::SECOND;

/// Returns this many separate masters.
fn stores(count: usize) -> Vec<Memory> {
    (0..count).map(|_| Memory::new()).collect()
}

fn builder(stores: &[Memory]) -> Builder {
    Locks::quorum(stores)
}

async fn locks(stores: &[Memory]) -> Locks {
    builder(stores).connect().await.unwrap()
}

/// Returns how often each master counts this hold; `None` if it does not have the hold.
fn counts(stores: &[Memory], guard: &Guard) -> Vec<Option<u32>> {
    let count = |store: &Memory| {
        let shown = format!("{store:?}");
        let (_, rest) = shown.split_once(&format!("field: \"{}\", count: ", guard.hold_id()))?;
        rest.split(',').next()?.parse().ok()
    };
    stores.iter().map(count).collect()
}

fn are_free(stores: &[Memory]) -> bool {
    stores.iter().all(is_free)
}

fn is_free(store: &Memory) -> bool {
    format!("{store:?}") == "Memory { locks: {} }"
}

/// Waits until `is_so` returns true, for at most 100 s of the test's time.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{what}: not reached after 100 s");
}
