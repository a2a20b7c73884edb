//! How a hold is lost, who is notified, and what its late commands must not touch.

mod causes;
mod foreign;
mod late;
mod lost;
mod process;

use std::time::Duration;

use crate::support::SECOND;

/// A lease much longer than any test waits: neither its end nor a renewal can be what reports a loss within the test.
const LONG: Duration = Duration::from_secs(600);
