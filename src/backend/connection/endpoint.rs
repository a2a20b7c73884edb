//! Where a connection goes to.

use std::future::pending;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tokio::sync::watch;

use crate::backend::BoxFuture;
use crate::error::Result;

/// A server that can be connected to.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) client: redis::Client,
    pub(crate) address: Arc<str>,
    /// Asked of each new command connection before anything is sent over it.
    pub(crate) gate: Option<Gate>,
}

/// Whether the server at the other end is the one that is meant.
pub(crate) type Gate = Arc<dyn Fn(MultiplexedConnection) -> BoxFuture<Result<()>> + Send + Sync>;

/// Where the command connection went last. Whoever follows it never goes to a server that was not seen to be the master.
pub(crate) type Target = watch::Receiver<Option<Endpoint>>;

/// Waits until a target is another one. For ever, where it never will be.
pub(crate) async fn moved(target: &mut Target) {
    if target.changed().await.is_err() {
        pending().await
    }
}
