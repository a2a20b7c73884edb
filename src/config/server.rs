//! The address of a Redis server, and the credentials for it.

use std::fmt;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::config::destination::{Destination, over_tls};
use crate::config::tls::Tls;
use crate::error::{Result, rejected};

/// The address of a Redis server, and the credentials for it.
///
/// It is made from a URL or from a host and a port, wherever a server is expected:
///
/// - `redis://[[user]:password@]host[:port][/database]`; the port is 6379 unless given, and `valkey://` means the same
/// - `rediss://…`, the same over TLS, with the feature `tls-rustls` or `tls-native-tls`; with `#insecure` at its end the server's
///   certificate is not verified
/// - `unix:///path/to/redis.sock[?db=…&user=…&pass=…]`
/// - `("host", 6379)`
///
/// In user and password, percent-encode a character that has a meaning in URLs (`%40` for `@`). An address that can't be used is
/// kept, and reported by `connect` as an error of kind [`ErrorKind::Config`](crate::ErrorKind::Config). Neither `Debug` nor any error
/// shows credentials.
///
/// A query or a fragment that has no meaning here is an error too, since it may be a setting that is meant to protect something. The one
/// exception is `?protocol=…`, which has no effect: connections use RESP3. A user without a password is an error as well: the connection
/// would be that of the default user.
///
/// With the feature `redis-1`, a `Client` or a `ConnectionInfo` of the redis crate, version 1, is accepted too. Its linger time and its
/// protocol are not used. The redis crate does not return certificates that it was given: a client that was built with `TlsCertificates` is
/// refused; give the certificates to [`tls`](Server::tls) instead.
///
/// # TLS
///
/// With `tls-rustls` a server's certificate is verified by rustls, against the system's authorities or those in the files that
/// `SSL_CERT_FILE` and `SSL_CERT_DIR` name, read at each connection. With `tls-native-tls` alone the system's own TLS library
/// verifies it. With both, rustls does. [`tls`](Server::tls) sets other authorities, or a client certificate.
///
/// rustls uses the cryptography provider that the program has installed or, if there is none, that of ring.
///
/// ```
/// use nestlock::Server;
/// let server = Server::from("redis://user:p%40ss@redis.example/2");
/// assert_eq!(format!("{server:?}"), r#"Server("redis.example:6379")"#);
/// let same_without_credentials = Server::from(("redis.example", 6379));
/// # let _ = same_without_credentials;
/// ```
#[derive(Clone)]
pub struct Server(Result<Arc<Location>, Mistake>);

struct Location {
    address: Arc<str>,
    destination: Destination,
}

/// Describes why an address can't be used. It has no part of the address: in one that can't be read, a password can be anywhere.
type Mistake = Arc<str>;

impl Server {
    /// Connects over TLS with these settings, even if the address itself does not ask for TLS.
    ///
    /// The settings also hold for the servers that are found by this address: the masters that a sentinel names, the nodes of a
    /// cluster. `#insecure` at the end of a URL keeps its meaning.
    ///
    /// ```
    /// use nestlock::{Server, Tls};
    /// let server = Server::from(("redis.example", 6379)).tls(Tls::new().authorities_file("/etc/redis/ca.pem"));
    /// # let _ = server;
    /// ```
    #[must_use]
    pub fn tls(self, tls: Tls) -> Server {
        let Some(destination) = self.usable() else { return self };
        if matches!(destination.addr(), ConnectionAddr::Unix(_)) {
            return Server::unusable("a server on a Unix socket does not use TLS; leave out `tls`");
        }
        Server::to(destination.clone().with_tls(tls))
    }

    /// Returns how to connect, or an error of kind `Config` if the address can't be used.
    pub(crate) fn destination(&self) -> Result<Destination> {
        let Location { address, destination } = self.0.as_deref().map_err(|mistake| rejected(&**mistake))?;
        let login = destination.redis_settings();
        if login.password().is_none() && login.username().is_some_and(|user| user != "default") {
            return Err(rejected(NO_PASSWORD).at(address));
        }
        destination.tls().map_or(Ok(()), |tls| tls.check()).map_err(|error| error.at(address))?;
        Ok(destination.clone())
    }

