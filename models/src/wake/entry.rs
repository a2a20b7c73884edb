//! One lock in one process: its line, its attempts, its subscription. The functions have the names of those in
//! `src/table/` that they model.

use super::{ALL, Design, MASTERS};

type Masters = u8;
const MAJORITY: u32 = 2;

/// What a request is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// It asks as soon as its turn comes.
    Waiting,
    /// Its acquire is under way.
    Asking,
    /// It was refused. If `soon`, it asks again after a short pause, otherwise at the poll interval.
    Asleep {
        /// Whether it sleeps for a short time only.
        soon: bool,
    },
    /// It asks again after a short pause, and nothing wakes it before.
    Pausing,
}

/// A request in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter {
    /// What it is doing.
    pub phase: Phase,
    /// Whether it asks once more before it sleeps.
    pub again: bool,
    /// Whether its task is going to poll it.
    pub woken: bool,
}

/// How far an attempt has got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// There is no attempt.
    #[default]
    None,
    /// Its acquire is under way.
    Asked,
    /// It has a guard.
    Held,
    /// Its end is under way.
    Ending,
    /// It is over; some masters may still have its field.
    Gone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    #[default]
    Unasked,
    Waiting,
    /// The master did as asked.
    Done,
    /// The lock was busy, or the field was not there.
    Not,
}

/// The state between an attempt and a master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// Whether the acquire is on its way.
    pub acquires: bool,
    /// Whether the end is on its way.
    pub ends: bool,
    pub answer: Answer,
    /// Whether the field still has to be ended there.
    remains: bool,
}

/// One attempt, and the hold that it became.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Try {
    /// How far it has got.
    pub stage: Stage,
    /// The links, by master.
    pub links: [Link; MASTERS],
}

/// Whether messages of the lock's releases reach this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subscription {
    /// Nobody needs the messages.
    #[default]
    Off,
    /// It is requested.
    Asked,
    /// At least one master has confirmed it.
    On,
}

/// Models `LockEntry`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The requests, in the order of their arrival.
    pub waiters: [Option<Waiter>; 2],
    /// The attempt that is under way or holds, and one that was refused before.
    pub tries: [Try; 2],
    /// This and the next three fields model those of `LockEntry`.
    pub subscription: Subscription,
    subscribed_at: Masters,
    reported: Masters,
    missed: bool,
    /// The echoes that are expected, by master.
    pub echoes: [u8; MASTERS],
    /// Young masters, which are not asked.
    pub(super) barred: Masters,
}

impl Try {
    fn masters(&self, is: impl Fn(&Link) -> bool) -> Masters {
        self.links.iter().enumerate().fold(0, |set, (at, link)| set | (u8::from(is(link)) << at))
    }

    fn with(&self, answer: Answer) -> u32 {
        self.masters(|link| link.answer == answer).count_ones()
    }

    /// Returns whether no later answer can change the verdict. Models `Tally::fresh` and `Tally::end`.
    pub(super) fn is_decided(&self) -> bool {
        let (done, not) = (self.with(Answer::Done), self.with(Answer::Not));
        match self.stage {
            Stage::Asked if self.with(Answer::Waiting) == 0 => true,
            Stage::Asked | Stage::Ending => done >= MAJORITY || not >= MAJORITY,
            _ => false,
        }
    }

    pub(super) fn is_to_be_swept(&self) -> bool {
        self.stage == Stage::Gone && self.links.iter().any(|link| link.remains && !link.ends)
    }

    fn is_over(&self) -> bool {
        self.stage == Stage::Gone
            && self.links.iter().all(|link| !link.acquires && !link.ends && !link.remains)
    }
}

impl Entry {
    pub(super) fn subscribe_at(&mut self, masters: Masters) {
        (self.subscription, self.subscribed_at) = (Subscription::On, masters);
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiters.last().is_some_and(Option::is_none)
    }

    fn live(&self) -> bool {
        self.tries.iter().any(|one| one.stage == Stage::Held)
    }

    fn ends(&self) -> bool {
        self.tries.iter().any(|one| one.stage == Stage::Ending)
    }

