//! The phase of a run, for all callers.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The phases of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Trouble,
    /// Nothing fails any more, and no caller begins or ends anything.
    Rest,
    /// All callers release what they hold.
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

    /// Waits for this time, but not beyond the trouble.
    pub(super) async fn pause(&self, time: Duration) {
        let _ = timeout(time, self.until(Phase::Rest)).await;
    }

    /// Waits for this time. If the trouble is over by then, waits until the rest is over too.
    pub(super) async fn stay(&self, time: Duration) {
        // A timer, even one that is over at once, would let others run between two commands of one caller.
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
