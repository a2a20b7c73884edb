//! What the masters are asked.

use crate::base::MasterSet;
use crate::wire::Step;

/// What is asked for, as far as it matters to how votes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// The lock, for a new field.
    Fresh,
    /// Something about a hold that is there, or should be.
    Standing,
    /// The end of a hold. `repeated`: asked before, so "not there" is what it would answer after success.
    End { repeated: bool },
    /// The end of what a minority may still have: each master for itself.
    Remains,
    /// What some masters lack is to be put there: nobody waits for it.
    Repair,
    /// The end of whatever hold there is.
    Force,
    /// Whether there is any hold.
    Look,
    /// When a majority may be had, if nobody renews what is in the way.
    Left,
}

impl Question {
    pub(crate) fn of(step: Step, masters: MasterSet, repeated: bool) -> Question {
        match step {
            Step::Acquire { count: 1, .. } => Question::Fresh,
            Step::Release { count: 0 } if masters != MasterSet::ALL => Question::Remains,
            Step::Release { count: 0 } => Question::End { repeated },
            Step::Repair { .. } => Question::Repair,
            _ => Question::Standing,
        }
    }
}
