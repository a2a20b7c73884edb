//! Connections over streams that a simulation makes.

use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;

use redis::ConnectionAddr;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::backend::BoxFuture;
use crate::config::Destination;

pub(crate) type Stream = Pin<Box<dyn AsyncStream>>;

pub(crate) trait AsyncStream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> AsyncStream for S {}

/// A function that makes a stream to a host.
pub(crate) type Dial = fn(&str) -> BoxFuture<io::Result<Stream>>;

thread_local! {
    static DIAL: Cell<Option<Dial>> = const { Cell::new(None) };
    static SEALED: Cell<bool> = const { Cell::new(false) };
    static WRITES: RefCell<Option<Vec<Backtrace>>> = const { RefCell::new(None) };
}

/// Makes this thread connect by `dial` from now on, or over the network if it is `None`. If `sealed`, connections are written to like
/// those over TLS.
pub(crate) fn simulate(dial: Option<Dial>, sealed: bool) {
    DIAL.set(dial);
    SEALED.set(sealed);
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
pub(super) fn is_sealed() -> bool {
    SEALED.get()
}

/// Returns the stream of a simulated connection.
pub(in crate::backend) async fn stream(to: &Destination) -> Option<io::Result<Stream>> {
    let dial = DIAL.get()?;
    let ConnectionAddr::Tcp(host, _) = to.addr() else { return None };
    Some(dial(host).await)
}

/// Returns the stacks of the callers that wrote to a simulated connection of this thread since the last call of this function.
pub(crate) fn writes() -> Vec<Backtrace> {
    WRITES.replace(Some(Vec::new())).unwrap_or_default()
}

pub(in crate::backend) fn note_write() {
    WRITES.with_borrow_mut(|writes| {
        writes.iter_mut().for_each(|writes| writes.push(Backtrace::force_capture()))
    });
}
