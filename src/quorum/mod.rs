//! Asks the masters as one.

mod quorum;
mod tally;

pub(crate) use quorum::{Quorum, Reported, Stragglers};
pub(crate) use tally::Verdict;
