//! `Subscription`: whether messages of a lock's releases reach this process, while a stranger waits for it.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{MasterSet, after};

/// How long the subscription is kept once nobody waits, if hints about the lock have a channel of their own. Otherwise a process
/// that takes a hot lock again and again would be refused outside the line each time.
const LINGER: Duration = Duration::from_secs(1);

/// The subscription of a lock. Mostly nobody waits, so this takes one pointer.
#[derive(Debug, Default)]
pub(super) struct Subscription(Option<Box<Asked>>);

/// A subscription that was requested.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// The masters whose messages arrive.
    pub(super) confirmed: MasterSet,
    /// The masters whose message of a release came since a request was last woken by one: the other masters' messages report the
    /// same release.
    pub(super) reported: MasterSet,
    /// Whether such a message came while the request asked, which may have been too early.
    pub(super) missed: bool,
    /// Whether a majority refused a request, and another master granted it afterwards, so that the votes were split.
    pub(super) split: bool,
    /// Whether hints about this lock arrive, on a channel of its own.
    pub(super) hints: bool,
    /// When it ends, if nobody has waited for a while.
    ends_at: Option<Instant>,
    /// For each master, the number of own releases whose message has not come back yet: such a message is no news.
    pub(super) echoes: Vec<u32>,
}

impl Subscription {
    /// Makes a subscription as it is after a confirmation by these masters.
    #[cfg(test)]
    pub(super) fn by(confirmed: MasterSet) -> Subscription {
        Subscription(Some(Box::new(Asked { confirmed, ..Asked::default() })))
    }

    /// Returns it as it is after the message of a release by these masters.
    #[cfg(test)]
    pub(super) fn reported(mut self, reported: MasterSet) -> Subscription {
        self.0.get_or_insert_default().reported = reported;
        self
    }

    pub(super) fn begin(&mut self) {
        self.0 = Some(Box::default());
    }

    /// Returns the subscription if it was requested.
    pub(super) fn asked(&mut self) -> Option<&mut Asked> {
        self.0.as_deref_mut()
    }

    /// Returns whether nobody requested it.
    pub(super) fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the masters whose messages arrive.
    pub(super) fn confirmed(&self) -> MasterSet {
        self.0.as_ref().map_or(MasterSet::NONE, |asked| asked.confirmed)
    }

    /// Returns whether hints about the lock arrive, on a channel of its own.
    pub(super) fn gets_hints(&self) -> bool {
        self.0.as_ref().is_some_and(|asked| asked.hints)
    }

    /// Called while somebody waits.
    pub(super) fn is_needed(&mut self) {
        if let Some(asked) = &mut self.0 {
            asked.ends_at = None;
        }
    }

    /// Called when nobody waits. Returns whether it is kept all the same.
    pub(super) fn lingers(&mut self, now: Instant) -> bool {
        let asked = self.0.as_mut().filter(|asked| asked.hints);
        asked.is_some_and(|asked| *asked.ends_at.get_or_insert(after(now, LINGER)) > now)
    }

    /// Returns when it ends, if nobody waits until then.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.0.as_ref()?.ends_at
    }

    /// Returns the subscription if this master's messages arrive.
    pub(super) fn of(&mut self, master: usize) -> Option<&mut Asked> {
        self.0.as_deref_mut().filter(|asked| asked.confirmed.contains(master))
    }

    /// Called when a request goes to sleep until the next message. Returns whether a message came while it asked that did not wake
    /// it.
    pub(super) fn take_missed(&mut self) -> bool {
        self.0.as_mut().is_some_and(|asked| {
            asked.reported = MasterSet::NONE;
            std::mem::take(&mut asked.missed)
        })
    }

    #[inline]
    pub(super) fn count_echoes(&mut self, masters: MasterSet, count: impl Fn(&mut u32)) {
        let Some(asked) = &mut self.0 else { return };
        for master in asked.confirmed.within(masters).iter() {
            if asked.echoes.len() <= master {
                asked.echoes.resize(master + 1, 0);
            }
            count(&mut asked.echoes[master]);
        }
    }
}
