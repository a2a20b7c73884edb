//! `Subscription`: whether messages of a lock's releases reach this process, for as long as a stranger waits for it.

use tokio::time::Instant;

use crate::base::{MasterSet, Moment};
use crate::table::entry::LockEntry;
use crate::table::queue::{Waiter, WaiterState};
use crate::wire::Pending;

/// The subscription of a lock. Mostly nobody waits: a pointer then.
#[derive(Debug, Default)]
pub(super) struct Subscription(Option<Box<Asked>>);

/// It was asked for.
#[derive(Debug, Default)]
struct Asked {
    /// The masters whose messages arrive.
    confirmed: MasterSet,
    /// Those whose message of a release came since a request was last woken by one: the others' messages are of the same.
    reported: MasterSet,
    /// Such a message came while the request asked, which may have been too early.
    missed: bool,
    /// Releases of our own whose message has not come back yet, for each master: it is no news.
    echoes: Vec<u32>,
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

    /// Nobody asked for it.
    pub(super) fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// The masters whose messages arrive.
    pub(super) fn confirmed(&self) -> MasterSet {
        self.0.as_ref().map_or(MasterSet::NONE, |asked| asked.confirmed)
    }

    /// What was asked for, if this master's messages arrive.
    fn of(&mut self, master: usize) -> Option<&mut Asked> {
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
    fn count_echoes(&mut self, masters: MasterSet, count: impl Fn(&mut u32)) {
        let Some(asked) = &mut self.0 else { return };
        for master in asked.confirmed.within(masters).iter() {
            if asked.echoes.len() <= master {
                asked.echoes.resize(master + 1, 0);
            }
            count(&mut asked.echoes[master]);
        }
    }
}

impl LockEntry {
    pub(crate) fn is_subscribed(&self) -> bool {
        !self.subscription.confirmed().is_empty()
    }

    /// Whether the subscription is to begin or to end: it is wanted as long as a stranger waits.
    pub(super) fn subscription_change(&mut self) -> Option<bool> {
        if self.queue.is_empty() && self.subscription.is_off() {
            return None;
        }
        // One that asks does not wait yet: most that ask once never are.
        let behind = |front: &Waiter| self.live().is_some() && front.phase == WaiterState::Waiting;
        let waits = self.outer_front().is_some_and(|front| front.is_asleep() || behind(front));
        match (self.subscription.is_off(), waits) {
            (true, true) => {
                self.subscription = Subscription(Some(Box::default()));
                Some(true)
            }
            (false, false) if self.queue.is_empty() => {
                self.subscription = Subscription(None);
                Some(false)
            }
            _ => None,
        }
    }

    /// A master confirmed the subscription: what was published before did not arrive, so the head asks once more; and again once
    /// each majority has a master that confirmed it. 1. Another process holds the lock on n2 and n3. 2. n1 confirms, and the head asks
    /// and sleeps. 3. The lock is released, and n2 and n3 publish it. 4. They confirm. Nobody would wake the head.
    pub(crate) fn subscribed(&mut self, master: usize, at: Moment) {
        let Some(asked) = &mut self.subscription.0 else { return };
        let before = asked.confirmed.len();
        asked.confirmed.insert(master);
        let (confirmed, enough) = (asked.confirmed.len(), self.terms.masters.div_ceil(2));
        if confirmed > before && (before == 0 || confirmed == enough) {
            self.freed(at.now);
        }
    }

    /// The subscription is lost or refused: messages may have been missed.
    pub(crate) fn unsubscribed(&mut self, master: usize, at: Moment) {
        let Some(asked) = self.subscription.of(master) else { return };
        asked.confirmed.remove(master);
        asked.reported.remove(master);
        if let Some(echoes) = asked.echoes.get_mut(master) {
            *echoes = 0;
        }
        self.freed(at.now);
    }

    /// A message came on the lock's channel: somebody released it, or forced it open.
    pub(crate) fn message(&mut self, master: usize, now: Instant) {
        let asks = self.outer_front().is_some_and(|front| front.phase == WaiterState::Asking);
        let Some(asked) = self.subscription.of(master) else { return };
        let echo =
            asked.echoes.get_mut(master).filter(|echoes| **echoes > 0).map(|echoes| *echoes -= 1).is_some();
        if !asked.reported.is_empty() && !asked.reported.contains(master) {
            // One release, reported by one master after the other, wakes once.
            asked.reported.insert(master);
            asked.missed |= asks;
            return;
        }
        asked.reported = MasterSet::one(master);
        self.freed(now);
        if !echo {
            self.ask_all(now);
            self.turns.note();
            // Who had it has released it.
            self.seen.clear(now);
        }
    }

    /// A release is being sent: its messages will come back to this process, and are no news.
    pub(super) fn expect_echoes(&mut self, pending: &Pending) {
        if pending.is_end() {
            self.subscription.count_echoes(pending.masters, |echoes| *echoes += 1);
        }
    }

    /// The release may not have published. If it did after all, its message only makes the watchdog ask once more; an echo
    /// that never comes would make it overlook that a hold was forced away.
    pub(super) fn expect_no_echo(&mut self, pending: &Pending) {
        if pending.is_end() {
            self.expect_no_echo_of(pending.masters);
        }
    }

    /// The same of some masters, which have not run it.
    pub(super) fn expect_no_echo_of(&mut self, masters: MasterSet) {
        self.subscription.count_echoes(masters, |echoes| *echoes = echoes.saturating_sub(1));
    }
}
