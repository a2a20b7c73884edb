//! What the crate counts and measures. `recorder.rs` alone names the crate `metrics`; without the feature of that name `nothing.rs` stands
//! in its place.

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

/// Whether anything is measured: what only leads to a sample is left out where nothing is.
pub(crate) const ON: bool = cfg!(any(feature = "metrics", test));
