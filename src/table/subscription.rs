//! Whether this process hears of a lock's releases: for as long as a stranger waits for it.

use tokio::time::Instant;

use crate::base::{MasterSet, Moment};
use crate::table::entry::{LockEntry, Subscription};
use crate::table::queue::{Waiter, WaiterState};
use crate::wire::{Job, Step};

impl LockEntry {
    pub(crate) fn is_heard(&self) -> bool {
        self.hearing == Subscription::On
    }

    /// Whether the wish to hear of releases has changed: as long as a stranger waits.
    pub(crate) fn hears(&mut self) -> Option<bool> {
        // One that asks is not told to wait yet: most that ask once never are.
        let behind = |front: &Waiter| self.live().is_some() && front.phase == WaiterState::Waiting;
        let waits = self.outer_front().is_some_and(|front| front.is_asleep() || behind(front));
        match (self.hearing, waits) {
            (Subscription::Off, true) => {
                self.hearing = Subscription::Asked;
                Some(true)
            }
            (Subscription::Asked | Subscription::On, false) if self.queue.is_empty() => {
                self.hearing = Subscription::Off;
                (self.heard, self.spoken) = (MasterSet::NONE, MasterSet::NONE);
                self.echoes.clear();
                Some(false)
            }
            _ => None,
        }
    }

    /// A master confirmed the subscription: what was published before is not heard, so the head asks once more. What the
    /// first one to confirm has not heard of, the next release tells.
    pub(crate) fn hears_now(&mut self, master: usize, at: Moment) {
        if self.hearing == Subscription::Off {
            return;
        }
        let first = self.heard.is_empty();
        self.heard.insert(master);
        self.hearing = Subscription::On;
        if first {
            self.freed(at.now);
        }
    }

    /// The subscription is lost or refused: messages may have been missed.
    pub(crate) fn hears_no_more(&mut self, master: usize, at: Moment) {
        if !self.heard.contains(master) {
            return;
        }
        self.heard.remove(master);
        self.spoken.remove(master);
        if let Some(echoes) = self.echoes.get_mut(master) {
            *echoes = 0;
        }
        if self.heard.is_empty() {
            self.hearing = Subscription::Asked;
        }
        self.freed(at.now);
    }

    /// A message came on the lock's channel: somebody released it, or forced it open.
    pub(crate) fn message(&mut self, master: usize, now: Instant) {
        if !self.heard.contains(master) {
            return;
        }
        let echo =
            self.echoes.get_mut(master).filter(|echoes| **echoes > 0).map(|echoes| *echoes -= 1).is_some();
        if !self.spoken.is_empty() && !self.spoken.contains(master) {
            // One release, told by one master after the other, wakes once.
            self.spoken.insert(master);
            self.missed |= self.outer_front().is_some_and(|front| front.phase == WaiterState::Asking);
            return;
        }
        self.spoken = MasterSet::one(master);
        self.freed(now);
        if !echo {
            self.ask_all(now);
        }
    }

    /// A release is being sent: its messages will come back to this process, and say nothing new.
    pub(crate) fn expect_echoes(&mut self, job: &Job) {
        if job.step == (Step::Release { count: 0 }) {
            self.count_echoes(job.masters, |echoes| *echoes += 1);
        }
    }

    /// The release may not have published. If it did after all, its message only makes the watchdog ask once more; an echo
    /// that never comes would make it overlook that a hold was forced away.
    pub(crate) fn expect_no_echo(&mut self, job: &Job) {
        if job.step == (Step::Release { count: 0 }) {
            self.expect_no_echo_of(job.masters);
        }
    }

    /// The same of some masters, which have not run it.
    pub(crate) fn expect_no_echo_of(&mut self, masters: MasterSet) {
        self.count_echoes(masters, |echoes| *echoes = echoes.saturating_sub(1));
    }

    fn count_echoes(&mut self, masters: MasterSet, count: impl Fn(&mut u32)) {
        let heard = self.heard.within(masters);
        for master in heard.iter() {
            if self.echoes.len() <= master {
                self.echoes.resize(master + 1, 0);
            }
            count(&mut self.echoes[master]);
        }
    }
}
