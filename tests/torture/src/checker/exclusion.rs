//! Holds of different owners do not overlap, and no hold is lost without a reason.

use super::history::{History, Hold};

/// Two holds of one lock at the same time.
#[derive(Debug)]
pub(crate) struct Overlap {
    pub(crate) name: String,
    pub(crate) first: Hold,
    pub(crate) second: Hold,
    /// Whether the servers may have lost the first hold, as documented.
    pub(crate) documented: bool,
}

impl Overlap {
    /// Returns for how long both were held.
    pub(crate) fn nanos(&self) -> u64 {
        self.first.end.min(self.second.end) - self.second.granted
    }
}

pub(super) fn overlaps(history: &History) -> Vec<Overlap> {
    let mut found = Vec::new();
    for (name, holds) in &history.holds {
        let mut open: Vec<&Hold> = Vec::new();
        for hold in holds {
            open.retain(|before| before.end > hold.granted);
            // A hold that was over when its grant was seen overlaps with nothing.
            if hold.end <= hold.granted {
                continue;
            }
            for before in &open {
                // The order is unknown: this hold may have been granted before the other one, and reported late.
                if history.may_have_been_forced(name, before.asked.min(hold.asked), hold.granted) {
                    continue;
                }
                let documented = history.may_have_lost(before.asked.min(hold.asked), hold.granted);
                let (name, first, second) = (name.clone(), (*before).clone(), hold.clone());
                found.push(Overlap { name, first, second, documented });
            }
            open.push(hold);
        }
    }
    found
}

/// Returns the holds that were reported as gone although no server lost anything.
pub(super) fn unexplained_losses(history: &History) -> Vec<(String, Hold)> {
    let all = history.holds.iter().flat_map(|(name, holds)| holds.iter().map(move |hold| (name, hold)));
    let lost = all.filter_map(|(name, hold)| Some((name, hold, hold.gone?)));
    lost.filter(|(_, hold, gone)| !history.may_have_lost(hold.asked, *gone))
        .filter(|(name, hold, gone)| !history.may_have_been_forced(name, hold.asked, *gone))
        .map(|(name, hold, _)| (name.clone(), hold.clone()))
        .collect()
}
