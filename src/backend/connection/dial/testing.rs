//! Connections over streams that a simulation makes.

use std::cell::Cell;
use std::io;
use std::pin::Pin;

use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, RedisResult};

use crate::backend::BoxFuture;
use crate::base::gated;

pub(crate) type Stream = Pin<Box<dyn AsyncStream + Send>>;

/// Makes a stream to a host.
pub(crate) type Dial = fn(&str) -> BoxFuture<io::Result<Stream>>;

thread_local! {
    static DIAL: Cell<Option<Dial>> = const { Cell::new(None) };
}

/// From now on this thread makes its connections so; `None`: over the network.
#[cfg(not(shuttle))]
pub(crate) fn simulate(dial: Option<Dial>) {
    DIAL.set(dial);
}

/// The stream of a connection that is simulated.
pub(super) async fn stream(client: &Client) -> Option<io::Result<Stream>> {
    let dial = DIAL.get()?;
    let ConnectionAddr::Tcp(host, _) = client.get_connection_info().addr() else { return None };
    Some(dial(host).await)
}

/// As the redis crate connects over a socket, but that the driver of a connection that is not used any more goes on until all its
/// commands were answered.
pub(super) async fn connect(
    stream: io::Result<Stream>,
    client: &Client,
    config: &AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    let settings = client.get_connection_info().redis_settings();
    let (connection, driver) =
        MultiplexedConnection::new_with_config(settings, stream?, config.clone()).await?;
    drop(tokio::spawn(gated(driver)));
    Ok(connection)
}
