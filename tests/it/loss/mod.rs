//! How a hold is lost, who is notified, and what its late commands must not touch.

mod causes;
mod foreign;
mod late;
mod lost;
mod process;

use std::time::Duration;

use crate::support::SECOND;

/// A lease far beyond the test's patience: what is noticed in time was noticed neither by the end of the lease nor by a renewal.
const LONG: Duration = Duration::from_secs(600);
