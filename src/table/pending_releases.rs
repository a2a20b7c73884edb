//! `PendingReleases`: releases of a hold that another command of it carries out.

use std::sync::Arc;

use crate::base::LossSignal;

/// Levels that left while a command was under way: the command that carries their release out reports the result. Mostly there are
/// none, so this takes one pointer.
#[derive(Debug, Default)]
pub(super) struct PendingReleases(Option<Box<Signals>>);

#[derive(Debug, Default)]
struct Signals(Vec<Arc<LossSignal>>);

impl PendingReleases {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn push(&mut self, signal: Arc<LossSignal>) {
        self.0.get_or_insert_default().0.push(signal);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<LossSignal>> {
        self.0.iter().flat_map(|signals| &signals.0)
    }

    /// Takes the signals out.
    pub(super) fn take(&mut self) -> Vec<Arc<LossSignal>> {
        self.0.take().map_or_else(Vec::new, |signals| signals.0)
    }
}
