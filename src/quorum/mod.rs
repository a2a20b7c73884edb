//! Asks the masters as one.

mod quorum;
mod tally;

pub(crate) use quorum::{Quorum, Stragglers};
pub(crate) use tally::Verdict;
