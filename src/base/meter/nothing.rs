//! The recorder without the feature `metrics`: it counts nothing.

use crate::base::meter::{Grouping, Sample};

/// The groups that are counted already.
#[derive(Clone, Default)]
pub(super) struct Known(());

pub(crate) fn describe() {}

pub(crate) fn begin(_name: Option<&str>, grouping: Option<&Grouping>) {
    let _nothing = grouping.map(|grouping| &grouping.known);
}

pub(crate) fn record(_name: &str, _grouping: Option<&Grouping>, _sample: Sample) {}

/// A request may wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting(());

impl Waiting {
    pub(crate) fn begin(&mut self, _name: &str, _grouping: Option<&Grouping>) {}
}

/// A connection that may stand.
#[derive(Debug)]
pub(crate) struct Connected(());

impl Connected {
    pub(crate) fn to(_server: &str) -> Connected {
        Connected(())
    }

    pub(crate) fn is(&mut self, _up: bool) {}
}
