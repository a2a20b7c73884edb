//! How long a hold is valid, what renews it, and what ends it.

mod check;
mod deadline;
mod extend;
mod fixed;
mod many;
mod renewal;

use crate::support::{SECOND, less_drift};
