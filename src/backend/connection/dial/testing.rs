//! Connections over streams that a simulation makes.

use std::cell::Cell;
use std::io;
use std::pin::Pin;

use redis::aio::AsyncStream;
use redis::{Client, ConnectionAddr};

use crate::backend::BoxFuture;

pub(crate) type Stream = Pin<Box<dyn AsyncStream + Send>>;

/// Makes a stream to a host.
pub(crate) type Dial = fn(&str) -> BoxFuture<io::Result<Stream>>;

thread_local! {
    static DIAL: Cell<Option<Dial>> = const { Cell::new(None) };
}

/// From now on this thread makes its connections so; `None`: over the network.
pub(crate) fn simulate(dial: Option<Dial>) {
    DIAL.set(dial);
}

/// The stream of a connection that is simulated.
pub(in crate::backend) async fn stream(client: &Client) -> Option<io::Result<Stream>> {
    let dial = DIAL.get()?;
    let ConnectionAddr::Tcp(host, _) = client.get_connection_info().addr() else { return None };
    Some(dial(host).await)
}
