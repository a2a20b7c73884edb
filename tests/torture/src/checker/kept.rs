//! A lock that is kept is nobody else's before its time.

use super::history::{History, Hold};
use crate::clock::nanos;
use crate::job::{LEASE, NODE_TIMEOUT};

/// By name: holds with a time that was not over, and those that were granted behind them before it was.
///
/// A release that succeeded is a promise. Of one that nobody waited for, faults may have delayed the command behind the end of the lease.
pub(super) fn granted_before_their_time(history: &History) -> Vec<(String, Hold, Hold)> {
    let aftermath = nanos(LEASE + 2 * NODE_TIMEOUT);
    let mut found = Vec::new();
    for (name, holds) in &history.holds {
        for (place, hold) in holds.iter().enumerate() {
            let Some(kept) = hold.kept else { continue };
            // One that is granted before the end overlaps.
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
