//! Whether this process is subscribed to a lock's releases: for as long as a stranger waits for it.

use tokio::time::Instant;

use crate::base::{MasterSet, Moment};
use crate::table::entry::{LockEntry, Subscription};
use crate::table::queue::{Waiter, WaiterState};
use crate::wire::Pending;

impl LockEntry {
    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscription == Subscription::On
    }

    /// Whether the subscription is to begin or to end: it is wanted as long as a stranger waits.
    pub(super) fn subscription_change(&mut self) -> Option<bool> {
        if self.queue.is_empty() && self.subscription == Subscription::Off {
            return None;
        }
        // One that asks does not wait yet: most that ask once never are.
        let behind = |front: &Waiter| self.live().is_some() && front.phase == WaiterState::Waiting;
        let waits = self.outer_front().is_some_and(|front| front.is_asleep() || behind(front));
        match (self.subscription, waits) {
            (Subscription::Off, true) => {
                self.subscription = Subscription::Asked;
                Some(true)
            }
            (Subscription::Asked | Subscription::On, false) if self.queue.is_empty() => {
                self.subscription = Subscription::Off;
                (self.subscribed_at, self.reported) = (MasterSet::NONE, MasterSet::NONE);
                self.echoes.clear();
                Some(false)
            }
            _ => None,
        }
    }

    /// A master confirmed the subscription: what was published before did not arrive, so the head asks once more; and again once
    /// each majority has a master that confirmed it. 1. Another process holds the lock on n2 and n3. 2. n1 confirms, and the head asks
    /// and sleeps. 3. The lock is released, and n2 and n3 publish it. 4. They confirm. Nobody would wake the head.
    pub(crate) fn subscribed(&mut self, master: usize, at: Moment) {
        if self.subscription == Subscription::Off {
            return;
        }
        let before = self.subscribed_at.len();
        self.subscribed_at.insert(master);
        self.subscription = Subscription::On;
        let (confirmed, enough) = (self.subscribed_at.len(), self.terms.masters.div_ceil(2));
        if confirmed > before && (before == 0 || confirmed == enough) {
            self.freed(at.now);
        }
    }

    /// The subscription is lost or refused: messages may have been missed.
    pub(crate) fn unsubscribed(&mut self, master: usize, at: Moment) {
        if !self.subscribed_at.contains(master) {
            return;
        }
        self.subscribed_at.remove(master);
        self.reported.remove(master);
        if let Some(echoes) = self.echoes.get_mut(master) {
            *echoes = 0;
        }
        if self.subscribed_at.is_empty() {
            self.subscription = Subscription::Asked;
        }
        self.freed(at.now);
    }

    /// A message came on the lock's channel: somebody released it, or forced it open.
    pub(crate) fn message(&mut self, master: usize, now: Instant) {
        if !self.subscribed_at.contains(master) {
            return;
        }
        let echo =
            self.echoes.get_mut(master).filter(|echoes| **echoes > 0).map(|echoes| *echoes -= 1).is_some();
        if !self.reported.is_empty() && !self.reported.contains(master) {
            // One release, reported by one master after the other, wakes once.
            self.reported.insert(master);
            self.missed |= self.outer_front().is_some_and(|front| front.phase == WaiterState::Asking);
            return;
        }
        self.reported = MasterSet::one(master);
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
            self.count_echoes(pending.masters, |echoes| *echoes += 1);
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
        self.count_echoes(masters, |echoes| *echoes = echoes.saturating_sub(1));
    }

    fn count_echoes(&mut self, masters: MasterSet, count: impl Fn(&mut u32)) {
        for master in self.subscribed_at.within(masters).iter() {
            if self.echoes.len() <= master {
                self.echoes.resize(master + 1, 0);
            }
            count(&mut self.echoes[master]);
        }
    }
}