    /// Returns `host:port` or the socket's path, without credentials: for messages, and to find servers that are given twice.
    pub(crate) fn address(&self) -> Arc<str> {
        self.0.as_ref().map_or_else(|_| "unusable address".into(), |location| location.address.clone())
    }

    /// Returns where it leads, if it can be used.
    pub(crate) fn usable(&self) -> Option<&Destination> {
        self.0.as_ref().ok().map(|location| &location.destination)
    }

    /// Returns a server at another address, with the same credentials and settings; or the same server, if it is on a Unix
    /// socket.
    pub(super) fn at(&self, host: &str, port: u16) -> Server {
        self.usable().map_or_else(|| self.clone(), |destination| Server::to(destination.at(host, port)))
    }

    /// Reads a URL. The scheme of TLS is read here, since the redis crate knows it only with features that are not needed otherwise.
    fn from_url(text: &str) -> Server {
        let Some(mut url) = redis::parse_redis_url(text) else {
            return Server::unusable(if has_known_scheme(text) { MALFORMED } else { UNKNOWN_SCHEME });
        };
        let (is_tls, is_socket) =
            (["rediss", "valkeys"].contains(&url.scheme()), url.scheme().ends_with("unix"));
        let known: &[&str] = if is_socket { &["db", "user", "pass", "protocol"] } else { &["protocol"] };
        if url.query_pairs().any(|(name, _)| !known.contains(&&*name)) {
            return Server::unusable(UNKNOWN_QUERY);
        }
        // The redis crate would ignore them, and connect as the default user.
        if is_socket && (!url.username().is_empty() || url.password().is_some() || url.port().is_some()) {
            return Server::unusable(SOCKET_LOGIN);
        }
        let insecure = match url.fragment() {
            None => false,
            Some("insecure") if is_tls => true,
            Some(_) => return Server::unusable(UNKNOWN_FRAGMENT),
        };
        url.set_fragment(None);
        if is_tls && url.set_scheme("redis").is_err() {
            return Server::unusable(MALFORMED);
        }
        match url.into_connection_info() {
            Ok(info) => {
                let addr = match info.addr().clone() {
                    ConnectionAddr::Tcp(host, port) if is_tls => over_tls(host, port, insecure),
                    other => other,
                };
                Server::from_info(info.set_addr(addr))
            }
            // Its description is fixed text; its detail would repeat a part of the URL.
            Err(e) => Server::unusable(unreadable(&e)),
        }
    }

    fn from_host(host: &str, port: u16) -> Server {
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if bare.is_empty() || port == 0 {
            return Server::unusable("a server needs a host that is not empty and a port that is not 0");
        }
        if bare.contains(['@', '/', '?', '#']) || bare.contains(char::is_whitespace) {
            return Server::unusable(
                "the host of a server is a name or an IP address alone; to give more, use a URL: redis://user:password@host:port/database",
            );
        }
        match (bare, port).into_connection_info() {
            Ok(info) => Server::from_info(info),
            Err(e) => Server::unusable(unreadable(&e)),
        }
    }

    fn from_info(info: ConnectionInfo) -> Server {
        match info.addr() {
            ConnectionAddr::TcpTls { tls_params: Some(_), .. } => Server::unusable(CERTIFICATES),
            _ => Server::to(Destination::new(info)),
        }
    }

    fn to(destination: Destination) -> Server {
        if destination.tls().is_some() && !has_tls() {
            return Server::unusable(NO_TLS);
        }
        let address = address_of(destination.addr()).into();
        Server(Ok(Arc::new(Location { address, destination })))
    }

    fn unusable(mistake: impl Into<Mistake>) -> Server {
        Server(Err(mistake.into()))
    }
}

const NO_TLS: &str = "this server's address asks for TLS, but nestlock was built without it: \
     enable its feature `tls-rustls` or `tls-native-tls`";

const NO_PASSWORD: &str = "its URL has a user and no password, so its connections would be those of the default user: write both, \
     redis://user:password@host:port, where any password will do for a user who needs none, or remove the user, as beside `credentials`";

