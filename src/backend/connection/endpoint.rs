//! The server that a connection is made to.

use std::future::pending;
use std::sync::Arc;

use tokio::sync::watch;

use crate::backend::BoxFuture;
use crate::backend::connection::commands::Commands;
use crate::error::Result;

/// A server to connect to.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) client: redis::Client,
    pub(crate) address: Arc<str>,
    /// Checks each new command connection before a command is sent over it.
    pub(crate) gate: Option<Gate>,
}

/// Fails if the connection leads to another server than the intended one.
pub(crate) type Gate = Arc<dyn Fn(Commands) -> BoxFuture<Result<()>> + Send + Sync>;

/// The endpoint of the last command connection. Other connections follow it, so that they are only made to a server that was
/// seen to be the master.
pub(crate) type Target = watch::Receiver<Option<Endpoint>>;

/// Waits until the target changes. Never ready if it can't change any more.
pub(crate) async fn moved(target: &mut Target) {
    if target.changed().await.is_err() {
        pending().await
    }
}
