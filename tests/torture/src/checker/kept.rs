//! Nobody else gets a lock that is kept before its time is over.

use super::history::{History, Hold};
use crate::clock::nanos;
use crate::job::{LEASE, NODE_TIMEOUT};

/// Returns, by name, holds whose time of `at_least` was not over, each with a hold that was granted too early after it.
///
/// A release that succeeded is a promise. If nobody waited for the release, faults may have delayed its command until after the end of the
/// lease.
pub(super) fn granted_before_their_time(history: &History) -> Vec<(String, Hold, Hold)> {
    let aftermath = nanos(LEASE + 2 * NODE_TIMEOUT);
    let mut found = Vec::new();
    for (name, holds) in &history.holds {
        for (place, hold) in holds.iter().enumerate() {
            let Some(kept) = hold.kept else { continue };
            // A hold that is granted before this one ended is an overlap, and is not counted here.
            let mut later = holds[place + 1..].iter().skip_while(|other| other.granted < hold.end);
            let Some(other) = later.next().filter(|other| other.granted < kept) else { continue };
            let promised = hold.is_released || history.is_calm(hold.asked, other.granted, aftermath);
            if promised
                && !history.may_have_been_forced(name, hold.asked, other.granted)
                && !history.may_have_lost(hold.asked, other.granted)
            {
                found.push((name.clone(), hold.clone(), other.clone()));
            }
        }
    }
    found
}
