//! Takes the recorder's place without the feature `metrics`, and counts nothing.

use crate::base::meter::{Grouping, Sample};

pub(crate) fn describe() {}

pub(crate) fn begin(_name: Option<&str>, _grouping: Option<&Grouping>) {}

pub(crate) fn record(_name: &str, _grouping: Option<&Grouping>, _sample: Sample) {}

/// Stands for a request that may wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting(());

impl Waiting {
    pub(crate) fn begin(&mut self, _name: &str, _grouping: Option<&Grouping>) {}
}

/// Stands for a connection that may be up.
#[derive(Debug)]
pub(crate) struct Connected(());

impl Connected {
    pub(crate) fn to(_server: &str) -> Connected {
        Connected(())
    }

    pub(crate) fn is(&mut self, _up: bool) {}
}
