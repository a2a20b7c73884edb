//! `Grouping`: decides which locks are counted together.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use crate::base::{Mutex, lock, unless_it_panics};

type Label = dyn for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync;

/// The group of names for which the user's code panics.
const NO_GROUP: &str = "";

/// Maps the names of locks to a few groups. It is the user's code, and runs while nothing is locked.
#[derive(Clone)]
pub(crate) struct Grouping {
    label: Arc<Label>,
    /// The groups that are counted already.
    known: Arc<Mutex<HashSet<String>>>,
}

impl Grouping {
    pub(crate) fn new(label: impl Fn(&str) -> Cow<'_, str> + Send + Sync + 'static) -> Grouping {
        Grouping { label: Arc::new(label), known: Arc::default() }
    }

    /// Notes that a group is counted from now on. Returns whether it is new.
    pub(super) fn adds(&self, group: &str) -> bool {
        let mut known = lock(&self.known);
        !known.contains(group) && known.insert(group.to_owned())
    }

    pub(crate) fn group_of<'a>(&self, name: &'a str) -> Cow<'a, str> {
        unless_it_panics(|| (self.label)(name)).unwrap_or(Cow::Borrowed(NO_GROUP))
    }
}

impl fmt::Debug for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grouping(..)")
    }
}
