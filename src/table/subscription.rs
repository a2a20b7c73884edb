//! `Subscription`: whether the messages about a lock's releases reach this process. It is subscribed while a stranger waits.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{MasterSet, after};

/// How long the subscription is kept once nobody waits, if hints about the lock have a channel of their own. Otherwise a process
/// that often takes a contended lock would be refused outside the line each time.
const LINGER: Duration = Duration::from_secs(1);

/// The subscription of a lock, from the moment it is requested.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    /// The masters whose messages arrive.
    pub(super) confirmed: MasterSet,
    /// The masters that reported a release since such a message last woke a request: messages of other masters report the same release.
    pub(super) reported: MasterSet,
    /// Whether such a message came while the request asked, so that it may have asked too early.
    pub(super) missed: bool,
    /// Whether a majority refused a request, and another master granted it afterwards, so that the votes were split.
    pub(super) split: bool,
    /// Whether hints about this lock arrive, on a channel of its own.
    pub(super) hints: bool,
    /// When it ends, if nobody has waited for a while.
    pub(super) ends_at: Option<Instant>,
    /// For each master, the number of this process's own releases whose message has not come back yet: such a message is no news.
    pub(super) echoes: Vec<u32>,
}

impl Subscription {
    /// Makes a subscription that these masters have confirmed.
    #[cfg(test)]
    pub(super) fn by(confirmed: MasterSet) -> Option<Box<Subscription>> {
        Some(Box::new(Subscription { confirmed, ..Subscription::default() }))
    }

    /// Called when nobody waits. Returns whether the subscription is kept anyway.
    pub(super) fn lingers(&mut self, now: Instant) -> bool {
        self.hints && *self.ends_at.get_or_insert(after(now, LINGER)) > now
    }

    /// Called when a request goes to sleep until the next message. Returns whether a message that did not wake it came while it asked.
    pub(super) fn take_missed(&mut self) -> bool {
        self.reported = MasterSet::NONE;
        std::mem::take(&mut self.missed)
    }

    pub(super) fn count_echoes(&mut self, masters: MasterSet, count: impl Fn(&mut u32)) {
        for master in self.confirmed.within(masters).iter() {
            if self.echoes.len() <= master {
                self.echoes.resize(master + 1, 0);
            }
            count(&mut self.echoes[master]);
        }
    }
}
