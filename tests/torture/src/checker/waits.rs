//! A free lock that somebody waits for is granted soon.

use super::history::{History, Request};
use crate::clock::nanos;
use crate::job::{LEASE, NODE_TIMEOUT};

/// A time during which a lock was free although somebody waited for it.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) name: String,
    /// When it became free for everybody: the time of `at_least` is over too.
    pub(crate) from: u64,
    pub(crate) nanos: u64,
    /// Whether nothing failed in this time or shortly before it, and all processes and servers ran.
    pub(crate) calm: bool,
}

impl Wait {
    /// Returns whether the wait shows a missed message: such a waiter sleeps for the rest of the lease, which is nearly all of it. With
    /// faults a waiter may also have to wait for the lease of a crashed holder, and for servers that have no vote yet.
    pub(crate) fn is_too_long(&self) -> bool {
        let limit = if self.calm { LEASE * 3 / 4 } else { LEASE * 10 };
        self.nanos > nanos(limit)
    }
}

/// Returns all times between two holds in which somebody waited from the beginning to the end.
pub(super) fn waits(history: &History) -> Vec<Wait> {
    let aftermath = nanos(LEASE + 2 * NODE_TIMEOUT);
    let mut found = Vec::new();
    for (name, holds) in &history.holds {
        let Some(requests) = history.requests.get(name) else { continue };
        let mut requests: Vec<_> = requests.iter().collect();
        requests.sort_by_key(|request| request.asked);
        let gatherings = history.gatherings.get(name).map(Vec::as_slice).unwrap_or_default();
        let mut free = u64::MAX;
        let (mut next, mut waiting) = (0, Vec::<u64>::new());
        for hold in holds {
            // A request for several names may have had this lock until it ended, while it waited for another one.
            let gathers = |request: &&Request| request.asked <= hold.granted && free < request.ended;
            let over = gatherings.iter().filter(gathers).map(|request| request.ended).max();
            free = if free == u64::MAX { free } else { free.max(over.unwrap_or_default()) };
            if free < hold.granted {
                while let Some(request) = requests.get(next).filter(|request| request.asked <= free) {
                    waiting.push(request.ended);
                    next += 1;
                }
                waiting.retain(|ended| *ended > free);
                if waiting.iter().any(|ended| *ended >= hold.granted) {
                    let calm = history.is_calm(free, hold.granted, aftermath);
                    found.push(Wait { name: name.clone(), from: free, nanos: hold.granted - free, calm });
                }
                free = 0;
            }
            let over = hold.end.max(hold.kept.unwrap_or_default());
            free = if free == u64::MAX { over } else { free.max(over) };
        }
    }
    found
}
