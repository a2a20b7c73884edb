//! The outcome of one level of a hold. Its guard waits for it, and the lock table sets it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::error::Loss;

/// The loss or the release of a level. It is set at most once and is final: a reply that arrives after the loss changes nothing.
#[derive(Debug, Default)]
pub(crate) struct LossSignal {
    /// The number of the loss, with the bit [`ANNOUNCED`] once it is counted; 0 while there is none. One byte, since every level has one.
    loss: AtomicU8,
    /// The result of a release that another guard's command carries out.
    released: OnceLock<Result<(), Loss>>,
    changed: Notify,
}

const ANNOUNCED: u8 = 0x80;

impl LossSignal {
    pub(crate) fn loss(&self) -> Option<Loss> {
        loss_of(self.loss.load(SeqCst))
    }

    /// Returns the loss once it is counted, so that code which waits for the loss and then reads the program's metrics finds it there.
    pub(crate) fn announced_loss(&self) -> Option<Loss> {
        let loss = self.loss.load(SeqCst);
        loss_of(loss).filter(|_| loss & ANNOUNCED != 0)
    }

    /// Sets the loss. [`notify`](LossSignal::notify) must follow once no lock is held.
    pub(crate) fn seal(&self, loss: Loss) -> bool {
        self.loss.compare_exchange(0, 1 + loss as u8, SeqCst, SeqCst).is_ok()
    }

    pub(crate) fn released(&self) -> Option<Result<(), Loss>> {
        self.released.get().copied()
    }

    /// Sets the result of the release. [`notify`](LossSignal::notify) must follow once no lock is held.
    pub(crate) fn release(&self, outcome: Result<(), Loss>) {
        // The first answer counts, since a second one answers a repeated command.
        let _ = self.released.set(outcome);
    }

    pub(crate) fn notify(&self) {
        if self.loss().is_some() {
            self.loss.fetch_or(ANNOUNCED, SeqCst);
        }
        self.changed.notify_waiters();
    }

    /// Returns a future that is ready at the first [`notify`](LossSignal::notify) after this call.
    pub(crate) fn notified(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

/// Returns the loss with this number, which counts the variants of [`Loss`] from 1.
fn loss_of(number: u8) -> Option<Loss> {
    [Loss::Expired, Loss::Gone, Loss::MaxHold, Loss::Suspended]
        .into_iter()
        .nth((number & !ANNOUNCED).checked_sub(1)?.into())
}

#[cfg(test)]
mod tests;
