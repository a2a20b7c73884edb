//! What a program explains: errors and losses, how long a request waits, and tokens that do not grow.

use std::time::Duration;

use crate::sim::program::{End, Fault, FaultKind, Op, Program, Step};

const SECOND: Duration = Duration::from_secs(1);

/// What the promises allow in this run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    /// Requests may fail since masters were not there.
    pub(super) unavailable: bool,
    /// Even at the end, when all has been well for long.
    pub(super) unavailable_in_the_end: bool,
    pub(super) closed: bool,
    /// What is renewed may be lost.
    pub(super) losses: bool,
    /// Masters may lose what they had.
    pub(super) forgets: bool,
    /// Nothing goes wrong, and each future is polled when it is woken, to its end.
    pub(super) calm: bool,
    /// What is gone is seen by whoever asks.
    pub(super) checks_see: bool,
    /// Other programs use the keys.
    pub(super) foreign: bool,
    /// How long a release and the like may take; `None`: their futures may not be polled.
    pub(super) answered_within: Option<Duration>,
}

impl Program {
    pub(super) fn allowed(&self) -> Allowed {
        let Program { setup, faults, .. } = self;
        let late = self.is_polled_late();
        let forces = self.has_op(|op| matches!(op, Op::Force(_)));
        let neglects = self.neglects();
        // What is asked and not looked at keeps renewals waiting.
        let unrenewed = neglects && 2 * setup.node_timeout > setup.lease / 2;
        let unpolled = self.has(|kind| matches!(kind, FaultKind::Freeze(_) | FaultKind::Suspend(..)));
        let answered = self.network_time() + 3 * setup.node_timeout;
        // 1. The masters' counters differ, so a token has to be made known. 2. The lock is forced away before it is.
        let loses_tokens = forces && setup.masters > 1 && setup.fenced.contains(&true);
        Allowed {
            unavailable: late || neglects || loses_tokens || faults.iter().any(Fault::fails_requests),
            // Several masters that were restarted have no vote for long, and connections end with a runtime that is theirs.
            unavailable_in_the_end: !self.over_streams
                || self.has(|kind| matches!(kind, FaultKind::Restart(..)))
                || !setup.portable && self.has(|kind| matches!(kind, FaultKind::EndsRuntime(_))),
            closed: self.has_op(|op| matches!(op, Op::Close))
                || self.has(|kind| matches!(kind, FaultKind::EndsRuntime(_))),
            losses: late || forces || unrenewed || faults.iter().any(Fault::ends_holds),
            answered_within: (!late && !neglects && !unpolled).then_some(answered),
            calm: self.is_calm() && !neglects && !forces && !self.has_op(|op| matches!(op, Op::Close)),
            checks_see: setup.masters == 1
                && !self.has(|kind| matches!(kind, FaultKind::Steps(..)))
                && !faults.iter().any(|fault| fault.is_late() || fault.holds_bytes()),
            foreign: self.has(|kind| matches!(kind, FaultKind::Foreign(..))),
            forgets: self.has(|kind| matches!(kind, FaultKind::Restart(_, false) | FaultKind::Suspend(..)))
                || forces,
        }
    }

    /// Whether a master may come back without its counters, and the time from which new ones begin may be earlier by then.
    pub(super) fn restarts_tokens(&self) -> bool {
        // `portable`: the processes' clocks, which differ, are what a token is made from where there is no counter.
        let clocks_differ = self.setup.portable || self.sets_a_clock_back();
        clocks_differ && self.has(|kind| matches!(kind, FaultKind::Restart(_, false)))
    }

    /// Whether the time from which a new counter begins may be earlier than one that was read before: the master's was set back, or
    /// another process, whose clock is behind, asks.
    pub(super) fn time_may_go_back(&self) -> bool {
        let setup = &self.setup;
        if setup.masters > 1 || setup.portable {
            return setup.processes > 1;
        }
        self.sets_a_clock_back()
    }

    /// Whether a command that a full master has refused may run all the same: its repeat arrives when there is room again. It counts a
    /// level that nobody has, until the next command states the count.
    pub(super) fn runs_what_was_refused(&self) -> bool {
        self.has(|kind| matches!(kind, FaultKind::RepeatsCommands(..)))
            && self.has(|kind| matches!(kind, FaultKind::Full(..)))
    }

    fn sets_a_clock_back(&self) -> bool {
        self.has(|kind| matches!(kind, FaultKind::Steps(_, _, Step::Back)))
    }

    /// Whether nothing but the network takes time.
    fn is_calm(&self) -> bool {
        self.faults.is_empty() && !self.is_polled_late()
    }

