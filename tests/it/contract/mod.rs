//! What every backend must keep to. Nothing here asks for a fault of a server.

mod basics;
mod branches;
mod decisions;
mod heirs;
mod losses;
mod owners;
mod recursion;
mod runtimes;

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::yield_now;

/// Who is inside of what a lock guards, which may be one at a time.
#[derive(Default)]
pub(crate) struct Inside {
    now: AtomicUsize,
    ever: AtomicUsize,
}

impl Inside {
    /// Stays in for a while, and fails where somebody else is in too.
    pub(crate) async fn stay(&self) {
        assert_eq!(self.now.fetch_add(1, Ordering::SeqCst), 0, "two were inside at once");
        for _ in 0..5 {
            yield_now().await;
            assert_eq!(self.now.load(Ordering::SeqCst), 1, "two were inside at once");
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.ever.fetch_add(1, Ordering::SeqCst);
    }

    /// How often somebody was in.
    pub(crate) fn ever(&self) -> usize {
        self.ever.load(Ordering::SeqCst)
    }
}
