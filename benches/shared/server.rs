//! The server that is measured on, and the ways to it.

use std::time::Duration;

use nestlock::{Builder, Locks, Master};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Returns the URL of the server; `scripts/lab/bench` starts one.
pub(crate) fn url() -> String {
    std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned())
}

pub(crate) fn client_of(url: &str) -> Result<Client> {
    let info = url.into_connection_info()?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    Ok(Client::open(info.set_tcp_settings(tcp))?)
}

/// Returns a connection that does nothing by itself: no timeout, no check of the replies.
pub(crate) async fn connection_to(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    Ok(client_of(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

pub(crate) fn patience() -> Duration {
    Duration::from_secs(10)
}

/// Returns locks with default options except for longer timeouts, so that a busy machine makes a benchmark slower instead of making it
/// fail.
pub(crate) fn patient() -> Builder {
    patient_with(url())
}

/// Returns such options over any master.
pub(crate) fn patient_with(master: impl Into<Master>) -> Builder {
    Locks::builder(master).node_timeout(patience()).unavailable_after(Duration::from_secs(60))
}
