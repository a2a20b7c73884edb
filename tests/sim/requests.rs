//! Requests under way: which of them are branches of one owner, and for how long each has waited with nobody before it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// An owner, as the numbers of the scopes around it. The prefixes of the path are its ancestors.
pub(super) type Path = Vec<u64>;

#[derive(Default)]
pub(super) struct Requests {
    under_way: BTreeMap<u64, Request>,
    proven: Vec<Proof>,
}

/// Proves that an owner had two bare requests for one name under way at once.
struct Proof {
    name: usize,
    owner: Path,
    /// One of the two requests may not have reached its queue.
    doubtful: bool,
}

pub(super) struct Request {
    pub(super) name: usize,
    pub(super) owner: Path,
    pub(super) process: usize,
    pub(super) bare: bool,
    pub(super) branch: bool,
    /// The time since which no level keeps it out.
    pub(super) free_since: Option<Instant>,
    /// Its future is not being polled.
    pub(super) neglected: bool,
}

impl Requests {
    /// Notes the first poll of a request.
    pub(super) fn begin(&mut self, id: u64, mut request: Request) {
        let (name, owner) = (request.name, &request.owner);
        let others =
            self.under_way.values_mut().filter(|other| request.bare && other.is_bare_of(name, owner));
        let others = others.map(|other| other.branch = true).count();
        let known = self.proven.iter_mut().find(|proof| proof.is_of(name, owner));
        match known {
            Some(proof) => proof.doubtful &= others == 0,
            None if others > 0 => self.proven.push(Proof { name, owner: owner.clone(), doubtful: false }),
            None => {}
        }
        let sure = self.proven.iter().any(|proof| proof.is_of(name, owner) && !proof.doubtful);
        request.branch = request.bare && sure;
        self.under_way.insert(id, request);
    }

    /// Notes that the futures of these requests are not polled, or are polled again.
    pub(super) fn neglect(&mut self, first: u64, owner: &Path, on: bool) {
        let begun = self.under_way.range_mut(first..).map(|(_, request)| request);
        for request in begun.filter(|request| request.owner.starts_with(owner)) {
            (request.neglected, request.free_since) = (on, None);
        }
    }

    /// Forgets the requests of a process that has ended.
    pub(super) fn forget_process(&mut self, process: usize) {
        self.under_way.retain(|_, request| request.process != process);
    }

    /// Finds the requests with nobody before them. Returns the longest wait of such a request, counted from `calm` at the earliest.
    pub(super) fn longest_wait(
        &mut self,
        calm: Instant,
        now: Instant,
        is_kept_out: impl Fn(&Request) -> bool,
    ) -> Option<(Duration, &Request)> {
        let mut longest: Option<(Duration, &Request)> = None;
        for request in self.under_way.values_mut().filter(|request| !request.neglected) {
            let waited = request.free_since.map(|since| now.saturating_duration_since(since.max(calm)));
            let free_since = request.free_since.unwrap_or(now);
            request.free_since = (!is_kept_out(request)).then_some(free_since);
            if let Some(waited) = waited.filter(|waited| longest.is_none_or(|(most, _)| most < *waited)) {
                longest = Some((waited, request));
            }
        }
        longest
    }

    /// Notes that a request is granted, refused or dropped. Returns whether it was a branch.
    pub(super) fn end(&mut self, id: u64) -> bool {
        self.under_way.remove(&id).is_some_and(|request| request.branch)
    }

    /// Notes that a request has failed. If it had not reached its queue, it proved nothing.
    pub(super) fn fail(&mut self, id: u64) {
        let Some(failed) = self.under_way.remove(&id) else { return };
        let (name, owner) = (failed.name, &failed.owner);
        self.proven
            .iter_mut()
            .filter(|proof| proof.is_of(name, owner))
            .for_each(|proof| proof.doubtful = true);
        let others = self.under_way.values_mut().filter(|other| other.is_bare_of(name, owner));
        others.for_each(|other| other.branch = false);
    }

    /// Returns whether a bare request of this owner, which holds the lock, may be either nested or a branch.
    pub(super) fn is_proven(&self, name: usize, owner: &Path) -> bool {
        self.proven.iter().any(|proof| proof.is_of(name, owner))
    }

    pub(super) fn proves_nothing(&self) -> bool {
        self.proven.is_empty()
    }

    /// Forgets the proofs whose owners have neither a hold nor a request any more. `holds`: whether the hold of the owner's guard is known
    /// to stand; after a loss the proof may be forgotten.
    pub(super) fn forget_proofs(&mut self, holds: impl Fn(usize, &Path) -> Option<bool>) {
        let requests = &self.under_way;
        self.proven.retain_mut(|proof| {
            let asks = requests.values().any(|one| one.name == proof.name && one.owner == proof.owner);
            let holds = holds(proof.name, &proof.owner);
            proof.doubtful |= !asks && holds == Some(false);
            asks || holds.is_some()
        });
    }
}

impl Proof {
    fn is_of(&self, name: usize, owner: &Path) -> bool {
        self.name == name && self.owner == *owner
    }
}

impl Request {
    fn is_bare_of(&self, name: usize, owner: &Path) -> bool {
        self.bare && self.name == name && self.owner == *owner
    }
}
