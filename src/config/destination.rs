//! How to connect to one server.

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo};

use crate::config::tls::Tls;

/// A server's address, the credentials for it, and the settings of connections to it.
#[derive(Clone)]
pub(crate) struct Destination {
    info: ConnectionInfo,
    tls: Tls,
}

impl Destination {
    pub(super) fn new(info: ConnectionInfo) -> Destination {
        Destination { info, tls: Tls::default() }
    }

    /// Returns this destination over TLS, with these settings.
    pub(super) fn with_tls(self, tls: Tls) -> Destination {
        let addr = match self.info.addr().clone() {
            ConnectionAddr::Tcp(host, port) => over_tls(host, port, false),
            other => other,
        };
        Destination { info: self.info.set_addr(addr), tls }
    }

    pub(crate) fn with_redis_settings(&self, settings: RedisConnectionInfo) -> Destination {
        Destination { info: self.info.clone().set_redis_settings(settings), tls: self.tls.clone() }
    }

    pub(crate) fn with_tcp_settings(&self, settings: TcpSettings) -> Destination {
        Destination { info: self.info.clone().set_tcp_settings(settings), tls: self.tls.clone() }
    }

    /// Returns this destination at another address. A socket has no other address.
    pub(crate) fn at(&self, host: &str, port: u16) -> Destination {
        let host = host.to_owned();
        let addr = match self.info.addr().clone() {
            ConnectionAddr::Tcp(..) => ConnectionAddr::Tcp(host, port),
            ConnectionAddr::TcpTls { insecure, .. } => over_tls(host, port, insecure),
            other => other,
        };
        Destination { info: self.info.clone().set_addr(addr), tls: self.tls.clone() }
    }

    pub(crate) fn addr(&self) -> &ConnectionAddr {
        self.info.addr()
    }

    pub(crate) fn redis_settings(&self) -> &RedisConnectionInfo {
        self.info.redis_settings()
    }

    pub(crate) fn tcp_settings(&self) -> &TcpSettings {
        self.info.tcp_settings()
    }

    /// Returns the settings of a connection over TLS, or `None` if it is not over TLS.
    pub(crate) fn tls(&self) -> Option<Tls> {
        match self.info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => Some(self.tls.clone().insecure()),
            ConnectionAddr::TcpTls { .. } => Some(self.tls.clone()),
            _ => None,
        }
    }
}

pub(super) fn over_tls(host: String, port: u16, insecure: bool) -> ConnectionAddr {
    ConnectionAddr::TcpTls { host, port, insecure, tls_params: None }
}
