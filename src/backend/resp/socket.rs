//! The two halves of a stream to a server.

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use redis::io::tcp::{TcpSettings, socket2::SockRef};
use redis::{ConnectionAddr, ErrorKind, RedisResult};
use tokio::io::AsyncRead;
#[cfg(test)]
use tokio::io::AsyncWrite;
use tokio::net::{TcpStream, lookup_host, tcp};

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
use crate::backend::resp::tls::{self, Sealed};
use crate::backend::tasks::Tasks;
use crate::config::Destination;

/// The receiving half, for the one task that reads.
pub(super) type Reader = Pin<Box<dyn AsyncRead + Send>>;

/// The sending half, for any thread.
pub(super) enum Writer {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(tokio::net::unix::OwnedWriteHalf),
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    Sealed(Sealed),
    /// The half of a simulated stream, which only the reading task uses.
    #[cfg(test)]
    Simulated(crate::base::Mutex<Pin<Box<dyn AsyncWrite + Send>>>),
}

impl Writer {
    /// Writes what it can without waiting, on any thread and outside a runtime too.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Writer::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Writer::Unix(half) => half.try_write(bytes),
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            Writer::Sealed(stream) => stream.try_write(bytes),
            #[cfg(test)]
            Writer::Simulated(_) => {
                crate::backend::dialing::note_write();
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }

    /// Reads what has arrived, on any thread and outside a runtime too. Fails over TLS.
    pub(super) fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            Writer::Sealed(_) => Err(io::ErrorKind::Unsupported.into()),
            _ => (&*self.socket().ok_or(io::ErrorKind::Unsupported)?).read(bytes),
        }
    }

    /// Ends the connection for both sides, even if one of its halves is still in use.
    pub(super) fn shut_down(&self) {
        // It fails if the other side has ended the connection.
        let _ = self.socket().map(|socket| socket.shutdown(Shutdown::Both));
    }

    /// Returns whether bytes are in the socket that the task has not read.
    pub(super) fn is_unread(&self) -> bool {
        let is_unread =
            |socket: SockRef<'_>| socket.peek(&mut [MaybeUninit::uninit()]).is_ok_and(|count| count > 0);
        self.socket().is_some_and(is_unread)
    }

    fn socket(&self) -> Option<SockRef<'_>> {
        match self {
            Writer::Tcp(half) => Some(SockRef::from(half.as_ref())),
            #[cfg(unix)]
            Writer::Unix(half) => Some(SockRef::from(half.as_ref())),
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            Writer::Sealed(stream) => stream.socket(),
            #[cfg(test)]
            Writer::Simulated(_) => None,
        }
    }

    /// Returns whether some of the bytes taken wait for room, so that the task has to [flush](Writer::poll_flush) them.
    pub(super) fn is_owing(&self) -> bool {
        match self {
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            Writer::Sealed(stream) => stream.is_owing(),
            _ => false,
        }
    }

    /// Gives everything that was taken to the socket. For the task that reads.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            Writer::Sealed(stream) => stream.poll_flush(cx),
            _ => {
                let _ = cx;
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Writes bytes. For the task that reads.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self {
                Writer::Tcp(half) => ready!(half.as_ref().poll_write_ready(cx))?,
                #[cfg(unix)]
                Writer::Unix(half) => ready!(half.as_ref().poll_write_ready(cx))?,
                #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
                Writer::Sealed(stream) => return stream.poll_write(cx, bytes),
                #[cfg(test)]
                Writer::Simulated(half) => return crate::base::lock(half).as_mut().poll_write(cx, bytes),
            }
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

/// Connects to a server.
pub(super) async fn open(to: &Destination) -> RedisResult<(Reader, Writer)> {
    match to.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let (reader, writer) = connect(host, *port, to.tcp_settings()).await?.into_split();
            Ok((Box::pin(reader), Writer::Tcp(writer)))
        }
        #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
        ConnectionAddr::TcpTls { host, port, .. } => {
            let settings = to.tcp_settings();
            let socket = connect(host, *port, settings).await?;
            #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
            let longest = settings.user_timeout();
            #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
            let longest = None;
            let stream = tls::open(socket, host, &to.tls().unwrap_or_default(), longest).await?;
            Ok((Box::pin(stream.clone()), Writer::Sealed(stream)))
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            let (reader, writer) = tokio::net::UnixStream::connect(path).await?.into_split();
            Ok((Box::pin(reader), Writer::Unix(writer)))
        }
        _ => Err((ErrorKind::InvalidClientConfig, "this kind of address is not supported here").into()),
    }
}

async fn connect(host: &str, port: u16, settings: &TcpSettings) -> RedisResult<TcpStream> {
    let stream = connect_to_any(lookup_host((host, port)).await?.collect()).await?;
    set_options(&stream, settings)?;
    Ok(stream)
}

/// Tries all addresses at once, so that one that does not answer does not delay the others.
async fn connect_to_any(addresses: Vec<SocketAddr>) -> RedisResult<TcpStream> {
    match *addresses {
        // `redis_error::unreachable` reports it by this text.
        [] => return Err((ErrorKind::InvalidClientConfig, "No address found for host").into()),
        [address] => return Ok(TcpStream::connect(address).await?),
        _ => {}
    }
    let mut attempts = Tasks::new();
    for address in addresses {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut why = io::Error::from(io::ErrorKind::NotConnected);
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Some(Ok(stream)) => return Ok(stream),
            Some(Err(error)) => why = error,
            None => {}
        }
    }
    Err(why.into())
}

fn set_options(stream: &TcpStream, settings: &TcpSettings) -> io::Result<()> {
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(())
}

#[cfg(test)]
mod tests;
