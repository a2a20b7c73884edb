//! The recorder without the feature `metrics`: it counts nothing.

use crate::base::meter::{Grouping, Sample};

pub(crate) fn describe() {}

pub(crate) fn record(_name: &str, _grouping: Option<&Grouping>, _sample: Sample) {}

/// A request may wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting(());

impl Waiting {
    pub(crate) fn begin(&mut self, _name: &str, _grouping: Option<&Grouping>) {}
}
