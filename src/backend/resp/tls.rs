//! A stream over TLS, which callers write to as to a socket.
//!
//! Reader and writers have one state, which is locked while one of them uses it. What a caller writes is encrypted and given to the
//! socket by the caller; if that would have to wait, the connection's task goes on with it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use redis::io::tcp::socket2::SockRef;
use redis::{ErrorKind, RedisError, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::base::{Mutex, lock};
use crate::config::{Pem, Tls, library};

/// The number of bytes given to the TLS library at a time: one record.
const RECORD: usize = 16 << 10;

/// How long bytes that the TLS library was given may wait for room in the socket, if the socket has no such limit itself.
const LONGEST: Duration = Duration::from_secs(60);

pub(super) trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

/// Both halves of a connection over TLS. Cheap to clone.
#[derive(Clone)]
pub(super) struct Sealed(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// `None` in tests.
    socket: Option<Arc<TcpStream>>,
}

struct State {
    stream: Pin<Box<dyn Stream>>,
    /// Bytes that were taken from callers, but not entirely by the TLS library. They count as sent, since some of them may be.
    taken: Vec<u8>,
    /// Since when taken bytes wait for room.
    waiting: Option<Instant>,
    /// How long they may wait at most. Without this limit:
    ///
    /// 1. The socket is full. 2. The process is stopped for a minute. 3. The rest of a command that was given up long ago would be sent.
    ///
    /// The system gives up bytes in a socket after the same time.
    longest: Duration,
    /// Why no more is written, from the first error on.
    failed: Option<io::Error>,
}

impl Sealed {
    pub(super) fn new(
        stream: impl Stream + 'static,
        socket: Option<Arc<TcpStream>>,
        longest: Duration,
    ) -> Sealed {
        let state =
            State { stream: Box::pin(stream), taken: Vec::new(), waiting: None, longest, failed: None };
        Sealed(Arc::new(Shared { state: Mutex::new(state), socket }))
    }

    /// Takes what it can without waiting. If anything waits for room after that, the task has to be woken, since this has
    /// replaced its wakers.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.poll_write(&mut Context::from_waker(Waker::noop()), bytes) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Takes no more than a record, and nothing while anything waits for room.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = lock(&self.0.state);
        ready!(state.poll_flush(cx))?;
        let count = bytes.len().min(RECORD);
        state.taken.extend_from_slice(&bytes[..count]);
        // From here on some of the bytes may be sent, so an error is returned by the next call.
        let _ = state.poll_flush(cx);
        Poll::Ready(Ok(count))
    }

    /// Writes everything that was taken.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.0.state).poll_flush(cx)
    }

    /// Returns whether anything that was taken waits for room, or the next call fails.
    pub(super) fn is_owing(&self) -> bool {
        let state = lock(&self.0.state);
        state.waiting.is_some() || state.failed.is_some()
    }

    pub(super) fn socket(&self) -> Option<SockRef<'_>> {
        self.0.socket.as_deref().map(SockRef::from)
    }
}

impl State {
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.failed.is_none() && self.waiting.is_some_and(|since| since.elapsed() >= self.longest) {
            self.failed = Some(io::ErrorKind::TimedOut.into());
        }
        if let Some(why) = &self.failed {
            return Poll::Ready(Err(io::Error::new(why.kind(), why.to_string())));
        }
        let polled = self.poll_all(cx);
        self.waiting = match polled {
            Poll::Pending => Some(self.waiting.unwrap_or_else(Instant::now)),
            Poll::Ready(_) => None,
        };
        match polled {
            Poll::Ready(Err(why)) => {
                self.failed = Some(why);
                self.poll_flush(cx)
            }
            polled => polled,
        }
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A TLS library may require the same bytes again until it has taken them.
        while !self.taken.is_empty() {
            let count = ready!(self.stream.as_mut().poll_write(cx, &self.taken))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.taken.drain(..count);
        }
        self.stream.as_mut().poll_flush(cx)
    }
}

impl AsyncRead for Sealed {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        lock(&self.0.state).stream.as_mut().poll_read(cx, buf)
    }
}

