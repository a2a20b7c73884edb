//! The server's side of TLS.

use std::io;
use std::pin::Pin;
#[cfg(feature = "tls-rustls")]
use std::sync::Arc;

use crate::backend::resp::tls::Stream;

/// The server's end of a connection over TLS.
pub(in crate::backend::resp) type Server = Pin<Box<dyn Stream>>;

/// A certificate for `localhost`, in PEM, and its key. It is its own authority.
pub(in crate::backend::resp) fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

#[cfg(feature = "tls-rustls")]
pub(in crate::backend::resp) async fn accept(
    certificate: &str,
    key: &str,
    stream: impl Stream + Unpin + 'static,
) -> io::Result<Server> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    Ok(Box::pin(tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(stream).await?))
}

#[cfg(not(feature = "tls-rustls"))]
pub(in crate::backend::resp) async fn accept(
    certificate: &str,
    key: &str,
    stream: impl Stream + Unpin + 'static,
) -> io::Result<Server> {
    let identity = native_tls::Identity::from_pkcs8(certificate.as_bytes(), key.as_bytes()).unwrap();
    let acceptor = tokio_native_tls::TlsAcceptor::from(native_tls::TlsAcceptor::new(identity).unwrap());
    Ok(Box::pin(acceptor.accept(stream).await.map_err(io::Error::other)?))
}