    /// Models a request's first poll.
    pub(super) fn arrive(&mut self) {
        let waiter = Waiter { phase: Phase::Waiting, again: false, woken: false };
        if let Some(at) = self.waiters.iter().position(Option::is_none) {
            self.waiters[at] = Some(waiter);
            self.admit(at);
        }
    }

    /// Polls a waiter that was woken, or whose timer has ended.
    pub(super) fn poll(&mut self, at: usize) {
        let Some(waiter) = &mut self.waiters[at] else { return };
        let woken = std::mem::take(&mut waiter.woken);
        if !woken && matches!(waiter.phase, Phase::Asleep { .. } | Phase::Pausing) {
            waiter.phase = Phase::Waiting;
        }
        self.admit(at);
    }

    /// Models `LockEntry::admit_outermost`.
    fn admit(&mut self, at: usize) {
        let (live, ends) = (self.live(), self.ends());
        let free = self.tries.iter().position(|one| one.stage == Stage::None);
        let Some(waiter) = self.waiters[at].as_mut() else { return };
        if ends || waiter.phase == Phase::Asking {
            return;
        }
        let sleeps = matches!(waiter.phase, Phase::Asleep { .. } | Phase::Pausing);
        if at > 0 {
            // Models `no_longer_asleep`.
            if sleeps {
                (waiter.phase, waiter.again) = (Phase::Waiting, false);
            }
            return;
        }
        if sleeps || live {
            return;
        }
        let Some(free) = free else {
            // The model has room for two attempts: the request asks again once the earlier one is over.
            waiter.phase = Phase::Asleep { soon: true };
            return;
        };
        (waiter.phase, waiter.again) = (Phase::Asking, false);
        let mut links = [Link { acquires: true, answer: Answer::Waiting, ..Link::default() }; MASTERS];
        for (_, link) in links.iter_mut().enumerate().filter(|(at, _)| self.barred & (1 << at) != 0) {
            *link = Link::default();
        }
        self.tries[free] = Try { stage: Stage::Asked, links };
    }

    /// Handles an answer. If `ended`, it is the answer to an end.
    pub(super) fn answered(&mut self, attempt: usize, at: usize, answer: Answer, ended: bool) {
        let one = &mut self.tries[attempt];
        let link = &mut one.links[at];
        // An answer to the acquire that arrives after the verdict does not matter for the end.
        let awaited = if ended { Stage::Ending } else { Stage::Asked };
        if one.stage == awaited && link.answer == Answer::Waiting {
            link.answer = answer;
            return;
        }
        // Models `LockEntry::straggled`.
        if !ended && one.stage == Stage::Gone {
            link.remains |= answer == Answer::Done;
        }
        if ended && answer == Answer::Not {
            self.expect_no_echo_of(1 << at);
        }
        self.tidy();
        self.wake_next();
    }

    /// Forgets the attempts that are over.
    fn tidy(&mut self) {
        for one in self.tries.iter_mut().filter(|one| one.is_over()) {
            *one = Try::default();
        }
    }

    /// Models `Acquire::busy`, `LockEntry::granted` and `LockEntry::answered`.
    pub(super) fn conclude(&mut self, attempt: usize, design: Design) {
        let one = &mut self.tries[attempt];
        let done = one.masters(|link| link.answer == Answer::Done);
        let missing = one.masters(|link| link.answer == Answer::Not);
        let granted = done.count_ones() >= MAJORITY;
        let asked = one.stage == Stage::Asked;
        for link in &mut one.links {
            // An answer that has not arrived yet will be a straggler.
            let left = asked && !granted && link.answer == Answer::Done;
            (link.answer, link.remains) = (Answer::Unasked, left);
        }
        if !asked {
            one.stage = Stage::Gone;
            match granted {
                // Models `LockEntry::done`.
                true if design == Design::EchoOfNothing => {}
                true => self.expect_no_echo_of(missing),
                // Models `LockEntry::gone`.
                false => self.expect_no_echo_of(ALL),
            }
            self.tidy();
            self.freed();
        } else if granted {
            one.stage = Stage::Held;
            self.leave(0);
            self.wake_next();
        } else {
            one.stage = Stage::Gone;
            self.tidy();
            self.wake_next();
            self.refused(done != 0);
        }
    }

