//! The masters asked as one.

mod question;
mod quorum;
mod tally;

pub(crate) use question::Question;
pub(crate) use quorum::{Quorum, Reported, Stragglers};
pub(crate) use tally::Verdict;
