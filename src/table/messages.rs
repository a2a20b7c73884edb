//! Of an entry: messages of releases, and for how long they are to reach this process.

use tokio::time::Instant;

use crate::base::{MasterSet, Moment, after};
use crate::table::entry::LockEntry;
use crate::table::in_line::UNHEARD;
use crate::table::queue::{Waiter, WaiterState};
use crate::table::subscription::Subscription;
use crate::wire::Pending;

impl LockEntry {
    pub(crate) fn is_subscribed(&self) -> bool {
        !self.subscription.confirmed().is_empty()
    }

    /// Whether the subscription is to begin or to end: it is wanted as long as a stranger waits.
    pub(super) fn subscription_change(&mut self, now: Instant) -> Option<bool> {
        if self.queue.is_empty() && self.subscription.is_off() {
            return None;
        }
        // One that asks does not wait yet: most that ask once never are.
        let behind = |front: &Waiter| self.live().is_some() && front.phase == WaiterState::Waiting;
        let waits = self.outer_front().is_some_and(|front| front.is_asleep() || behind(front));
        match (self.subscription.is_off(), waits) {
            (true, true) => {
                self.subscription.begin();
                Some(true)
            }
            (false, true) => {
                self.subscription.is_needed();
                None
            }
            (false, false) if self.queue.is_empty() && !(self.is_open && self.subscription.lingers(now)) => {
                self.subscription = Subscription::default();
                Some(false)
            }
            _ => None,
        }
    }

    /// A master confirmed the subscription: what was published before did not arrive, so the head asks once more; and again once
    /// each majority has a master that confirmed it. 1. Another process holds the lock on n2 and n3. 2. n1 confirms, and the head asks
    /// and sleeps. 3. The lock is released, and n2 and n3 publish it. 4. They confirm. Nobody would wake the head.
    pub(crate) fn subscribed(&mut self, master: usize, at: Moment) {
        let Some(asked) = self.subscription.asked() else { return };
        let before = asked.confirmed.len();
        asked.confirmed.insert(master);
        let (confirmed, enough) = (asked.confirmed.len(), self.terms.masters.div_ceil(2));
        if confirmed > before && (before == 0 || confirmed == enough) {
            if self.is_in_line() {
                return self.asks_by(after(at.now, UNHEARD), at.now);
            }
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
        if echo {
            return self.freed(now);
        }
        self.turns.note();
        if self.is_in_line() || !self.lets_longest_waiting_go_first(now) {
            self.freed(now);
        }
        self.ask_all(now);
        // Who had it has released it.
        self.seen.clear(now);
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
