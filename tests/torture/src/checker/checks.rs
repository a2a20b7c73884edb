//! What a check confirms stands.

use super::history::{History, Hold};

/// A check of a hold confirmed it after the lock was granted to another.
#[derive(Debug)]
pub(crate) struct Confirmed {
    pub(crate) name: String,
    pub(crate) hold: Hold,
    /// When the check was asked.
    pub(crate) at: u64,
    pub(crate) other: Hold,
}

/// Checks that began behind the grant of a later hold: the earlier one was over then, whatever had become of the later
/// one, and had to be reported as lost.
///
/// 1. The servers lose a hold, as documented. 2. Another owner is granted the lock. 3. The first one checks its hold.
///
/// That both hold is excused, and that the check confirms it is not.
pub(super) fn confirmed_too_late(history: &History) -> Vec<Confirmed> {
    let mut found = Vec::new();
    for (name, holds) in &history.holds {
        for (place, hold) in holds.iter().enumerate() {
            let Some((last, _)) = hold.checks.last() else { continue };
            let later = holds[place..].iter().take_while(|other| other.granted < *last);
            // By its grant alone, one that was asked for before may have been granted before.
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
