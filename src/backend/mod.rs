//! One master, behind the trait [`Backend`]: it runs scripts, and reports releases as [`Events`](crate::base::Events).

mod clock;
pub(crate) mod cluster;
mod connection;
mod late;
pub(crate) mod memory;
mod resp;
mod sentinel;
pub(crate) mod server;
mod tasks;
#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use clock::tokio_now;
#[cfg(test)]
pub(crate) use connection::dial::testing as dialing;
pub(crate) use connection::{Link, Login, ServerClock};
pub(crate) use late::why_late;
pub(crate) use server::Spare;
pub(crate) use tasks::Tasks;

use crate::base::Events;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::keys::Keys;
use crate::wire::{Call, CallResult};

/// The future of a call, boxed so that the trait is dyn-compatible.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One master: a server, fixed or named by sentinels, a cluster, or a store in this process.
pub(crate) trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Runs one call, within the node timeout. Never repeats a call whose outcome is unknown. Dropping the future may
    /// leave the call running.
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<CallResult>;

    /// Runs many calls in pipelines. Returns a result for each, in their order.
    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<CallResult>>;

    /// Returns whether [`begin`](Backend::begin) would write a call about this lock to a socket at once, since no other call is under way.
    fn is_unused(&self, _: &Keys) -> bool {
        false
    }

    /// Like [`run`](Backend::run), but does, before it returns, everything that is possible without waiting, on any thread and outside a
    /// runtime too. Returns `None` if nothing is possible.
    fn begin(self: Arc<Self>, _: &Call) -> Option<BoxFuture<CallResult>> {
        None
    }

    /// Returns whether a connection has answers that its reading task has not read. While that task runs, this is true only for a
    /// moment.
    fn is_unread(&self) -> bool {
        false
    }

    /// Returns how to connect once more to the server that keeps this lock, on another runtime, or `None` if that is impossible
    /// now.
    fn spare(&self, _: &Keys) -> Option<Spare> {
        None
    }

    /// Called when the runtime ends or has ended: runs calls whose answers nobody waits for. Over sockets it writes them as far as there
    /// is room. Returns at once.
    fn run_last(&self, _: Vec<Call>) {}

    /// Called when the runtime ends or has ended, and no call is left to be run.
    fn end_with_runtime(&self) {}

    /// Returns whether it is known to have been started less than `age` ago, so that it may have forgotten earlier grants. Whether
    /// an answer counts depends on what this returns after the answer has arrived.
    fn is_younger_than(&self, age: Duration) -> bool;

    /// Returns whether any call would fail at once for lack of a connection. [`Events::reconnected`](crate::base::Events::reconnected)
    /// reports the next connection.
    fn is_away(&self) -> bool {
        false
    }

    /// Waits until the first attempt to connect has an outcome. Returns whether calls can be run then.
    fn first_attempt(self: Arc<Self>) -> BoxFuture<bool> {
        Box::pin(ready(true))
    }

    /// Returns whether it is connected to where this lock is kept, as far as is known, and the loss of an earlier connection is
    /// [reported](crate::base::Events::reconnected). Called while locks are looked at, so it must not block.
    fn is_connected(&self, _keys: &Keys) -> bool {
        true
    }

    /// Returns its clock as read at the first connection, or `None` if it was not queried.
    fn clock(&self) -> Option<ServerClock> {
        None
    }

    /// Subscribes to a channel until [`unsubscribe`](Backend::unsubscribe). Returns at once; the outcome is reported as
    /// [`Events`](crate::base::Events). A failed subscription is retried as long as it is wanted.
    fn subscribe(&self, channel: &str);

    /// Unsubscribes from a channel. Returns at once.
    fn unsubscribe(&self, channel: &str);

    /// Reports that a waiter found its lock free although no message had announced that. Messages may have been lost, so the backend
    /// checks that it subscribes at the right node. Returns at once.
    fn doubt_messages(&self) {}

    /// Returns whether it works on any runtime. If not, it ends with the one that it was created on.
    fn is_portable(&self) -> bool {
        false
    }

    /// Closes connections and aborts tasks. Later calls fail.
    fn close(&self);
}

/// Reports to the receiver of events, if there still is one.
fn with_events(events: &Weak<dyn Events>, report: impl FnOnce(&dyn Events)) {
    if let Some(events) = events.upgrade() {
        report(&*events);
    }
}

/// Returns the runtime for the tasks of a connection.
fn runtime() -> Result<tokio::runtime::Handle> {
    tokio::runtime::Handle::try_current().map_err(|_| {
        let message = "`connect` works inside a tokio runtime only; use `block_on` of a runtime";
        Error::new(ErrorKind::Misuse, message)
    })
}