    /// Models `Acquire::busy` and `LockEntry::refused`: the head sleeps, unless something happened in the meantime.
    fn refused(&mut self, split: bool) {
        let subscribed = self.subscription == Subscription::On;
        let missed = std::mem::take(&mut self.missed);
        self.reported = 0;
        let Some(head) = self.waiters[0].as_mut().filter(|head| head.phase == Phase::Asking) else { return };
        let again = std::mem::take(&mut head.again);
        head.phase = match (split, again) {
            (true, _) => Phase::Pausing,
            (false, true) => Phase::Waiting,
            (false, false) => Phase::Asleep { soon: missed || !subscribed },
        };
        // The request continues in the same poll.
        self.admit(0);
    }

    /// Takes a request out of its line.
    fn leave(&mut self, at: usize) {
        self.waiters[at..].rotate_left(1);
        self.waiters[1] = None;
    }

    /// Models `LockEntry::leave_queue`: the request's acquire is undone.
    pub(super) fn drop_request(&mut self, at: usize) {
        let asks = self.waiters[at].is_some_and(|waiter| waiter.phase == Phase::Asking);
        if asks && let Some(one) = self.tries.iter_mut().find(|one| one.stage == Stage::Asked) {
            // The outcome of the acquire is unknown: its end follows it, to all masters.
            one.stage = Stage::Ending;
            for link in &mut one.links {
                (link.ends, link.answer) = (true, Answer::Waiting);
            }
            self.expect_echoes(ALL);
        }
        self.leave(at);
        if at == 0 {
            self.freed();
        } else {
            self.wake_next();
        }
    }

    /// Models `LockEntry::leave`: the end is sent to all masters.
    pub(super) fn release(&mut self) {
        let Some(one) = self.tries.iter_mut().find(|one| one.stage == Stage::Held) else { return };
        one.stage = Stage::Ending;
        for link in &mut one.links {
            (link.ends, link.answer) = (true, Answer::Waiting);
        }
        self.expect_echoes(ALL);
        self.wake_next();
    }

    /// Models `Orphans::check`: the end is sent to the masters that may still have the field.
    pub(super) fn sweep(&mut self, attempt: usize) {
        let one = &mut self.tries[attempt];
        let remains = one.masters(|link| link.remains && !link.ends);
        for link in one.links.iter_mut().filter(|link| link.remains && !link.ends) {
            (link.ends, link.remains) = (true, false);
        }
        self.expect_echoes(remains);
    }

    /// Models `LockEntry::freed`.
    fn freed(&mut self) {
        if let Some(head) = &mut self.waiters[0] {
            // Models `Waiter::asks_once_more`.
            match head.phase {
                Phase::Asleep { .. } => head.phase = Phase::Waiting,
                Phase::Pausing => {}
                Phase::Waiting | Phase::Asking => head.again = true,
            }
        }
        self.wake_next();
    }

    /// Models `LockEntry::wake_next`.
    fn wake_next(&mut self) {
        let (live, ends) = (self.live(), self.ends());
        if let Some(head) = &mut self.waiters[0]
            && !live
            && !ends
            && head.phase == Phase::Waiting
        {
            head.woken = true;
        }
    }

    /// Models `LockEntry::subscription_change`.
    pub(super) fn subscription_change(&mut self) -> Option<bool> {
        let waits = self.waiters[0].is_some_and(|head| {
            let asleep = matches!(head.phase, Phase::Asleep { .. } | Phase::Pausing);
            asleep || self.live() && head.phase == Phase::Waiting
        });
        match (self.subscription, waits) {
            (Subscription::Off, true) => {
                self.subscription = Subscription::Asked;
                Some(true)
            }
            (Subscription::Asked | Subscription::On, false) if self.waiters[0].is_none() => {
                self.subscription = Subscription::Off;
                (self.subscribed_at, self.reported, self.echoes) = (0, 0, [0; MASTERS]);
                Some(false)
            }
            _ => None,
        }
    }

