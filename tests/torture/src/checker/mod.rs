//! What the logs of a run must show, and what they do show.
//!
//! All times are of one clock. A hold is assumed to be as short as it can have been: from the return of its request to the call of its
//! release, its own deadline, or the last time at which it was seen to be good.

mod checks;
mod claimed;
mod exclusion;
mod history;
mod kept;
mod recovery;
mod tokens;
mod waits;

pub(crate) use checks::Confirmed;
pub(crate) use claimed::Misclaim;
pub(crate) use exclusion::Overlap;
pub(crate) use history::{History, Hold, Try};
pub(crate) use recovery::{Recovery, recoveries};
pub(crate) use waits::Wait;

/// What the checker has found.
pub(crate) struct Findings {
    /// Pairs of holds that overlap.
    pub(crate) overlaps: Vec<Overlap>,
    /// Pairs of holds that overlap, in which servers may have lost the first one, as documented.
    pub(crate) documented: Vec<Overlap>,
    /// By name: pairs of holds in which the later one has no greater token.
    pub(crate) disorders: Vec<(String, Hold, Hold)>,
    /// By name: holds that were gone although no server lost anything.
    pub(crate) lost: Vec<(String, Hold)>,
    /// Checks that confirmed a hold that was over.
    pub(crate) confirmed: Vec<Confirmed>,
    /// Claims that were resumed twice, or wrongly refused.
    pub(crate) misclaims: Vec<Misclaim>,
    /// By name: holds with a time of `at_least`, each with a hold that was granted before that time was over.
    pub(crate) too_early: Vec<(String, Hold, Hold)>,
    /// For how long free locks stayed free.
    pub(crate) waits: Vec<Wait>,
}

impl Findings {
    pub(crate) fn of(history: &History) -> Findings {
        let all = exclusion::overlaps(history);
        let (documented, overlaps) = all.into_iter().partition(|overlap| overlap.documented);
        Findings {
            overlaps,
            documented,
            disorders: tokens::disorders(history),
            confirmed: checks::confirmed_too_late(history),
            misclaims: claimed::misclaims(history),
            too_early: kept::granted_before_their_time(history),
            lost: exclusion::unexplained_losses(history),
            waits: waits::waits(history),
        }
    }

    /// Returns the locks that were free for too long.
    pub(crate) fn slow(&self) -> impl Iterator<Item = &Wait> {
        self.waits.iter().filter(|wait| wait.is_too_long())
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
