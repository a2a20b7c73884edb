//! Connections over streams that tests and simulations make.

use redis::{RedisConnectionInfo, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::backend::resp::connection::{Connection, OnPush};
use crate::backend::resp::hello::over;
use crate::backend::resp::socket::{Reader, Writer};
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
use crate::backend::resp::tls::Sealed;
use crate::base::Mutex;

/// Returns both halves of a stream.
pub(super) fn simulated(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> (Reader, Writer) {
    let (reader, writer) = tokio::io::split(stream);
    (Box::pin(reader), Writer::Simulated(Mutex::new(Box::pin(writer))))
}

/// Returns both halves of a stream over TLS.
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
pub(super) fn sealed(stream: Sealed) -> (Reader, Writer) {
    (Box::pin(stream.clone()), Writer::Sealed(stream))
}

/// Does what is needed before the first command.
pub(crate) async fn open_simulated(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    settings: &RedisConnectionInfo,
    on_push: OnPush,
) -> RedisResult<Connection> {
    over(simulated(stream), settings, on_push).await
}

/// Connects like [`open_simulated`], but writes bytes as over TLS.
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
pub(crate) async fn open_sealed(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    settings: &RedisConnectionInfo,
    on_push: OnPush,
) -> RedisResult<Connection> {
    let longest = std::time::Duration::from_secs(60);
    over(sealed(Sealed::new(stream, None, longest)), settings, on_push).await
}

/// Returns a connection on which nothing was sent yet.
pub(crate) fn open_silent(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Connection {
    Connection::silent(simulated(stream), Box::new(drop), std::process::id())
}

/// Returns the copy of a connection that the child of a `fork` has.
pub(crate) fn open_copied(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Connection {
    Connection::silent(simulated(stream), Box::new(drop), 0)
}
