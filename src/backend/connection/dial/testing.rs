//! Connections over streams that a simulation makes.

use std::cell::Cell;
use std::io;
use std::pin::Pin;

use redis::ConnectionAddr;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::backend::BoxFuture;
use crate::config::Destination;

pub(crate) type Stream = Pin<Box<dyn AsyncStream>>;

pub(crate) trait AsyncStream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> AsyncStream for S {}

/// Makes a stream to a host.
pub(crate) type Dial = fn(&str) -> BoxFuture<io::Result<Stream>>;

thread_local! {
    static DIAL: Cell<Option<Dial>> = const { Cell::new(None) };
    static SEALED: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread makes its connections so; `None`: over the network. `sealed`: they are written to as those over TLS are.
pub(crate) fn simulate(dial: Option<Dial>, sealed: bool) {
    DIAL.set(dial);
    SEALED.set(sealed);
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
pub(super) fn is_sealed() -> bool {
    SEALED.get()
}

/// The stream of a connection that is simulated.
pub(in crate::backend) async fn stream(to: &Destination) -> Option<io::Result<Stream>> {
    let dial = DIAL.get()?;
    let ConnectionAddr::Tcp(host, _) = to.addr() else { return None };
    Some(dial(host).await)
}
