//! Tracks whether the cluster is used.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether calls were sent since the last query of the topology.
#[derive(Default)]
pub(super) struct Usage {
    used: AtomicBool,
    begun: Notify,
}

impl Usage {
    /// Called when a call is sent.
    pub(super) fn record(&self) {
        if !self.used.load(Ordering::Relaxed) && !self.used.swap(true, Ordering::AcqRel) {
            self.begun.notify_one();
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Waits for a call that ends a time without any. It may also return once for a call before the last [`reset`](Usage::reset), so
    /// its caller has to look again.
    pub(super) async fn begun(&self) {
        self.begun.notified().await;
    }

    pub(super) fn reset(&self) {
        self.used.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
