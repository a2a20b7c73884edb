//! The kinds of streams over which a proxy can disturb the connection to a server.

use crate::support::proxy::{Front, Proxy};
use crate::support::server::Server;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Tcp,
    Unix,
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    Tls,
}

impl Over {
    /// Returns a proxy that clients reach over this kind of stream, and the address that is given to clients.
    pub fn proxy(self, server: &Server) -> (Proxy, nestlock::Server) {
        match self {
            Over::Tcp => given(Proxy::over(Front::Tcp, server)),
            Over::Unix => given(Proxy::over(Front::Unix(server.dir().join("proxy")), server)),
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            Over::Tls => tls::proxy(server),
        }
    }
}

fn given(proxy: Proxy) -> (Proxy, nestlock::Server) {
    let given = nestlock::Server::from(proxy.url());
    (proxy, given)
}

/// Makes each of these functions a test over each kind of stream.
macro_rules! over_each_stream {
    ($($test:ident),* $(,)?) => {
        mod over_tcp {
            $(#[tokio::test] async fn $test() { super::$test(crate::streams::Over::Tcp).await; })*
        }

        mod over_unix_sockets {
            $(#[tokio::test] async fn $test() { super::$test(crate::streams::Over::Unix).await; })*
        }

        #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
        mod over_tls {
            $(#[tokio::test] async fn $test() { super::$test(crate::streams::Over::Tls).await; })*
        }
    };
}

pub(crate) use over_each_stream;

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
mod tls {
    use std::sync::Arc;

    use tokio::net::TcpStream;

    use crate::support::proxy::{Front, Opening, Proxy, Stream};
    use crate::support::server::Server;
    use crate::support::tls::Certificates;

    pub(super) fn proxy(server: &Server) -> (Proxy, nestlock::Server) {
        let certificates = Certificates::new();
        let acceptor = acceptor(certificates.server());
        let handshake = move |socket: TcpStream| -> Opening {
            let acceptor = acceptor.clone();
            Box::pin(async move {
                let stream = acceptor.accept(socket).await.map_err(std::io::Error::other)?;
                Ok::<Stream, _>(Box::pin(stream))
            })
        };
        let proxy = Proxy::over(Front::Tls(Arc::new(handshake)), server);
        let tls = nestlock::Tls::new().authorities(certificates.authority());
        let given = nestlock::Server::from(proxy.url()).tls(tls);
        (proxy, given)
    }

    #[cfg(feature = "tls-rustls")]
    fn acceptor([certificate, key]: [Vec<u8>; 2]) -> tokio_rustls::TlsAcceptor {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let certificate = CertificateDer::from_pem_slice(&certificate).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&key).unwrap();
        Arc::new(config.with_single_cert(vec![certificate], key).unwrap()).into()
    }

    #[cfg(not(feature = "tls-rustls"))]
    fn acceptor([certificate, key]: [Vec<u8>; 2]) -> tokio_native_tls::TlsAcceptor {
        let identity = native_tls::Identity::from_pkcs8(&certificate, &key).unwrap();
        native_tls::TlsAcceptor::new(identity).unwrap().into()
    }
}
