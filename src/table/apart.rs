//! `Apart`: where the masters are unlike each other about a hold.

use std::num::NonZeroU64;
use std::ops::Deref;

use crate::base::{Absence, MasterSet, Spread};

/// What the masters may have of a hold, where it is not the same on all of them. Mostly it is: a pointer then.
#[derive(Debug, Default)]
pub(super) struct Apart(Option<Box<Differences>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Differences {
    /// Masters that lack it, those where it may stand though it is gone, and those whose answers are still to come.
    pub(super) spread: Spread,
    pub(super) absence: Absence,
    /// Masters whose answer to what makes the field came while another command, as its end, was under way there: what that finds shows
    /// which of the two ran first. 1. A master does not know the acquire's script; two others grant. 2. The end of the hold runs there, and
    /// finds nothing. 3. The acquire runs, by the text of its script. Its answer may be looked at before the end's.
    pub(super) late: MasterSet,
    /// Masters where what makes the field had no answer while the hold stood. It may run yet, behind an end that finds nothing:
    /// over a connection that was replaced since.
    pub(super) unsure: MasterSet,
    /// When the key ends on one of them, by its clock, though no lease that was asked for explains such a TTL.
    pub(super) too_long: Option<NonZeroU64>,
    /// Such a TTL was shortened: the command may run yet.
    pub(super) shortens: bool,
}

impl Differences {
    const NONE: Differences = Differences {
        spread: Spread::NONE,
        absence: Absence::NONE,
        late: MasterSet::NONE,
        unsure: MasterSet::NONE,
        too_long: None,
        shortens: false,
    };
}

impl Deref for Apart {
    type Target = Differences;

    #[inline]
    fn deref(&self) -> &Differences {
        self.0.as_deref().unwrap_or(&Differences::NONE)
    }
}

impl Apart {
    /// They are not alike everywhere.
    pub(super) fn is_somewhere(&self) -> bool {
        self.0.is_some()
    }

    /// The only way in which it changes.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Differences)) {
        let mut changed = **self;
        change(&mut changed);
        match &mut self.0 {
            _ if changed == Differences::NONE => self.0 = None,
            Some(differences) => **differences = changed,
            none => *none = Some(Box::new(changed)),
        }
    }

    #[inline]
    pub(super) fn set_lacking(&mut self, masters: MasterSet) {
        if masters != self.spread.lacking {
            self.change(|apart| apart.spread.lacking = masters);
        }
    }

    pub(super) fn set_spread(&mut self, spread: Spread) {
        if spread != self.spread {
            self.change(|apart| apart.spread = spread);
        }
    }

    /// What these have answered before goes before what is asked of them now.
    #[inline]
    pub(super) fn is_not_late(&mut self, masters: MasterSet) {
        if !self.late.is_empty() {
            self.change(|apart| apart.late = apart.late.without(masters));
        }
    }
}
