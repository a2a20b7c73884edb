//! What became of one level of a hold: shared by its guard, which waits for it, and the table, which resolves it.

use std::sync::OnceLock;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::error::Loss;

/// Resolved at most once, and final: a reply that comes after the loss changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    loss: OnceLock<Loss>,
    /// What became of a release that somebody else's command carries out.
    released: OnceLock<Result<(), Loss>>,
    changed: Notify,
}

impl Fate {
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss.get().copied()
    }

    /// Sets the loss. [`resolve`](Fate::resolve) must follow once no lock is held.
    pub(crate) fn seal(&self, loss: Loss) -> bool {
        self.loss.set(loss).is_ok()
    }

    pub(crate) fn released(&self) -> Option<Result<(), Loss>> {
        self.released.get().copied()
    }

    /// Sets what became of the release. [`resolve`](Fate::resolve) must follow once no lock is held.
    pub(crate) fn release(&self, outcome: Result<(), Loss>) {
        // Set once: a second answer comes from a repeat.
        let _ = self.released.set(outcome);
    }

    pub(crate) fn resolve(&self) {
        self.changed.notify_waiters();
    }

    /// Ready when it is resolved after this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}