    /// Whether a command may have no answer in time since tasks are polled late.
    fn is_polled_late(&self) -> bool {
        // Those of a connection too, and a command may be sent by the name of its script and by its text.
        let polls = if self.over_streams { 16 } else { 4 };
        self.setup.lateness > self.setup.node_timeout / polls
    }

    /// The longest that a request may wait in a calm run with nobody before it.
    pub(super) fn network_time(&self) -> Duration {
        let Program { setup, callers, .. } = self;
        let has = |is: fn(&Op) -> bool| self.has_op(is);
        let each = |time: Duration| time * callers.len() as u32;
        let mut time = SECOND / 10 + 20 * (setup.latency + setup.lateness);
        if self.over_streams {
            // A connection for messages is made first, and an idle subscription stays for a moment.
            time += 2 * SECOND + 60 * (setup.latency + setup.lateness);
        }
        if setup.masters > 1 {
            // Requests that split the votes pause, longer each time.
            time += 12 * SECOND;
        }
        if has(|op| matches!(op, Op::GivenUp(..))) {
            time += each(8 * (setup.latency + setup.lateness));
        }
        if self.neglects() {
            // A grant that nobody looks at is given up, and a head that does not come is passed over.
            time += each(2 * setup.node_timeout + SECOND / 5);
        }
        time
    }

    fn neglects(&self) -> bool {
        self.has_op(|op| match op {
            Op::Neglected(..) => true,
            Op::Resume(_, how) => how.neglect.is_some(),
            _ => false,
        })
    }

    /// The longest that a request may wait with nobody before it, from the end of all trouble on.
    pub(super) fn patience(&self) -> Duration {
        // What is handed over, or kept, is nobody's here, and stands for as long as that.
        let claimed = if self.hands_over() { self.setup.longest_lease } else { Duration::ZERO };
        self.patience_with_holders() + (claimed + self.kept()) * 6 / 5
    }

    fn hands_over(&self) -> bool {
        self.has_op(|op| matches!(op, Op::Lock(of) | Op::Resume(of, _) if of.end == End::HandOver))
    }

    /// For how long locks are kept after their release, all together.
    fn kept(&self) -> Duration {
        let mut kept = Duration::ZERO;
        self.each_op(&mut |op| {
            if let Op::Lock(of) | Op::Run(of) = op {
                kept += of.at_least.unwrap_or_default();
            }
        });
        kept
    }

    /// Whether a lock may stand that nobody has.
    pub(super) fn leaves_locks(&self) -> bool {
        self.hands_over() || self.leaks() || !self.kept().is_zero()
    }

    fn patience_with_holders(&self) -> Duration {
        let Program { setup, callers, .. } = self;
        if self.is_calm() {
            // Who polls asks every quarter of a second, and before it has been in the line for the first time it pauses as long.
            return self.network_time() + if setup.polls { SECOND / 2 } else { Duration::ZERO };
        }
        let mut patience = 10 * SECOND + 10 * setup.node_timeout + self.network_time();
        if self.over_streams {
            // That a connection is dead is found out first, and then another one is made.
            patience += 5 * SECOND;
        }
        let deadly = |kind: &FaultKind| matches!(kind, FaultKind::Crash(_) | FaultKind::EndsRuntime(_));
        if self.has(deadly) || self.leaks() {
            patience += setup.longest_lease;
        }
        for fault in &self.faults {
            match fault.kind {
                // Leases last longer there.
                FaultKind::Steps(_, by, Step::Back) => patience += by + setup.longest_lease,
                // A key that is over early is released without a message: others wait for the end that was answered to them.
                FaultKind::Steps(_, _, Step::Forward) => patience += setup.longest_lease,
                _ => {}
            }
        }
        // What comes late may leave a field that nobody holds; who has missed a message looks again by himself.
        if self.faults.iter().any(|fault| fault.is_late() || self.over_streams && fault.holds_bytes()) {
            patience += setup.longest_lease;
        }
        // Where most masters have no vote, each request in line finds that out by itself: what they end is answered.
        if setup.masters > 1 && self.has(|kind| matches!(kind, FaultKind::Restart(..))) {
            patience += 11 * SECOND * callers.len() as u32;
        }
        // Over streams no message is lost alone: the subscription is made anew, and who waits asks again.
        if !self.over_streams && self.has(|kind| matches!(kind, FaultKind::LosesMessages(..))) {
            patience += setup.poll_interval;
        }
        if self.has(|kind| matches!(kind, FaultKind::Deletes(..) | FaultKind::Foreign(..))) {
            patience += setup.poll_interval.min(setup.longest_lease);
        }
        patience
    }

    pub(super) fn leaks(&self) -> bool {
        self.has_op(|op| matches!(op, Op::Lock(locking) if locking.end == End::Leak))
    }
}
