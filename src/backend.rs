//! What the lock asks of a master: to run scripts, and to tell of releases (as [`Events`](crate::events::Events)).

mod backoff;
mod connection;
pub(crate) mod memory;
mod settings;
pub(crate) mod single;
mod subscriber;
#[cfg(test)]
pub(crate) mod testing;
mod topics;
mod verdict;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::error::Error;
use crate::script::{Call, Reply};

/// The future of a call, boxed so that backends of all kinds stand behind one trait.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A call that was not answered as asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What the server may have done.
    pub(crate) outcome: Outcome,
    /// What to tell the user, with the server's address and the cause.
    pub(crate) error: Error,
}

/// What a server may have done with a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It certainly did not run, and will not.
    NotRun,
    /// It may have run, in whole or in part, or may run later.
    Unknown,
}

/// One master: a server, or a store in this process.
pub(crate) trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Runs one call, within the node timeout. Never repeats a call whose outcome is unknown. Dropping the future may
    /// leave the call running.
    fn run(&self, call: Call) -> Answer<'_, Result<Reply, Failure>>;

    /// Runs many calls in pipelines, each answered for itself, in their order.
    fn run_all(&self, calls: Vec<Call>) -> Answer<'_, Vec<Result<Reply, Failure>>>;

    /// Asks for the messages of a channel until [`unsubscribe`](Backend::unsubscribe). Returns at once; what becomes of it
    /// comes as [`Events`]. A failed subscription is tried again for as long as it is wanted.
    fn subscribe(&self, channel: &str);

    /// Ends the interest in a channel. Returns at once.
    fn unsubscribe(&self, channel: &str);

    /// Whether it works on any runtime. If not, it ends with the one that it was made on.
    fn is_portable(&self) -> bool;

    /// Ends connections and tasks. Calls fail from then on.
    fn close(&self);
}
