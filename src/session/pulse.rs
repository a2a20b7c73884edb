//! `Pulse`: shows whether the runtime of a session runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tokio::time::Instant;

/// State that the session shares with the backup thread.
#[derive(Debug)]
pub(super) struct Pulse {
    /// Whether the thread looks at this session, or never has to. Changes to `false` only while the table is locked.
    pub(super) attended: AtomicBool,
    /// How often the watchdog has looked at what is due.
    pub(super) beats: AtomicU64,
    /// Whether the runtime's clock is paused; deadlines by such a clock mean nothing on the thread.
    pub(super) paused: AtomicBool,
}

impl Pulse {
    pub(super) fn new(wanted: bool) -> Pulse {
        Pulse { attended: (!wanted).into(), beats: AtomicU64::new(0), paused: false.into() }
    }

    /// Returns whether the thread has to be notified once the session has a hold that is renewed.
    pub(super) fn is_wanted(&self) -> bool {
        !self.attended.load(Relaxed)
    }

    /// Called by the watchdog at each look, which shows that its runtime runs.
    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Relaxed);
        let before = std::time::Instant::now();
        let now = Instant::now().into_std();
        if now < before || std::time::Instant::now() < now {
            self.paused.store(true, Relaxed);
        }
    }
}
