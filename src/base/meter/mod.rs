//! What the crate counts and measures. Only `recorder.rs` uses the crate `metrics`; without the feature of that name, `nothing.rs`
//! takes its place.

// Without the feature the user's function is kept, and never called.
#[cfg_attr(not(feature = "metrics"), expect(dead_code))]
mod grouping;
#[cfg(not(feature = "metrics"))]
mod nothing;
#[cfg(feature = "metrics")]
mod recorder;
mod sample;

pub(crate) use grouping::Grouping;
#[cfg(not(feature = "metrics"))]
pub(crate) use nothing::{Connected, Waiting, begin, describe, record};
#[cfg(feature = "metrics")]
pub(crate) use recorder::{Connected, Waiting, begin, describe, record};
pub(crate) use sample::Sample;

/// Whether anything is measured. Code that only prepares a sample is skipped otherwise.
pub(crate) const ON: bool = cfg!(any(feature = "metrics", test));
