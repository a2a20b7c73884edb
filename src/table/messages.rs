//! Handles messages about releases, and decides how long this process subscribes to them.

use tokio::time::Instant;

use crate::base::{MasterSet, Moment, after};
use crate::table::entry::LockEntry;
use crate::table::line::LONGEST_POLL;
use crate::table::queue::{Waiter, WaiterState};
use crate::table::subscription::Subscription;
use crate::wire::Pending;

impl LockEntry {
    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscription.as_ref().is_some_and(|subscription| !subscription.confirmed.is_empty())
    }

    /// Returns the subscription if this master's messages arrive.
    fn subscription_by(&mut self, master: usize) -> Option<&mut Subscription> {
        self.subscription.as_deref_mut().filter(|subscription| subscription.confirmed.contains(master))
    }

    /// Returns whether the subscription has to begin or to end: it is wanted while a stranger waits.
    pub(super) fn subscription_change(&mut self, now: Instant) -> Option<bool> {
        if self.queue.is_empty() && self.subscription.is_none() {
            return None;
        }
        // A request that asks does not wait yet, and most never do.
        let behind = |front: &Waiter| self.live().is_some() && front.phase == WaiterState::Waiting;
        let waits = self.outer_front().is_some_and(|front| front.is_asleep() || behind(front));
        let Some(subscription) = &mut self.subscription else {
            self.subscription = waits.then(Box::default);
            return waits.then_some(true);
        };
        if waits {
            subscription.ends_at = None;
            return None;
        }
        if !self.queue.is_empty() || self.is_open && subscription.lingers(now) {
            return None;
        }
        self.subscription = None;
        Some(false)
    }

    /// Called when a master has confirmed the subscription. Messages that were published before did not arrive, so the head asks
    /// once more, and again once each majority has a master that confirmed. Otherwise: 1. Another process holds the lock on n2
    /// and n3. 2. n1 confirms, and the head asks and sleeps. 3. The lock is released, and n2 and n3 publish that. 4. They
    /// confirm, and nothing wakes the head.
    pub(crate) fn subscribed(&mut self, master: usize, at: Moment) {
        let Some(subscription) = &mut self.subscription else { return };
        let before = subscription.confirmed.len();
        subscription.confirmed.insert(master);
        let (confirmed, enough) = (subscription.confirmed.len(), self.timing.masters.div_ceil(2));
        if confirmed > before && (before == 0 || confirmed == enough) {
            if self.is_in_line() {
                return self.ask_by(after(at.now, LONGEST_POLL), at.now);
            }
            self.head_asks_once_more(at.now);
        }
    }

    /// Called when the subscription is lost or refused: messages may have been missed.
    pub(crate) fn unsubscribed(&mut self, master: usize, at: Moment) {
        let Some(subscription) = self.subscription_by(master) else { return };
        subscription.confirmed.remove(master);
        subscription.reported.remove(master);
        if let Some(echoes) = subscription.echoes.get_mut(master) {
            *echoes = 0;
        }
        self.head_asks_once_more(at.now);
    }

    /// Called for a message on the lock's channel: the lock was released, maybe by force.
    pub(crate) fn message(&mut self, master: usize, now: Instant) {
        let asks = self.outer_front().is_some_and(|front| front.phase == WaiterState::Asking);
        let Some(subscription) = self.subscription_by(master) else { return };
        let echoes = subscription.echoes.get_mut(master).filter(|echoes| **echoes > 0);
        let echo = echoes.map(|echoes| *echoes -= 1).is_some();
        if !subscription.reported.is_empty() && !subscription.reported.contains(master) {
            // A release that several masters report wakes a request only once.
            subscription.reported.insert(master);
            subscription.missed |= asks;
            return;
        }
        subscription.reported = MasterSet::one(master);
        if echo {
            return self.head_asks_once_more(now);
        }
        if self.is_in_line() || !self.lets_those_due_go_first(now) {
            self.head_asks_once_more(now);
        }
        self.doubt_all(now);
        // The holder has released it.
        self.seen.clear(now);
    }

    /// Called when a release is sent: its messages will come back to this process, and are no news.
    pub(super) fn expect_echoes(&mut self, pending: &Pending) {
        if pending.is_end()
            && let Some(subscription) = &mut self.subscription
        {
            subscription.count_echoes(pending.masters, |echoes| *echoes += 1);
        }
    }

    /// Called when the release may not have published. If it did after all, its message only makes the watchdog ask once more. If
    /// the entry expected an echo that never comes, it would overlook a forced release.
    pub(super) fn expect_no_echo(&mut self, pending: &Pending) {
        if pending.is_end() {
            self.expect_no_echo_of(pending.masters);
        }
    }

    /// Expects no echo of a release from these masters, which did not run it.
    pub(super) fn expect_no_echo_of(&mut self, masters: MasterSet) {
        if let Some(subscription) = &mut self.subscription {
            subscription.count_echoes(masters, |echoes| *echoes = echoes.saturating_sub(1));
        }
    }
}
