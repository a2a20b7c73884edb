//! `Subscription`: whether messages of a lock's releases reach this process, for as long as a stranger waits for it.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{MasterSet, after};

/// Where hints about the lock have a channel of their own, the subscription stays for so long once nobody waits. Otherwise a process that
/// takes a hot lock again and again would be refused outside of the line each time.
const LINGER: Duration = Duration::from_secs(1);

/// The subscription of a lock. Mostly nobody waits: a pointer then.
#[derive(Debug, Default)]
pub(super) struct Subscription(Option<Box<Asked>>);

/// It was asked for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// The masters whose messages arrive.
    pub(super) confirmed: MasterSet,
    /// Those whose message of a release came since a request was last woken by one: the others' messages are of the same.
    pub(super) reported: MasterSet,
    /// Such a message came while the request asked, which may have been too early.
    pub(super) missed: bool,
    /// A majority refused a request, and another master granted it afterwards: the votes were split.
    pub(super) split: bool,
    /// Hints about this lock arrive, on a channel of its own.
    pub(super) hints: bool,
    /// Nobody has waited for a while: it ends then.
    ends_at: Option<Instant>,
    /// Releases of our own whose message has not come back yet, for each master: it is no news.
    pub(super) echoes: Vec<u32>,
}

impl Subscription {
    /// As after a confirmation of these masters.
    #[cfg(test)]
    pub(super) fn by(confirmed: MasterSet) -> Subscription {
        Subscription(Some(Box::new(Asked { confirmed, ..Asked::default() })))
    }

    /// As after the message of a release by these masters.
    #[cfg(test)]
    pub(super) fn reported(mut self, reported: MasterSet) -> Subscription {
        self.0.get_or_insert_default().reported = reported;
        self
    }

    pub(super) fn begin(&mut self) {
        self.0 = Some(Box::default());
    }

    /// What was asked for.
    pub(super) fn asked(&mut self) -> Option<&mut Asked> {
        self.0.as_deref_mut()
    }

    /// Nobody asked for it.
    pub(super) fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// The masters whose messages arrive.
    pub(super) fn confirmed(&self) -> MasterSet {
        self.0.as_ref().map_or(MasterSet::NONE, |asked| asked.confirmed)
    }

    /// Hints about the lock arrive, on a channel of its own.
    pub(super) fn gets_hints(&self) -> bool {
        self.0.as_ref().is_some_and(|asked| asked.hints)
    }

    /// Somebody waits.
    pub(super) fn is_needed(&mut self) {
        if let Some(asked) = &mut self.0 {
            asked.ends_at = None;
        }
    }

    /// Nobody waits. Returns whether it stays all the same.
    pub(super) fn lingers(&mut self, now: Instant) -> bool {
        let asked = self.0.as_mut().filter(|asked| asked.hints);
        asked.is_some_and(|asked| *asked.ends_at.get_or_insert(after(now, LINGER)) > now)
    }

    /// When it ends, if nobody waits until then.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.0.as_ref()?.ends_at
    }

    /// What was asked for, if this master's messages arrive.
    pub(super) fn of(&mut self, master: usize) -> Option<&mut Asked> {
        self.0.as_deref_mut().filter(|asked| asked.confirmed.contains(master))
    }

    /// A request goes to sleep, which the next message wakes. Whether one came while it asked that did not wake it.
    pub(super) fn sleeps(&mut self) -> bool {
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
