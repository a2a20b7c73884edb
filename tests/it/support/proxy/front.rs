//! The kinds of streams over which clients reach a proxy.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

pub trait AsyncStream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> AsyncStream for S {}

pub type Stream = Pin<Box<dyn AsyncStream>>;

pub type Opening = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

/// The kind of stream that clients connect over.
#[derive(Clone)]
pub enum Front {
    Tcp,
    /// TLS, with the server's side of its handshake. It is a function, since some users of the proxy have no library for TLS.
    Tls(Arc<dyn Fn(TcpStream) -> Opening + Send + Sync>),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A connected client.
pub(super) enum Client {
    Tcp(TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Client {
    /// Duplicates the client's socket. The connection ends when all duplicates are closed.
    pub(super) fn socket(&self) -> io::Result<OwnedFd> {
        match self {
            Client::Tcp(stream) => stream.as_fd().try_clone_to_owned(),
            Client::Unix(stream) => stream.as_fd().try_clone_to_owned(),
        }
    }

    pub(super) async fn open(self, front: &Front) -> io::Result<Stream> {
        match (self, front) {
            (Client::Tcp(stream), Front::Tls(handshake)) => handshake(stream).await,
            (Client::Tcp(stream), _) => Ok(Box::pin(stream)),
            (Client::Unix(stream), _) => Ok(Box::pin(stream)),
        }
    }
}

/// The socket that accepts clients.
pub(super) enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// A listener that no runtime has registered yet.
pub(super) enum Bound {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

impl Front {
    pub(super) fn listen(&self, port: u16) -> io::Result<Bound> {
        match self {
            Front::Tcp | Front::Tls(_) => {
                let listener = std::net::TcpListener::bind(("127.0.0.1", port))?;
                listener.set_nonblocking(true)?;
                Ok(Bound::Tcp(listener))
            }
            Front::Unix(path) => {
                let _ = std::fs::remove_file(path);
                let listener = std::os::unix::net::UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Ok(Bound::Unix(listener))
            }
        }
    }
}

impl Listener {
    pub(super) fn new(bound: Bound) -> Listener {
        match bound {
            Bound::Tcp(listener) => Listener::Tcp(tokio::net::TcpListener::from_std(listener).unwrap()),
            Bound::Unix(listener) => Listener::Unix(tokio::net::UnixListener::from_std(listener).unwrap()),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Client> {
        match self {
            Listener::Tcp(listener) => {
                let client = listener.accept().await?.0;
                let _ = client.set_nodelay(true);
                Ok(Client::Tcp(client))
            }
            Listener::Unix(listener) => Ok(Client::Unix(listener.accept().await?.0)),
        }
    }
}
