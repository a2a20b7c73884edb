//! A claim can be resumed only once.

use super::history::{History, Hold, Try};
use crate::claims::DROPPED;
use crate::clock::nanos;
use crate::job::{LEASE, NODE_TIMEOUT};

/// A claim with a result that is not allowed.
#[derive(Debug)]
pub(crate) struct Misclaim {
    pub(crate) name: String,
    /// The hold that was handed over.
    pub(crate) hold: Hold,
    pub(crate) tries: Vec<Try>,
    /// Whether the claim was resumed more than once. Otherwise it was good, and was refused although nobody else tried.
    pub(crate) twice: bool,
}

pub(super) fn misclaims(history: &History) -> Vec<Misclaim> {
    let aftermath = nanos(LEASE + 2 * NODE_TIMEOUT);
    let mut found = Vec::new();
    for (name, holds) in &history.holds {
        for hold in holds {
            let Some(claim) = &hold.claim else { continue };
            let tries = history.tries.get(&claim.field).map(Vec::as_slice).unwrap_or_default();
            let granted: Vec<u64> = tries.iter().filter_map(|one| one.granted).collect();
            let twice = granted.len() > 1
                && !history.may_have_revived(hold.asked, granted.iter().copied().max().unwrap_or_default());
            let refused = |one: &Try| {
                let ended = one.ended.unwrap_or(u64::MAX);
                one.granted.is_none()
                    && !one.who.ends_with(DROPPED)
                    && ended < claim.until
                    && history.is_calm(hold.asked, ended, aftermath)
            };
            let is_refused = matches!(tries, [one] if refused(one));
            if twice || is_refused {
                let (name, hold, tries) = (name.clone(), hold.clone(), tries.to_vec());
                found.push(Misclaim { name, hold, tries, twice });
            }
        }
    }
    found
}