    /// Models `LockEntry::subscribed`.
    pub(super) fn subscribed(&mut self, at: usize, design: Design) {
        if self.subscription == Subscription::Off {
            return;
        }
        let before = self.subscribed_at.count_ones();
        self.subscribed_at |= 1 << at;
        self.subscription = Subscription::On;
        // Each majority includes one of any two masters.
        if design != Design::NoSecondLook && (before == 0 || before + 1 == MAJORITY) {
            self.freed();
        }
    }

    /// Models `LockEntry::unsubscribed`.
    pub(super) fn unsubscribed(&mut self, at: usize) {
        if self.subscribed_at & (1 << at) == 0 {
            return;
        }
        self.subscribed_at &= !(1 << at);
        self.reported &= !(1 << at);
        self.echoes[at] = 0;
        if self.subscribed_at == 0 {
            self.subscription = Subscription::Asked;
        }
        self.freed();
    }

    /// Models `LockEntry::message`. Returns whether the message makes this process ask for its holds.
    pub(super) fn message(&mut self, at: usize, design: Design) -> bool {
        let one = 1 << at;
        if self.subscribed_at & one == 0 {
            return false;
        }
        let echo = self.echoes[at] > 0 && design != Design::EchoIsForeign;
        self.echoes[at] = self.echoes[at].saturating_sub(1);
        if self.reported != 0 && self.reported & one == 0 {
            self.reported |= one;
            self.missed |= self.waiters[0].is_some_and(|head| head.phase == Phase::Asking);
            return false;
        }
        self.reported = one;
        let asking = self.waiters[0].is_some_and(|head| head.phase == Phase::Asking);
        if !(asking && design == Design::MessageWhileAsking) {
            self.freed();
        }
        !echo
    }

    /// Returns all of its state about one master.
    pub(super) fn column(&self, at: usize) -> impl Ord + use<> {
        let is_in = |set: Masters| set & (1 << at) != 0;
        let links = self.tries.map(|one| one.links[at]);
        (is_in(self.barred), links, is_in(self.subscribed_at), is_in(self.reported), self.echoes[at])
    }

    /// Puts the masters into another order.
    pub(super) fn reorder(&mut self, order: [usize; MASTERS]) {
        let set = |set: Masters| (0..MASTERS).fold(0, |new, at| new | ((set >> order[at] & 1) << at));
        (self.subscribed_at, self.reported) = (set(self.subscribed_at), set(self.reported));
        self.barred = set(self.barred);
        self.echoes = order.map(|at| self.echoes[at]);
        for one in &mut self.tries {
            one.links = order.map(|at| one.links[at]);
        }
    }

    fn expect_echoes(&mut self, masters: Masters) {
        for (at, echoes) in self.echoes.iter_mut().enumerate() {
            *echoes += u8::from(self.subscribed_at & masters & (1 << at) != 0);
        }
    }

    fn expect_no_echo_of(&mut self, masters: Masters) {
        for (at, echoes) in self.echoes.iter_mut().enumerate() {
            *echoes -= u8::from(self.subscribed_at & masters & (1 << at) != 0).min(*echoes);
        }
    }

    /// Returns whether nothing of it is under way, and no task is going to be polled before a long timer ends.
    pub(super) fn is_quiet(&self) -> bool {
        let waits = |waiter: &Waiter| {
            !waiter.woken && matches!(waiter.phase, Phase::Waiting | Phase::Asleep { soon: false })
        };
        self.waiters.iter().flatten().all(waits) && self.has_no_tries()
    }

    /// Returns whether it has no attempt, no request and no subscription.
    pub(super) fn is_idle(&self) -> bool {
        self.has_no_tries() && self.waiters == [None; 2]
    }

    pub(super) fn has_no_tries(&self) -> bool {
        self.tries.iter().all(|one| one.stage == Stage::None)
    }

    /// Returns whether a request waits for something that never comes. `lost` means that a message was lost, so that
    /// the poll interval has to be enough.
    pub(super) fn is_stuck(&self, lost: bool) -> bool {
        self.waiters[0].is_some_and(|head| !lost || head.phase != Phase::Asleep { soon: false })
    }
}