/// A socket that is also kept by `Shared`, to shut it down.
struct Socket(Arc<TcpStream>);

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    /// Tries to write before it asks for the task's budget, so that a call is sent in the first poll that can send it.
    ///
    /// The server's last bytes say why it ended the connection, and still have to be read. So a write that fails because the
    /// connection has ended counts as written, as it would have a moment earlier: 1. The client writes its part of the handshake.
    /// 2. The server refuses the certificate at its beginning, sends an alert, and closes. 3. The rest can't be written, and the
    /// alert has not been read.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.0.poll_write_ready(cx))?;
                }
                Err(error) if is_end(&error) => return Poll::Ready(Ok(bytes.len())),
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(std::net::Shutdown::Write))
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Makes the handshake with the server of that name.
pub(super) async fn open(
    socket: TcpStream,
    host: &str,
    tls: &Tls,
    user_timeout: Option<Duration>,
) -> RedisResult<Sealed> {
    let connector = connector(tls)?;
    let socket = Arc::new(socket);
    let stream = handshake(connector, host, Socket(socket.clone())).await?;
    Ok(Sealed::new(stream, Some(socket), user_timeout.unwrap_or(LONGEST)))
}

/// Makes a connector. Files and the system's authorities are read each time, since they may be replaced while the process runs.
fn connector(tls: &Tls) -> RedisResult<library::Connector> {
    let authorities = match tls.trusted() {
        Some(pem) => library::authorities(&read(pem)?).map_err(wrong)?,
        None if tls.is_insecure() => library::no_authorities(),
        None => system()?,
    };
    let identity = match tls.identity() {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    let identity = identity.as_ref().map(|(certificate, key)| (&**certificate, &**key));
    library::connector(authorities, identity, tls.is_insecure()).map_err(wrong)
}

fn wrong(what: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, what).into()
}

fn read(pem: &Pem) -> RedisResult<Arc<[u8]>> {
    match pem {
        Pem::Text(text) => Ok(text.clone()),
        Pem::File(path) => match std::fs::read(path) {
            Ok(text) => Ok(text.into()),
            Err(error) => {
                let text = format!("{}: {error}", path.display());
                Err((ErrorKind::InvalidClientConfig, "a PEM file given to `Tls` can't be read", text).into())
            }
        },
    }
}

#[cfg(feature = "tls-rustls")]
async fn handshake(
    connector: library::Connector,
    host: &str,
    stream: impl Stream + Unpin + 'static,
) -> RedisResult<impl Stream + 'static> {
    let name = rustls::pki_types::ServerName::try_from(host.to_owned())
        .map_err(|_| wrong("its host is not a name that a certificate can be for"))?;
    let connected = tokio_rustls::TlsConnector::from(connector).connect(name, stream).await;
    connected.map_err(|error| {
        let is_other = matches!(
            error.get_ref().and_then(|error| error.downcast_ref()),
            Some(rustls::Error::InvalidMessage(_))
        );
        failed(error, is_other)
    })
}

#[cfg(not(feature = "tls-rustls"))]
async fn handshake(
    connector: library::Connector,
    host: &str,
    stream: impl Stream + Unpin + 'static,
) -> RedisResult<impl Stream + 'static> {
    let connected = tokio_native_tls::TlsConnector::from(connector).connect(host, stream).await;
    connected.map_err(|error| {
        let text = error.to_string().to_lowercase();
        let is_other = ["wrong version", "http request", "packet length", "unknown protocol", "eof"];
        let is_other = is_other.iter().any(|part| text.contains(part));
        failed(io::Error::other(error), is_other)
    })
}

/// Turns an I/O error into a connection error. `is_other`: the other side does not speak TLS.
fn failed(error: io::Error, is_other: bool) -> RedisError {
    if is_other || error.kind() == io::ErrorKind::UnexpectedEof {
        let text = format!("{error}; {NO_TLS}");
        return io::Error::new(error.kind(), text).into();
    }
    error.into()
}

const NO_TLS: &str = "what answers may not speak TLS: give the server's port for TLS, or a redis:// URL";

#[cfg(not(feature = "tls-rustls"))]
fn system() -> RedisResult<library::Authorities> {
    Ok(library::no_authorities())
}

/// Returns the system's authorities, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name. Skips those that rustls can't use.
#[cfg(feature = "tls-rustls")]
fn system() -> RedisResult<library::Authorities> {
    use rustls::RootCertStore;
    use rustls::pki_types::CertificateDer;

    /// The certificates that were read last.
    static LAST: Mutex<Option<(Vec<CertificateDer<'static>>, library::Authorities)>> = Mutex::new(None);

    let found = rustls_native_certs::load_native_certs();
    let mut last = lock(&LAST);
    if let Some((certificates, authorities)) = &*last
        && *certificates == found.certs
    {
        return Ok(authorities.clone());
    }
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs.iter().cloned());
    if store.is_empty() {
        let why = found.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
        let message = format!(
            "no certificate authority can be read on this machine ({why}), so no certificate is trusted; install \
             the system's authorities, or set SSL_CERT_FILE to a file of them"
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, message).into());
    }
    let authorities = library::Authorities::from(store);
    *last = Some((found.certs, authorities.clone()));
    Ok(authorities)
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
