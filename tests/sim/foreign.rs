//! What a master answers while another program uses the key of a lock, and while the master is full.

use std::time::Duration;

use crate::base::Outcome;
use crate::holder::Holder as HeldBy;
use crate::sim::program::Foreign;
use crate::wire::{Action, Call, Reply};

/// The holder of a lock on a master: its field and its count.
pub(super) type Holder = Option<(String, u32)>;

/// What happens to a command.
pub(super) enum Fate {
    Runs(Call),
    /// The command runs, but not everything can be written, so its reply is `Deferred` instead of `Done`.
    RunsInPart(Call),
    Answered(Reply),
    /// The script fails with an error, which shows this outcome.
    Refused(Outcome),
}

impl Foreign {
    /// Returns what happens to a command for a name that another program uses. `left`: for how long the other program uses it.
    pub(super) fn meets(self, call: Call, holder: &Holder, left: Duration) -> Fate {
        match self {
            Foreign::Text => Fate::Answered(match call.action {
                Action::Acquire { count: 1, .. } | Action::Force | Action::Look | Action::Who => {
                    Reply::NotALock("a string without a TTL".to_owned())
                }
                _ => Reply::Gone,
            }),
            Foreign::Lock => Fate::Answered(match call.action {
                Action::Acquire { count: 1, .. } | Action::Look => Reply::busy(left),
                Action::Force | Action::Who => {
                    Reply::NotALock("a string, which is no lock of this kind".to_owned())
                }
                _ => Reply::Gone,
            }),
            // If the foreign field is beside ours, it changes nothing, but keeps the key when ours goes.
            Foreign::Field if holder.is_some() => {
                // The key stays in that case, so the lock is not handed on.
                let line = call.line.filter(|_| call.action != Action::END);
                Fate::Runs(Call { line, ..call })
            }
            Foreign::Field => Fate::Answered(match call.action {
                Action::Who => Reply::held_by(HeldBy::new("another", 1, left)),
                Action::Acquire { count: 1, .. } | Action::Look if call.report_holder => {
                    Reply::held_by(HeldBy::new("another", 1, left))
                }
                Action::Acquire { count: 1, .. } | Action::Look => Reply::busy(left),
                Action::Force => Reply::Done,
                _ => Reply::Gone,
            }),
            Foreign::Counter if call.fence.is_none() => Fate::Runs(call),
            Foreign::Counter => match call.action {
                Action::Acquire { .. } => Fate::Answered(Reply::NotACounter("a list".to_owned())),
                _ => Fate::RunsInPart(Call { fence: None, ..call }),
            },
        }
    }
}

/// Returns what happens to a command on a full master, which deletes and expires keys but writes nothing else. `counts`: whether the
/// fencing counter is as high as it should be.
pub(super) fn meets_full(call: Call, holder: &Holder, counts: bool) -> Fate {
    let ours = holder.as_ref().filter(|(field, _)| **field == *call.field).map(|(_, count)| *count);
    let unfenced = |call: Call| Call { fence: call.fence.filter(|_| counts), ..call };
    match call.action {
        Action::Acquire { count: 1, .. } if holder.is_none() => Fate::Refused(Outcome::NotRun),
        Action::Repair { .. } if holder.is_none() => Fate::Refused(Outcome::Unknown),
        Action::Acquire { count, .. } if ours.is_some_and(|held| held < count) => {
            Fate::Refused(Outcome::NotRun)
        }
        // On a full master no process enters a line.
        Action::Acquire { .. } if ours.is_none() && call.line.is_some() => {
            Fate::Runs(Call { line: None, report_holder: true, ..call })
        }
        Action::Release { count: wanted @ 1.. } if ours.is_some_and(|held| held > wanted) => {
            Fate::Answered(Reply::Deferred("OOM".to_owned()))
        }
        Action::Move { .. }
            if holder.as_ref().is_some_and(|(held, _)| Some(&**held) == call.from.as_deref()) =>
        {
            Fate::Refused(Outcome::NotRun)
        }
        Action::Settle { count, lease } | Action::Repair { count, lease }
            if count > 0 && ours.is_some_and(|held| held != count) =>
        {
            Fate::RunsInPart(unfenced(Call { action: Action::Renew { lease }, ..call }))
        }
        Action::Renew { .. } | Action::Settle { .. } | Action::Repair { .. } if !counts => {
            Fate::RunsInPart(unfenced(call))
        }
        _ => Fate::Runs(call),
    }
}
