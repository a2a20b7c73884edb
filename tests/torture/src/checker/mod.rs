//! What the logs of a run must show, and what they do.
//!
//! All times are of one clock. A hold is taken to be as short as it can have been: from the return of its request to
//! the call of its release, its own deadline, or the last time at which it was seen to be good.

mod exclusion;
mod history;
mod recovery;
mod tokens;
mod waits;

pub(crate) use exclusion::{Overlap, overlaps, unexplained_losses};
pub(crate) use history::{Fault, History};
pub(crate) use recovery::{Recovery, recoveries};
pub(crate) use tokens::disorders;
pub(crate) use waits::{Wait, waits};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
