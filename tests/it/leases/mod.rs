//! How long a hold is good, who renews it, and what ends it.

mod deadline;
mod extend;
mod fixed;
mod many;
mod renewal;

use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// What stays of a lease once the drift is taken off.
fn less_drift(lease: Duration) -> Duration {
    lease - lease / 100 - Duration::from_millis(2)
}
