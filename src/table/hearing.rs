//! Whether this process hears of a lock's releases: for as long as a stranger waits for it.

use tokio::time::Instant;

use crate::base::{Moment, Nodes};
use crate::table::queue::{Phase, Request};
use crate::table::room::{Hearing, Room};
use crate::wire::{Job, Step};

impl Room {
    pub(crate) fn is_heard(&self) -> bool {
        self.hearing == Hearing::On
    }

    /// Whether the wish to hear of releases has changed: as long as a stranger waits.
    pub(crate) fn hears(&mut self) -> Option<bool> {
        // One that asks is not told to wait yet: most that ask once never are.
        let behind = |front: &Request| self.live().is_some() && front.phase == Phase::Waiting;
        let waits = self.outer_front().is_some_and(|front| front.is_asleep() || behind(front));
        match (self.hearing, waits) {
            (Hearing::Off, true) => {
                self.hearing = Hearing::Asked;
                Some(true)
            }
            (Hearing::Asked | Hearing::On, false) if self.queue.is_empty() => {
                self.hearing = Hearing::Off;
                (self.heard, self.spoken) = (Nodes::NONE, Nodes::NONE);
                self.echoes.clear();
                Some(false)
            }
            _ => None,
        }
    }

    /// A master confirmed the subscription: what was published before is not heard, so the head asks once more. What the
    /// first one to confirm has not heard of, the next release tells.
    pub(crate) fn hears_now(&mut self, node: usize, at: Moment) {
        if self.hearing == Hearing::Off {
            return;
        }
        let first = self.heard.is_empty();
        self.heard.insert(node);
        self.hearing = Hearing::On;
        if first {
            self.freed(at.now);
        }
    }

    /// The subscription is lost or refused: messages may have been missed.
    pub(crate) fn hears_no_more(&mut self, node: usize, at: Moment) {
        if !self.heard.contains(node) {
            return;
        }
        self.heard.remove(node);
        self.spoken.remove(node);
        if let Some(echoes) = self.echoes.get_mut(node) {
            *echoes = 0;
        }
        if self.heard.is_empty() {
            self.hearing = Hearing::Asked;
        }
        self.freed(at.now);
    }

    /// A message came on the lock's channel: somebody released it, or forced it open.
    pub(crate) fn message(&mut self, node: usize, now: Instant) {
        if !self.heard.contains(node) {
            return;
        }
        let echo =
            self.echoes.get_mut(node).filter(|echoes| **echoes > 0).map(|echoes| *echoes -= 1).is_some();
        if !self.spoken.is_empty() && !self.spoken.contains(node) {
            // One release, told by one master after the other, wakes once.
            self.spoken.insert(node);
            self.missed |= self.outer_front().is_some_and(|front| front.phase == Phase::Asking);
            return;
        }
        self.spoken = Nodes::one(node);
        self.freed(now);
        if !echo {
            self.ask_all(now);
        }
    }

    /// A release is being sent: its messages will come back to this process, and say nothing new.
    pub(crate) fn expect_echoes(&mut self, job: &Job) {
        if job.step == (Step::Release { count: 0 }) {
            self.count_echoes(job.nodes, |echoes| *echoes += 1);
        }
    }

    /// The release may not have published. If it did after all, its message only makes the watchdog ask once more; an echo
    /// that never comes would make it overlook that a hold was forced away.
    pub(crate) fn expect_no_echo(&mut self, job: &Job) {
        if job.step == (Step::Release { count: 0 }) {
            self.expect_no_echo_of(job.nodes);
        }
    }

    /// The same of some masters, which have not run it.
    pub(crate) fn expect_no_echo_of(&mut self, nodes: Nodes) {
        self.count_echoes(nodes, |echoes| *echoes = echoes.saturating_sub(1));
    }

    fn count_echoes(&mut self, nodes: Nodes, count: impl Fn(&mut u32)) {
        let heard = self.heard.within(nodes);
        for node in heard.iter() {
            if self.echoes.len() <= node {
                self.echoes.resize(node + 1, 0);
            }
            count(&mut self.echoes[node]);
        }
    }
}
