//! The outcome of one level of a hold, shared by its guard, which waits for it, and the lock table, which sets it.

use std::sync::OnceLock;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::error::Loss;

/// Set at most once, and final: a reply that arrives after the loss changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    loss: OnceLock<Loss>,
    /// The result of a release that another guard's command carries out.
    released: OnceLock<Result<(), Loss>>,
    changed: Notify,
}

impl Fate {
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss.get().copied()
    }

    /// Sets the loss. [`notify`](Fate::notify) must follow once no lock is held.
    pub(crate) fn seal(&self, loss: Loss) -> bool {
        self.loss.set(loss).is_ok()
    }

    pub(crate) fn released(&self) -> Option<Result<(), Loss>> {
        self.released.get().copied()
    }

    /// Sets the result of the release. [`notify`](Fate::notify) must follow once no lock is held.
    pub(crate) fn release(&self, outcome: Result<(), Loss>) {
        // The first answer counts: a second one is that of a repeated command.
        let _ = self.released.set(outcome);
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Ready at the first [`notify`](Fate::notify) after this call.
    pub(crate) fn notified(&self) -> Notified<'_> {
        self.changed.notified()
    }
}
