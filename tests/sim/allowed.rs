//! What a program excuses: errors and losses, how long a request waits, and tokens that do not grow.

use std::time::Duration;

use crate::sim::program::{End, Fault, FaultKind, Op, Program, Step};

const SECOND: Duration = Duration::from_secs(1);

/// What the promises allow in this run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    /// Requests may fail, since masters were unavailable.
    pub(super) unavailable: bool,
    /// Requests may fail even at the end, when nothing has failed for a long time.
    pub(super) unavailable_in_the_end: bool,
    pub(super) closed: bool,
    /// Holds may be lost although they are renewed.
    pub(super) losses: bool,
    /// Masters may lose holds that they granted.
    pub(super) forgets: bool,
    /// Nothing goes wrong, and each future is polled when it is woken, until it completes.
    pub(super) calm: bool,
    /// A check reports each hold that is gone.
    pub(super) checks_see: bool,
    /// Other programs use the keys.
    pub(super) foreign: bool,
    /// How long a release, and other calls that do not wait for a lock, may take. `None`: any time, since
    /// their futures may go unpolled.
    pub(super) answered_within: Option<Duration>,
}

impl Program {
    pub(super) fn allowed(&self) -> Allowed {
        let Program { setup, faults, .. } = self;
        let late = self.is_polled_late();
        let forces = self.has_op(|op| matches!(op, Op::Force(_)));
        let neglects = self.neglects();
        // A command whose answer nobody polls for keeps renewals waiting.
        let unrenewed = neglects && 2 * setup.node_timeout > setup.lease / 2;
        let unpolled = self.has(|kind| matches!(kind, FaultKind::Freeze(_) | FaultKind::Suspend(..)));
        let answered = self.network_time() + 3 * setup.node_timeout;
        // 1. The masters' counters differ, so a token has to be raised on a majority. 2. The lock is released
        // by force before that.
        let loses_tokens = forces && setup.masters > 1 && setup.fenced.contains(&true);
        Allowed {
            unavailable: late || neglects || loses_tokens || faults.iter().any(Fault::fails_requests),
            // Several masters that were restarted have no vote for a long time. Connections that belong to a runtime end with it.
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

    /// Returns whether a master may come back without its counters when the time from which new counters
    /// begin is earlier than before.
    pub(super) fn restarts_tokens(&self) -> bool {
        // With `portable`, a token without a counter is made from the process's clock, and the clocks of the processes differ.
        let clocks_differ = self.setup.portable || self.sets_a_clock_back();
        clocks_differ && self.has(|kind| matches!(kind, FaultKind::Restart(_, false)))
    }

    /// Returns whether the time from which a new counter begins may be earlier than a time that was read
    /// before: if the master's clock was set back, or if another process asks, whose clock is behind.
    pub(super) fn time_may_go_back(&self) -> bool {
        let setup = &self.setup;
        if setup.masters > 1 || setup.portable {
            return setup.processes > 1;
        }
        self.sets_a_clock_back()
    }

    /// Returns whether a command that a full master has refused may still run, because its repeat arrives when there is room again. It then
    /// counts a level that nobody has, until the next command states the count.
    pub(super) fn runs_what_was_refused(&self) -> bool {
        self.has(|kind| matches!(kind, FaultKind::RepeatsCommands(..)))
            && self.has(|kind| matches!(kind, FaultKind::Full(..)))
    }

    fn sets_a_clock_back(&self) -> bool {
        self.has(|kind| matches!(kind, FaultKind::Steps(_, _, Step::Back)))
    }

    /// Returns whether only the network takes time.
    fn is_calm(&self) -> bool {
        self.faults.is_empty() && !self.is_polled_late()
    }

    /// Returns whether a command may have no answer in time because tasks are polled late.
    fn is_polled_late(&self) -> bool {
        // Over streams the tasks of a connection are polled late too, and a command may be sent twice: by its script's hash, and by its
        // text.
        let polls = if self.over_streams { 16 } else { 4 };
        self.setup.lateness > self.setup.node_timeout / polls
    }

    /// Returns the longest time that a request may wait in a calm run with nobody before it.
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
            // A grant that nobody polls for is given up, and a head that is not polled is passed over.
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

    /// Returns the longest time that a request may wait with nobody before it, once all faults are over.
    pub(super) fn patience(&self) -> Duration {
        // A lock that was handed over or kept has no level here, but it stands for this time.
        let claimed = if self.hands_over() { self.setup.longest_lease } else { Duration::ZERO };
        self.patience_with_holders() + (claimed + self.kept()) * 6 / 5
    }

    fn hands_over(&self) -> bool {
        self.has_op(|op| matches!(op, Op::Lock(of) | Op::Resume(of, _) if of.end == End::HandOver))
    }

    /// Returns the sum of the times for which locks are kept after their release.
    fn kept(&self) -> Duration {
        let mut kept = Duration::ZERO;
        self.each_op(&mut |op| {
            if let Op::Lock(of) | Op::Run(of) = op {
                kept += of.at_least.unwrap_or_default();
            }
        });
        kept
    }

    /// Returns whether a lock may stand although no caller holds it.
    pub(super) fn leaves_locks(&self) -> bool {
        self.hands_over() || self.leaks() || !self.kept().is_zero()
    }

    fn patience_with_holders(&self) -> Duration {
        let Program { setup, callers, .. } = self;
        if self.is_calm() {
            // A process that polls asks every quarter of a second. Before its first time in the line it pauses for as long.
            return self.network_time() + if setup.polls { SECOND / 2 } else { Duration::ZERO };
        }
        let mut patience = 10 * SECOND + 10 * setup.node_timeout + self.network_time();
        if self.over_streams {
            // The client first has to notice that a connection is dead, and then makes another one.
            patience += 5 * SECOND;
        }
        let deadly = |kind: &FaultKind| matches!(kind, FaultKind::Crash(_) | FaultKind::EndsRuntime(_));
        if self.has(deadly) || self.leaks() {
            patience += setup.longest_lease;
        }
        for fault in &self.faults {
            match fault.kind {
                // Leases last longer on such a master.
                FaultKind::Steps(_, by, Step::Back) => patience += by + setup.longest_lease,
                // A key that ends too early is released without a message. Others wait until the end that they were told.
                FaultKind::Steps(_, _, Step::Forward) => patience += setup.longest_lease,
                _ => {}
            }
        }
        // A late command may leave a field that nobody holds, and a process that has missed a message only asks again by itself.
        if self.faults.iter().any(|fault| fault.is_late() || self.over_streams && fault.holds_bytes()) {
            patience += setup.longest_lease;
        }
        // If most masters have no vote, each request in a queue has to find that out itself, although
        // releases are answered.
        if setup.masters > 1 && self.has(|kind| matches!(kind, FaultKind::Restart(..))) {
            patience += 11 * SECOND * callers.len() as u32;
        }
        // Over streams no message is lost alone: the client subscribes again, and the waiter asks again.
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
