//! `Copies`: how the masters differ from each other about a hold.

use std::num::NonZeroU64;
use std::ops::Deref;

use crate::base::{MasterSet, Spread};

/// What the masters may have of a hold if they differ. Mostly they do not, so this takes one pointer.
#[derive(Debug, Default)]
pub(super) struct Copies(Option<Box<Differences>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Differences {
    /// Masters that lack it, those that may have it though it is gone, and those that are still to answer.
    pub(super) spread: Spread,
    /// Masters that certainly do not have its field, so that its end need not be sent to them. Otherwise: 1. A master is away for a long
    /// time. 2. The end of each lock that is taken and released in that time is sent to it again and again, for a lease.
    pub(super) absent: MasterSet,
    /// Masters that lacked its field when a majority last confirmed it, and have not been given it since.
    pub(super) never_had: MasterSet,
    /// Masters that were asked later to write the field.
    pub(super) repaired: MasterSet,
    /// Masters whose answer to a maker of the field came while another command, such as its end, was under way there: the answer to
    /// that command shows which of the two ran first. 1. A master does not know the acquire's script; two others grant. 2. The end
    /// of the hold runs there, and finds nothing. 3. The acquire runs, by the text of its script. Its answer may be looked at
    /// before the end's.
    pub(super) late: MasterSet,
    /// Masters where a maker of the field had no answer while the hold existed. It may still run after an end that finds nothing:
    /// over a connection that was replaced since.
    pub(super) unsure: MasterSet,
    /// When the key ends on one of them, by that master's clock, if no requested lease explains such a TTL.
    pub(super) too_long: Option<NonZeroU64>,
    /// Whether such a TTL is being shortened: the command may still run.
    pub(super) shortens: bool,
}

impl Differences {
    const NONE: Differences = Differences {
        spread: Spread::NONE,
        absent: MasterSet::NONE,
        never_had: MasterSet::NONE,
        repaired: MasterSet::NONE,
        late: MasterSet::NONE,
        unsure: MasterSet::NONE,
        too_long: None,
        shortens: false,
    };

    /// Notes that the acquire did not run on these masters.
    pub(super) fn note_absent(&mut self, masters: MasterSet) {
        self.absent = self.absent.union(masters.without(self.repaired));
    }

    /// Notes that these masters are asked to write the field.
    pub(super) fn note_repair(&mut self, masters: MasterSet) {
        self.repaired = self.repaired.union(masters);
        self.absent = self.absent.without(masters);
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

    /// Changes the differences. There is no other way to do so.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Differences)) {
        let mut changed = **self;
        change(&mut changed);
        match &mut self.0 {
            _ if changed == Differences::NONE => self.0 = None,
            Some(differences) => **differences = changed,
            none => *none = Some(Box::new(changed)),
        }
    }

    /// Notes which masters lack it while a majority has it.
    #[inline]
    pub(super) fn set_lacking(&mut self, masters: MasterSet) {
        if masters != self.spread.lacking || masters != self.never_had {
            self.change(|copies| (copies.spread.lacking, copies.never_had) = (masters, masters));
        }
    }

    /// Removes these masters from `late`: their earlier answers came before the command that is sent to them now.
    #[inline]
    pub(super) fn clear_late(&mut self, masters: MasterSet) {
        if !self.late.is_empty() {
            self.change(|copies| copies.late = copies.late.without(masters));
        }
    }
}

#[cfg(test)]
mod tests;
