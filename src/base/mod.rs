//! The base that all other folders use: time, sets of masters, failures, events, logging and metrics.

use std::future::Future;
use std::pin::Pin;

mod events;
mod failure;
mod join;
mod loss_signal;
mod masters;
pub(crate) mod meter;
mod sync;
pub(crate) mod telemetry;
#[cfg(test)]
pub(crate) mod testing;
mod time;
mod users_code;

pub(crate) use events::Events;
pub(crate) use failure::{Failure, Outcome};
pub(crate) use join::join_all;
pub(crate) use loss_signal::LossSignal;
pub(crate) use masters::{MasterSet, Spread};
pub(crate) use sync::{Mutex, atomic, lock};
#[cfg(test)]
pub(crate) use testing::simulation::gated;
pub(crate) use time::{Drift, FAR, Lease, Moment, Stamp, after, earlier, limit};
pub(crate) use users_code::{unless_it_panics, wake_all};

/// A task of the background. It is boxed, since each type that is spawned adds a copy of tokio's task code, about 10 kB, to a program.
pub(crate) type Task = Boxed<'static, ()>;

pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Boxes a future that is rare or large. Futures that await it stay small, and a program has its code only once: if the type of a future is
/// known, its code and its drop are copied to each module that uses it.
#[inline(never)]
pub(crate) fn boxed<'a, T>(future: impl Future<Output = T> + Send + 'a) -> Boxed<'a, T> {
    Box::pin(future)
}

/// Wraps a task that the crate is about to spawn. A simulation puts it behind a gate, which polls it late or not at all.
#[cfg(not(test))]
pub(crate) fn gated(task: Task) -> Task {
    task
}
