//! The token of each hold is greater than those of all holds before it.

use super::history::{History, Hold};
use crate::job::AHEAD;

/// Returns pairs of holds of a lock in which the later one has a token that is not greater.
///
/// If two holds overlap since a server lost the first one, the order of their grants is not that of their tokens: only a request that began
/// after the other one was granted counts. The same is true of a hold that was over when its grant was seen: its process stood still in
/// between, and it may have been granted before the other. If counters are ahead of the clock, tokens may fall when one counter is lost, as
/// documented.
pub(super) fn disorders(history: &History) -> Vec<(String, Hold, Hold)> {
    let mut found = Vec::new();
    for (name, holds) in &history.holds {
        let fenced: Vec<(&Hold, u64)> = holds.iter().filter_map(|hold| Some((hold, hold.token?))).collect();
        // In the order of the grants, the next token has to exceed the highest one so far.
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
