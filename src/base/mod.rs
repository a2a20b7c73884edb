//! What every room uses: time, sets of masters, failures, events and logging.

mod deadline;
mod events;
mod failure;
mod fate;
mod nodes;
mod sync;
pub(crate) mod telemetry;

pub(crate) use deadline::{Drift, Lease, Moment, after, limit};
pub(crate) use events::Events;
pub(crate) use failure::{Failure, Outcome};
pub(crate) use fate::Fate;
pub(crate) use nodes::{Absence, Nodes, Spread};
pub(crate) use sync::lock;
