//! What the lock asks of a master: to run scripts, and to tell of releases (as [`Events`](crate::base::Events)).

pub(crate) mod cluster;
mod connection;
pub(crate) mod memory;
mod sentinel;
pub(crate) mod server;
#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use connection::ServerClock;

use crate::base::Failure;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Call, Reply};

/// The future of a call, boxed so that backends of all kinds stand behind one trait.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One master: a server, or a store in this process.
pub(crate) trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Runs one call, within the node timeout. Never repeats a call whose outcome is unknown. Dropping the future may
    /// leave the call running.
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<Result<Reply, Failure>>;

    /// Runs many calls in pipelines, each answered for itself, in their order.
    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>>;

    /// Whether it was started less than that ago, as far as is known: then what it had granted before may be forgotten. An
    /// answer counts by what this says after it came.
    fn is_younger_than(&self, age: Duration) -> bool;

    /// Whether any call would be told at once that there is no connection. When there is one again is told by
    /// [`Events::reconnected`](crate::base::Events::reconnected).
    fn is_away(&self) -> bool {
        false
    }

    /// What its clock said at the first connection, where that was asked.
    fn clock(&self) -> Option<ServerClock> {
        None
    }

    /// Asks for the messages of a channel until [`unsubscribe`](Backend::unsubscribe). Returns at once; what becomes of it
    /// comes as [`Events`](crate::base::Events). A failed subscription is tried again for as long as it is wanted.
    fn subscribe(&self, channel: &str);

    /// Ends the interest in a channel. Returns at once.
    fn unsubscribe(&self, channel: &str);

    /// A waiter found its lock free, and no message had reported that. Returns at once. Messages may be lost, so whatever decides
    /// where they are received is looked at.
    fn doubt_messages(&self) {}

    /// Whether it works on any runtime. If not, it ends with the one that it was made on.
    fn is_portable(&self) -> bool;

    /// Ends connections and tasks. Calls fail from then on.
    fn close(&self);
}

/// The runtime that a connection's tasks live on.
fn runtime() -> Result<tokio::runtime::Handle> {
    tokio::runtime::Handle::try_current().map_err(|_| {
        let told = "`connect` works inside a tokio runtime only; use `block_on` of a runtime";
        Error::new(ErrorKind::Misuse, told)
    })
}
