//! Forgets what has expired.

use std::collections::HashMap;
use std::hash::Hash;

/// Removes expired entries if there are `at` of them or more, since the number of names is not bounded. Sets the next `at`.
pub(super) fn sweep<K: Eq + Hash, V>(all: &mut HashMap<K, V>, at: &mut usize, is_live: impl Fn(&V) -> bool) {
    if all.len() >= *at {
        all.retain(|_, entry| is_live(entry));
        *at = (2 * all.len()).max(64);
    }
}
