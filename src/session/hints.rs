//! `Hints`: the channel on which this process gets the hints about the lines in which it waits.

use std::sync::Arc;

use crate::base::atomic::{AtomicBool, Ordering::SeqCst};
use crate::wire::Line;
use crate::wire::keys;

/// The subscription begins with the first wait and is kept for good. Otherwise a process that waits for a lock now and then, with one
/// request at a time, would have to subscribe before each wait could begin in the line.
pub(crate) struct Hints {
    /// What scripts need to know of a lock's line. `None`: these locks have no line.
    line: Option<Line>,
    channel: Arc<str>,
    /// The beginning of the channels of all processes.
    wakes: String,
    wanted: AtomicBool,
    on: AtomicBool,
}

impl Hints {
    pub(super) fn new(prefix: &str, uuid: &str, line: Option<Line>) -> Hints {
        let wakes = keys::wakes(prefix);
        let channel = [&wakes, uuid].concat().into();
        Hints { line, channel, wakes, wanted: AtomicBool::new(false), on: AtomicBool::new(false) }
    }

    /// Returns the channel if it has to be subscribed to now.
    pub(super) fn begin(&self) -> Option<&str> {
        (self.line.is_some() && !self.wanted.swap(true, SeqCst)).then_some(&*self.channel)
    }

    /// Returns whether this is the channel; if so, notes whether its messages arrive from now on.
    pub(super) fn set(&self, channel: &str, on: bool) -> bool {
        let is_this = *self.channel == *channel;
        if is_this {
            self.on.store(on, SeqCst);
        }
        is_this
    }

    /// Returns the second channel to subscribe to, or to leave, with this channel of a lock's releases: it shows the scripts that this
    /// process knows of lines. `None` where no hints arrive: the user may lack the right, which is the same.
    pub(super) fn beside(&self, channel: &str, on: bool) -> Option<String> {
        (self.line.is_some() && (!on || self.on.load(SeqCst))).then(|| [&self.wakes, channel].concat())
    }

    pub(super) fn lost(&self) {
        self.on.store(false, SeqCst);
    }

    /// Returns what a request passes to the script to enter a line. `None`: no hint would reach this process.
    pub(crate) fn line(&self) -> Option<Line> {
        self.line.filter(|_| self.on.load(SeqCst))
    }

    /// Whether this is the channel.
    pub(super) fn are_of(&self, channel: &str) -> bool {
        *self.channel == *channel
    }
}
