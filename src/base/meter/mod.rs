//! What the crate counts and measures. Only `recorder.rs` names the crate `metrics`; without the feature of that name, `nothing.rs` takes
//! its place.

mod grouping;
#[cfg(not(feature = "metrics"))]
mod nothing;
#[cfg(feature = "metrics")]
mod recorder;
mod sample;

pub(crate) use grouping::Grouping;
#[cfg(not(feature = "metrics"))]
pub(crate) use nothing::{Waiting, describe, record};
#[cfg(feature = "metrics")]
pub(crate) use recorder::{Waiting, describe, record};
pub(crate) use sample::Sample;

/// Whether anything is measured. Code that only prepares a sample is skipped otherwise.
pub(crate) const ON: bool = cfg!(any(feature = "metrics", test));
