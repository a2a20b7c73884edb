//! The critical sections that callers are in, and the rule about them: strangers are never in one at the same time.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;

use tokio::time::Instant;

use super::journal::note;
use crate::owner::{Owner, inside};
use crate::{Guard, Locks, Mutex, Result};

/// What holds a section.
enum By {
    Guard(Rc<Guard>),
    Run { owner: Owner, mutex: Mutex, field: String },
}

/// Where a section belongs.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) locks: Locks,
    pub(super) process: usize,
    pub(super) caller: u64,
    pub(super) mutex: Mutex,
    /// The branch of one owner, by group and number, if it was begun in one poll with others: these exclude each other too.
    pub(super) branch: Option<(u64, usize)>,
}

impl Place {
    /// Returns the field of the hold that lives in this process.
    fn field(&self) -> String {
        let field = self.locks.handle.table(|table, _| {
            let hold = table.entry(self.mutex.name()).and_then(|entry| entry.live());
            hold.map(|hold| hold.field.to_string())
        });
        field.unwrap_or_default()
    }
}

struct Section {
    id: u64,
    place: Place,
    by: By,
    /// Whether the section was seen to be no longer good.
    is_over: Cell<bool>,
}

impl Section {
    fn owner(&self) -> Owner {
        match &self.by {
            By::Guard(guard) => guard.owner(),
            By::Run { owner, .. } => owner.clone(),
        }
    }

    fn field(&self) -> &str {
        match &self.by {
            By::Guard(guard) => guard.hold_id(),
            By::Run { field, .. } => field,
        }
    }

    /// Returns whether its holder may rely on it now. Changes nothing: a look that ends what is due would
    /// hide that something else forgot it.
    fn is_good(&self) -> bool {
        match &self.by {
            // This order matters: for a guard that is still valid, `is_lost` only reads.
            By::Guard(guard) => guard.valid_until() > Instant::now() && !guard.is_lost(),
            By::Run { owner, mutex, field } => {
                let _inside = inside(owner);
                mutex.is_held() && self.place.field() == *field
            }
        }
    }

    /// Returns whether the section is good, and checks that a loss is final.
    fn check(&self) -> bool {
        let good = self.is_good();
        assert!(!(good && self.is_over.get()), "a section is good again after it was over: {self:#?}");
        self.is_over.set(!good);
        good
    }

    /// The rule: the owner of the earlier section is the owner of the later one, or an ancestor of it.
    fn admits(&self, later: &Section) -> bool {
        let branches = match (self.place.branch, later.place.branch) {
            (Some((group, one)), Some((other, two))) => group == other && one != two,
            _ => false,
        };
        self.place.process == later.place.process && later.owner().is_within(&self.owner()) && !branches
    }
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct(match &self.by {
            By::Guard(_) => "Guard",
            By::Run { .. } => "Run",
        });
        out.field("id", &self.id).field("process", &self.place.process).field("caller", &self.place.caller);
        out.field("owner", &self.owner()).field("field", &self.field()).field("branch", &self.place.branch);
        if let By::Guard(guard) = &self.by {
            out.field("depth", &guard.depth()).field("left", &(guard.valid_until() - Instant::now()));
        }
        out.finish()
    }
}

/// The sections, in the order of their grants.
#[derive(Default)]
pub(super) struct Sections {
    inside: RefCell<Vec<Section>>,
    /// The holds that were released by force, or may have been: none of them can keep others out.
    forced: RefCell<HashSet<String>>,
    ids: Cell<u64>,
}

impl Sections {
    fn enter(&self, place: Place, by: By) -> u64 {
        let id = self.ids.get() + 1;
        self.ids.set(id);
        note(|| {
            format!(
                "caller {} of {} is in section {id} of {}",
                place.caller,
                place.process,
                place.mutex.name()
            )
        });
        self.inside.borrow_mut().push(Section { id, place, by, is_over: Cell::new(false) });
        id
    }

    pub(super) fn granted(&self) -> u64 {
        self.ids.get()
    }

    /// Enters a section because a guard was handed out.
    pub(super) fn hold(self: &Rc<Self>, place: Place, guard: Guard) -> Held {
        let guard = Rc::new(guard);
        let id = self.enter(place.clone(), By::Guard(guard.clone()));
        Held { guard: Some(guard), id, place, sections: self.clone() }
    }

    /// Enters a section because the work of a `run` has begun.
    pub(super) fn work(self: &Rc<Self>, place: Place, owner: Owner) -> Working {
        let (mutex, field) = (place.mutex.clone(), place.field());
        let id = self.enter(place, By::Run { owner, mutex, field });
        Working { id, sections: self.clone() }
    }

    fn leave(&self, id: u64) {
        let left = self.inside.borrow_mut().extract_if(.., |section| section.id == id).next();
        if left.is_some() {
            note(|| format!("section {id} is left"));
        }
        // Dropped only here, where nothing is borrowed, since its drop may do anything.
        drop(left);
    }

    /// Notes that the holds of all sections, and these fields, no longer count.
    pub(super) fn forced(&self, more: impl IntoIterator<Item = String>) {
        let inside = self.inside.borrow();
        self.forced.borrow_mut().extend(inside.iter().map(|section| section.field().to_owned()).chain(more));
    }

    pub(super) fn has(&self, caller: u64) -> bool {
        self.inside.borrow().iter().any(|section| section.place.caller == caller)
    }

    /// Panics if two strangers are inside at once.
    pub(super) fn check(&self) {
        let (inside, forced) = (self.inside.borrow(), self.forced.borrow());
        let good: Vec<&Section> =
            inside.iter().filter(|one| one.check() && !forced.contains(one.field())).collect();
        for (at, later) in good.iter().enumerate() {
            for earlier in &good[..at] {
                let same = earlier.place.mutex.name() == later.place.mutex.name();
                assert!(!same || earlier.admits(later), "two holders: {earlier:#?} and {later:#?}");
            }
        }
    }
}

/// A guard, for as long as it counts.
pub(super) struct Held {
    guard: Option<Rc<Guard>>,
    id: u64,
    place: Place,
    sections: Rc<Sections>,
}

impl Held {
    pub(super) fn guard(&self) -> &Guard {
        self.guard.as_ref().unwrap()
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Passes the guard to that caller.
    pub(super) fn pass_to(&mut self, caller: u64) {
        self.place.caller = caller;
        let mut inside = self.sections.inside.borrow_mut();
        inside
            .iter_mut()
            .filter(|section| section.id == self.id)
            .for_each(|section| section.place.caller = caller);
    }

    /// Releases the guard, which no longer counts from the moment its release begins.
    pub(super) async fn release(mut self) -> Result<()> {
        self.sections.leave(self.id);
        let guard = Rc::into_inner(self.guard.take().unwrap()).expect("no other caller has the guard");
        guard.release().await
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.sections.leave(self.id);
    }
}

/// The work of a `run`, for as long as it lives.
pub(super) struct Working {
    id: u64,
    sections: Rc<Sections>,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.sections.leave(self.id);
    }
}
