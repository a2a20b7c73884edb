//! How far a run has come, for all callers.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Trouble,
    /// All is well, and nobody begins or ends anything.
    Rest,
    /// Everybody lets go.
    Over,
}

#[derive(Default)]
pub(super) struct Phases {
    now: AtomicU8,
    changed: Notify,
}

impl Phases {
    pub(super) fn now(&self) -> Phase {
        match self.now.load(SeqCst) {
            0 => Phase::Trouble,
            1 => Phase::Rest,
            _ => Phase::Over,
        }
    }

    pub(super) fn begin(&self, phase: Phase) {
        self.now.store(phase as u8, SeqCst);
        self.changed.notify_waiters();
    }

    async fn until(&self, phase: Phase) {
        loop {
            let changed = self.changed.notified();
            if self.now() >= phase {
                return;
            }
            changed.await;
        }
    }

    /// In trouble that long at most.
    pub(super) async fn pause(&self, time: Duration) {
        let _ = timeout(time, self.until(Phase::Rest)).await;
    }

    /// In trouble that long; then until all is over.
    pub(super) async fn stay(&self, time: Duration) {
        // A timer, even one that is over at once, would give others a turn between two commands of one caller.
        if time.is_zero() && self.now() == Phase::Trouble {
            return;
        }
        tokio::select! {
            biased;
            () = self.until(Phase::Over) => {}
            () = sleep(time) => if self.now() == Phase::Rest {
                self.until(Phase::Over).await;
            },
        }
    }
}
