//! A token is greater than that of each hold before it.

use super::history::{History, Hold};
use crate::job::AHEAD;

/// Holds of a lock of which the later one has a token that is not greater.
///
/// Where two holds overlap since a server lost the first one, the order of their grants is not that of their tokens:
/// only a request that began after the other was granted counts. The same is true of a hold that was over when it was seen: its process
/// stood still in between, and it may have been granted before the other. Where counters are ahead of the time, tokens may fall
/// when one of them is lost, as documented.
pub(super) fn disorders(history: &History) -> Vec<(String, Hold, Hold)> {
    let mut found = Vec::new();
    for (name, holds) in &history.holds {
        let fenced: Vec<(&Hold, u64)> = holds.iter().filter_map(|hold| Some((hold, hold.token?))).collect();
        // By their grants, the highest so far is what the next one has to exceed.
        let mut highest: Option<(&Hold, u64)> = None;
        for (hold, token) in fenced {
            let is_lost =
                |before: &Hold| history.may_have_forgotten(before.asked.min(hold.asked), hold.granted);
            highest = highest.filter(|(before, _)| name != AHEAD || !is_lost(before));
            if let Some((before, above)) = highest
                && token <= above
                && (before.granted < hold.asked
                    || hold.granted < hold.end
                        && !history.may_have_lost(before.asked.min(hold.asked), hold.granted))
            {
                found.push((name.clone(), before.clone(), hold.clone()));
            }
            if highest.is_none_or(|(_, above)| token > above) {
                highest = Some((hold, token));
            }
        }
    }
    found
}
