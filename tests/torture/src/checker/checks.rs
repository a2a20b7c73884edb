//! A hold that a check confirms still stands.

use super::history::{History, Hold};

/// A check that confirmed a hold after the lock was granted to another owner.
#[derive(Debug)]
pub(crate) struct Confirmed {
    pub(crate) name: String,
    pub(crate) hold: Hold,
    /// When the check began.
    pub(crate) at: u64,
    pub(crate) other: Hold,
}

/// Finds checks that began after the grant of a later hold and still confirmed the earlier one. The earlier hold was over then, whatever
/// had become of the later one, and had to be reported as lost.
///
/// 1. The servers lose a hold, as documented. 2. Another owner is granted the lock. 3. The first owner checks its hold.
///
/// It is excused that both have a hold then, but not that the check confirms the first one.
pub(super) fn confirmed_too_late(history: &History) -> Vec<Confirmed> {
    let mut found = Vec::new();
    for (name, holds) in &history.holds {
        for (place, hold) in holds.iter().enumerate() {
            let Some((last, _)) = hold.checks.last() else { continue };
            let later = holds[place..].iter().take_while(|other| other.granted < *last);
            // The order of two grants is certain only if the later hold was also asked for after the first grant.
            let Some(other) =
                later.filter(|other| hold.granted < other.asked).min_by_key(|other| other.granted)
            else {
                continue;
            };
            let check = hold
                .checks
                .iter()
                .find(|(from, at)| other.granted < *from && !history.may_have_revived(other.asked, *at));
            if let Some((at, _)) = check {
                let (name, hold, other) = (name.clone(), hold.clone(), other.clone());
                found.push(Confirmed { name, hold, at: *at, other });
            }
        }
    }
    found
}
