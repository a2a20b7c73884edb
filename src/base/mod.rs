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

/// A task of the background. A program has a copy of the code of tokio's tasks, some 10 kB, for each type that is spawned.
pub(crate) type Task = Boxed<'static, ()>;

pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Boxes a future that is rare or large. Those that await it are as small as if it were none, and a program has its code only once: the code
/// of a future whose type is known, and that of its drop, is copied to each module that uses it.
#[inline(never)]
pub(crate) fn boxed<'a, T>(future: impl Future<Output = T> + Send + 'a) -> Boxed<'a, T> {
    Box::pin(future)
}

/// Wraps a task that the crate is about to spawn. A simulation puts it behind a gate, which polls it late or not at all.
#[cfg(not(test))]
pub(crate) fn gated(task: Task) -> Task {
    task
}