const CERTIFICATES: &str = "the redis crate does not return the certificates, or the choice to accept any host name, that this client \
     was built with: make the `Server` from its URL, and pass the certificates to `Server::tls`";

const UNKNOWN_SCHEME: &str = "the server's address can't be used: it does not begin with redis://, rediss:// (TLS) or unix://; write \
     redis://user:password@host:port/database. Sentinels are given by `Master::sentinel`, the nodes of a cluster by `Master::cluster`";

const MALFORMED: &str = "the server's address can't be used: it is not a URL, or its port is not a number up to 65535; write \
     redis://user:password@host:port/database, and percent-encode special characters, such as `%2F` for a `/` in the password";

const UNKNOWN_QUERY: &str = "the server's address can't be used: its URL has a query parameter that is not known; write \
     redis://user:password@host:port/database, or unix:///path?db=database&user=user&pass=password, and percent-encode special \
     characters";

const SOCKET_LOGIN: &str = "the server's address can't be used: in the URL of a Unix socket, the user, the password and the database are \
     query parameters; write unix:///path?db=database&user=user&pass=password, and percent-encode special characters";

const UNKNOWN_FRAGMENT: &str = "the server's address can't be used: after `#` only `insecure` may follow, and only in a \
     rediss:// URL; write redis://user:password@host:port/database, and percent-encode special characters";

const fn has_tls() -> bool {
    cfg!(any(feature = "tls-rustls", feature = "tls-native-tls"))
}

/// Returns whether a text begins like the URL of a server.
fn has_known_scheme(text: &str) -> bool {
    let scheme = text.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    let known = ["redis", "rediss", "valkey", "valkeys", "unix", "redis+unix", "valkey+unix"];
    scheme.is_some_and(|scheme| known.contains(&&*scheme))
}

/// Describes what is wrong with a URL, without any part of it.
fn unreadable(error: &redis::RedisError) -> String {
    let description = error.to_string();
    let why =
        description.split(" - ").next().filter(|_| error.kind() == redis::ErrorKind::InvalidClientConfig);
    format!(
        "the server's address can't be used: {}; write redis://user:password@host:port/database, \
         and percent-encode special characters",
        why.unwrap_or("it is not well formed")
    )
}

/// Shows an address. Host names are in lower case, so that they compare without case, and IPv6 addresses are in brackets before a
/// port.
fn address_of(addr: &ConnectionAddr) -> String {
    let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = addr else {
        return addr.to_string();
    };
    let host = host.to_lowercase();
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.address()).finish()
    }
}

impl From<&str> for Server {
    fn from(url: &str) -> Server {
        Server::from_url(url)
    }
}

impl From<String> for Server {
    fn from(url: String) -> Server {
        Server::from_url(&url)
    }
}

impl From<&String> for Server {
    fn from(url: &String) -> Server {
        Server::from_url(url)
    }
}

impl From<(&str, u16)> for Server {
    fn from((host, port): (&str, u16)) -> Server {
        Server::from_host(host, port)
    }
}

impl From<(String, u16)> for Server {
    fn from((host, port): (String, u16)) -> Server {
        Server::from_host(&host, port)
    }
}

#[cfg(feature = "redis-1")]
mod redis_1 {
    use super::{ConnectionInfo, Server};

    #[cfg_attr(docsrs, doc(cfg(feature = "redis-1")))]
    impl From<redis::Client> for Server {
        fn from(client: redis::Client) -> Server {
            Server::from(&client)
        }
    }

    #[cfg_attr(docsrs, doc(cfg(feature = "redis-1")))]
    impl From<&redis::Client> for Server {
        fn from(client: &redis::Client) -> Server {
            Server::from(client.get_connection_info())
        }
    }

    #[cfg_attr(docsrs, doc(cfg(feature = "redis-1")))]
    impl From<ConnectionInfo> for Server {
        fn from(info: ConnectionInfo) -> Server {
            Server::from_info(info)
        }
    }

    #[cfg_attr(docsrs, doc(cfg(feature = "redis-1")))]
    impl From<&ConnectionInfo> for Server {
        fn from(info: &ConnectionInfo) -> Server {
            Server::from_info(info.clone())
        }
    }
}

#[cfg(test)]
mod tests;
