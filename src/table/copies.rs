//! `Copies`: how the masters differ from each other about a hold.

use std::num::NonZeroU64;
use std::ops::Deref;

use crate::base::{MasterSet, Spread};

/// What the masters have of a hold where they differ. Boxed, since they rarely do.
#[derive(Debug, Default)]
pub(super) struct Copies(Option<Box<Differences>>);

/// A maker is a command that makes the field: an acquire, a move, or a repair. A master got none (`absent`), one, or maybe two
/// (`repaired`). While a maker may still run on a master, the master is `open`: an end that finds nothing there is sent once
/// more.
///
/// Why is an end not just owed until one is answered that was sent after all makers were closed? Because nothing closes a maker well. If
/// only its answer did, an unreachable master, which never answers, would be sent ends for a whole lease. If giving it up did too: 1. The
/// maker waits in a connection that is replaced. 2. The end is sent over the new connection, and finds nothing. 3. The maker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Differences {
    /// While the hold exists: masters that lack its field, so that it has to be written to them.
    pub(super) lacking: MasterSet,
    /// Once the hold is gone: masters that may still have its field, so that its end has to be sent to them.
    pub(super) remains: MasterSet,
    /// Once the hold is gone: masters that have not answered its end yet, or the acquire that was refused.
    pub(super) unanswered: MasterSet,
    /// Masters that certainly do not have its field, so that its end need not be sent to them. Otherwise: 1. A master is unreachable for
    /// a long time. 2. The end of each lock that is taken and released in that time is sent to it again and again, for a lease.
    pub(super) absent: MasterSet,
    /// While the hold exists: masters that lacked its field when a majority last confirmed it, and have not been given it since.
    pub(super) never_had: MasterSet,
    /// Masters that were later asked to write the field.
    pub(super) repaired: MasterSet,
    /// Masters where a maker may run, or have run, after an end that finds nothing: the maker had no answer, or was answered while
    /// another command of the hold was under way. So such an end is sent once more. Otherwise: 1. A master does not know the acquire's
    /// script; two others grant. 2. The end of the hold runs there, and finds nothing. 3. The acquire runs, by the text of its script
    /// or over a connection that was replaced since. Its answer may be looked at before the end's.
    pub(super) open: MasterSet,
    /// When the key expires on one of the masters, by that master's clock, if no requested lease explains such a TTL.
    pub(super) too_long: Option<NonZeroU64>,
    /// Whether such a TTL is being shortened: the command for that may still run.
    pub(super) shortens: bool,
}

impl Differences {
    const NONE: Differences = Differences {
        lacking: MasterSet::NONE,
        remains: MasterSet::NONE,
        unanswered: MasterSet::NONE,
        absent: MasterSet::NONE,
        never_had: MasterSet::NONE,
        repaired: MasterSet::NONE,
        open: MasterSet::NONE,
        too_long: None,
        shortens: false,
    };

    /// Notes that the acquire did not make the field on these masters. Those that were asked to repair it may have it all the same.
    pub(super) fn note_absent(&mut self, masters: MasterSet) {
        self.absent = self.absent.union(masters.without(self.repaired));
        self.remains = self.remains.without(self.absent);
    }

    /// Returns the masters that may have the field though the hold is gone.
    pub(super) fn left(&self) -> MasterSet {
        self.remains.union(self.unanswered)
    }

    /// Notes which masters answered the end, and which masters reported, to the end or to another command, that they have no
    /// field. Returns the masters that need one more end.
    pub(super) fn note_end(&mut self, ended: MasterSet, missing: MasterSet) -> MasterSet {
        // If there were two makers, one may have made the field that the end found, and the other may still run.
        let again = self.open.within(missing.union(self.repaired.within(ended)));
        self.open = self.open.without(ended);
        again
    }

    /// Notes that these masters are asked to write the field.
    pub(super) fn note_repair(&mut self, masters: MasterSet) {
        self.repaired = self.repaired.union(masters);
        self.absent = self.absent.without(masters);
        // Not of other masters, about which it says nothing. Otherwise: 1. An old master never had the hold. 2. A young one has lost it, is
        // asked to write it, and can't. 3. The old one would seem to have lost it too, and the young one would not be asked again.
        self.never_had = self.never_had.without(masters);
        self.lacking = self.lacking.without(masters);
    }
}

impl Deref for Copies {
    type Target = Differences;

    #[inline]
    fn deref(&self) -> &Differences {
        self.0.as_deref().unwrap_or(&Differences::NONE)
    }
}

impl Copies {
    /// Returns whether the masters differ anywhere.
    pub(super) fn differ(&self) -> bool {
        self.0.is_some()
    }

    /// Changes the differences. All changes go through here.
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut Differences) -> T) -> T {
        let mut changed = **self;
        let result = change(&mut changed);
        match &mut self.0 {
            _ if changed == Differences::NONE => self.0 = None,
            Some(differences) => **differences = changed,
            none => *none = Some(Box::new(changed)),
        }
        result
    }

    /// Notes which masters may have the field though the hold is gone.
    pub(super) fn set_left(&mut self, spread: Spread) {
        self.change(|copies| (copies.remains, copies.unanswered) = (spread.remains, spread.unanswered));
    }

    /// Notes which masters lack the field while a majority has it.
    #[inline]
    pub(super) fn set_lacking(&mut self, masters: MasterSet) {
        if masters != self.lacking || masters != self.never_had {
            self.change(|copies| (copies.lacking, copies.never_had) = (masters, masters));
        }
    }
}

#[cfg(test)]
mod tests;
