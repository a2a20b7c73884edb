//! Whom a connection over TLS trusts, and which certificate the client presents.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Result;
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
use crate::error::rejected;

/// The TLS settings of a [`Server`](crate::Server).
///
/// By default a server's certificate is verified against the system's authorities, and no client certificate is presented. With the feature
/// `tls-rustls`, the files that `SSL_CERT_FILE` and `SSL_CERT_DIR` name replace the system's authorities. Each method replaces one of these
/// settings.
///
/// ```
/// use nestlock::{Server, Tls};
///
/// # fn server(ca: &str) -> Server {
/// let tls = Tls::new().authorities(ca).client_certificate_files("/run/tls/tls.crt", "/run/tls/tls.key");
/// Server::from("rediss://redis.example").tls(tls)
/// # }
/// ```
///
/// Settings that can't be used are reported by `connect` as an error of kind [`Config`](crate::ErrorKind::Config). Neither `Debug` nor
/// any error shows a part of a certificate or of a key.
///
/// # Rotation
///
/// Files, including the system's authorities, are read at each new connection, so that a certificate that is replaced on disk is used
/// from the next connection on; a standing connection keeps the one that it was made with. If a file can't be used at that time, the
/// attempt fails, and is repeated. PEM that is given as text is used for as long as its [`Locks`](crate::Locks) lives: to replace it,
/// give files, or connect again.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    authorities: Option<Pem>,
    client: Option<(Pem, Pem)>,
    insecure: bool,
}

/// PEM text, or the file that has it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Pem {
    Text(Arc<[u8]>),
    File(Arc<Path>),
}

impl Tls {
    /// Creates the default settings: the system's authorities, and no client certificate.
    #[must_use]
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts these certificate authorities, in PEM, in place of the system's.
    #[must_use]
    pub fn authorities(self, pem: impl AsRef<[u8]>) -> Tls {
        Tls { authorities: Some(Pem::text(pem)), ..self }
    }

    /// Like [`authorities`](Tls::authorities), from a PEM file that is read at each new connection.
    #[must_use]
    pub fn authorities_file(self, path: impl Into<PathBuf>) -> Tls {
        Tls { authorities: Some(Pem::file(path)), ..self }
    }

    /// Presents this certificate to the server: the certificate with those of its issuers, and its private key, each in PEM.
    ///
    /// The key has to be in PKCS#8 (`BEGIN PRIVATE KEY`); with the feature `tls-rustls` it may be in PKCS#1 or SEC1 too.
    #[must_use]
    pub fn client_certificate(self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Tls {
        Tls { client: Some((Pem::text(certificate), Pem::text(key))), ..self }
    }

    /// Like [`client_certificate`](Tls::client_certificate), from PEM files that are read at each new connection.
    #[must_use]
    pub fn client_certificate_files(self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        Tls { client: Some((Pem::file(certificate), Pem::file(key))), ..self }
    }

    /// Connects to any server, whatever certificate it has: anybody between it and the client can read and change everything, and
    /// gets the password. This is the same as `#insecure` at the end of a `rediss://` URL.
    #[must_use]
    pub fn insecure(self) -> Tls {
        Tls { insecure: true, ..self }
    }
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
impl Tls {
    pub(crate) fn trusted(&self) -> Option<&Pem> {
        self.authorities.as_ref()
    }

    /// The client's certificate and its key.
    pub(crate) fn identity(&self) -> Option<(&Pem, &Pem)> {
        self.client.as_ref().map(|(certificate, key)| (certificate, key))
    }

    pub(crate) fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// Rejects PEM that can't be used, if it was given as text.
    pub(super) fn check(&self) -> Result<()> {
        let authorities = match &self.authorities {
            Some(Pem::Text(pem)) => library::authorities(pem),
            _ => Ok(library::no_authorities()),
        };
        let identity = match &self.client {
            Some((Pem::Text(certificate), Pem::Text(key))) => Some((&**certificate, &**key)),
            _ => None,
        };
        let connector =
            authorities.and_then(|authorities| library::connector(authorities, identity, self.insecure));
        connector.map(drop).map_err(rejected)
    }
}

#[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
impl Tls {
    /// Rejects nothing, since a server over TLS is rejected as such.
    pub(super) fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl Pem {
    fn text(pem: impl AsRef<[u8]>) -> Pem {
        Pem::Text(pem.as_ref().into())
    }

    fn file(path: impl Into<PathBuf>) -> Pem {
        Pem::File(path.into().into())
    }
}

/// Shows where the settings come from, and nothing of their content.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = self.client.as_ref();
        f.debug_struct("Tls")
            .field("authorities", &self.authorities)
            .field("client_certificate", &client.map(|(certificate, _)| certificate))
            .field("client_key", &client.map(|(_, key)| key))
            .field("insecure", &self.insecure)
            .finish()
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::Text(_) => f.write_str("text"),
            Pem::File(path) => path.fmt(f),
        }
    }
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
pub(crate) mod library {
    //! The TLS library: rustls, if both are enabled.

    #[cfg(all(feature = "tls-native-tls", not(feature = "tls-rustls")))]
    pub(crate) use super::native_tls::{Authorities, Connector, authorities, connector, no_authorities};
    #[cfg(feature = "tls-rustls")]
    pub(crate) use super::rustls::{Authorities, Connector, authorities, connector, no_authorities};
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
mod wrong {
    //! Messages about PEM that can't be used. They have no parser's error, which may hold a part of the PEM.

    pub(super) const AUTHORITIES: &str =
        "the certificate authorities given to `Tls` can't be used: give one or several certificates in PEM";

    pub(super) const CERTIFICATE: &str = "the client's certificate given to `Tls` can't be used: give it, followed by those of its issuers, in PEM";

    pub(super) const KEY: &str = "the client's private key given to `Tls` can't be used: give the key of its certificate, in PEM (PKCS#8) and without a password";
}

#[cfg(all(feature = "tls-native-tls", not(feature = "tls-rustls")))]
mod native_tls;
#[cfg(feature = "tls-rustls")]
mod rustls;

#[cfg(test)]
mod tests;
