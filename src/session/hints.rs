//! `Hints`: the channel on which this process is sent word of the lines in which it waits.

use std::sync::Arc;

use crate::base::atomic::{AtomicBool, Ordering::SeqCst};
use crate::wire::Line;
use crate::wire::keys;

/// Subscribed from the first wait on, and for good: 1. a process waits for a lock now and then, one request at a time. 2. It would have
/// to subscribe before each wait could begin in the line.
pub(crate) struct Hints {
    /// What scripts need to know of a lock's line; `None`: these locks have none.
    line: Option<Line>,
    channel: Arc<str>,
    wanted: AtomicBool,
    on: AtomicBool,
}

impl Hints {
    pub(super) fn new(prefix: &str, uuid: &str, line: Option<Line>) -> Hints {
        let channel = [&keys::wakes(prefix), uuid].concat().into();
        Hints { line, channel, wanted: AtomicBool::new(false), on: AtomicBool::new(false) }
    }

    /// The channel, where it is to be subscribed to now.
    pub(super) fn begin(&self) -> Option<&str> {
        (self.line.is_some() && !self.wanted.swap(true, SeqCst)).then_some(&*self.channel)
    }

    /// Whether this is the channel. Its messages arrive from now on, if `on`.
    pub(super) fn set(&self, channel: &str, on: bool) -> bool {
        let is_this = *self.channel == *channel;
        if is_this {
            self.on.store(on, SeqCst);
        }
        is_this
    }

    pub(super) fn lost(&self) {
        self.on.store(false, SeqCst);
    }

    /// What a request that enters a line tells the script. `None`: nothing would reach this process there.
    pub(crate) fn line(&self) -> Option<Line> {
        self.line.filter(|_| self.on.load(SeqCst))
    }

    /// Whether this is the channel.
    pub(super) fn are_of(&self, channel: &str) -> bool {
        *self.channel == *channel
    }
}
