//! Requests under way, and which of them are branches of one owner.

use std::collections::BTreeMap;

/// An owner: the numbers of the scopes around it. Its prefixes are its ancestors.
pub(super) type Path = Vec<u64>;

#[derive(Default)]
pub(super) struct Requests {
    under_way: BTreeMap<u64, Request>,
    /// Owners that had two bare requests for one name under way at once.
    proven: Vec<(usize, Path)>,
}

struct Request {
    name: usize,
    owner: Path,
    bare: bool,
    branch: bool,
}

impl Requests {
    /// A request's first poll.
    pub(super) fn begin(&mut self, id: u64, name: usize, owner: Path, bare: bool) {
        let mut branch = bare && self.is_proven(name, &owner);
        for other in self.under_way.values_mut().filter(|other| other.is_bare_of(name, &owner)) {
            branch |= bare;
            other.branch |= bare;
        }
        if branch && !self.is_proven(name, &owner) {
            self.proven.push((name, owner.clone()));
        }
        self.under_way.insert(id, Request { name, owner, bare, branch });
    }

    /// It is granted, refused or dropped. Whether it was a branch.
    pub(super) fn end(&mut self, id: u64) -> bool {
        self.under_way.remove(&id).is_some_and(|request| request.branch)
    }

    /// It has failed, maybe before it came to its line: then it proved nothing.
    pub(super) fn fail(&mut self, id: u64) {
        let Some(failed) = self.under_way.remove(&id) else { return };
        self.proven.retain(|(name, owner)| (*name, owner) != (failed.name, &failed.owner));
        for other in self.under_way.values_mut().filter(|other| other.is_bare_of(failed.name, &failed.owner))
        {
            other.branch = false;
        }
    }

    pub(super) fn is_proven(&self, name: usize, owner: &Path) -> bool {
        self.proven.iter().any(|(known, of)| *known == name && of == owner)
    }

    pub(super) fn proves_nothing(&self) -> bool {
        self.proven.is_empty()
    }

    /// The proof stands until its owner has neither a hold nor a request.
    pub(super) fn forget_proofs(&mut self, holds: impl Fn(usize, &Path) -> bool) {
        let requests = &self.under_way;
        self.proven.retain(|(name, owner)| {
            holds(*name, owner) || requests.values().any(|one| one.name == *name && one.owner == *owner)
        });
    }
}

impl Request {
    fn is_bare_of(&self, name: usize, owner: &Path) -> bool {
        self.bare && self.name == name && self.owner == *owner
    }
}
