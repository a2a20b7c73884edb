//! `Leaving`: releases of a hold that another command of it carries out.

use std::sync::Arc;

use crate::base::Fate;

/// Levels that left while a command was under way: the command that carries their release out reports the result. Mostly there are
/// none, so this takes one pointer.
#[derive(Debug, Default)]
pub(super) struct Leaving(Option<Box<Fates>>);

#[derive(Debug, Default)]
struct Fates(Vec<Arc<Fate>>);

impl Leaving {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn push(&mut self, fate: Arc<Fate>) {
        self.0.get_or_insert_default().0.push(fate);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Fate>> {
        self.0.iter().flat_map(|fates| &fates.0)
    }

    /// Takes the fates out.
    pub(super) fn take(&mut self) -> Vec<Arc<Fate>> {
        self.0.take().map_or_else(Vec::new, |fates| fates.0)
    }
}
