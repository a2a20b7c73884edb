//! Settings for the system's TLS library.

use native_tls::{Certificate, Identity, TlsConnector};

use crate::config::tls::wrong;

/// The authorities to trust. `None` means those of the system.
pub(crate) type Authorities = Option<Vec<Certificate>>;
pub(crate) type Connector = TlsConnector;

pub(crate) fn no_authorities() -> Authorities {
    None
}

pub(crate) fn authorities(pem: &[u8]) -> Result<Authorities, &'static str> {
    let certificates = Certificate::stack_from_pem(pem).map_err(|_| wrong::AUTHORITIES)?;
    if certificates.is_empty() { Err(wrong::AUTHORITIES) } else { Ok(Some(certificates)) }
}

pub(crate) fn connector(
    authorities: Authorities,
    identity: Option<(&[u8], &[u8])>,
    insecure: bool,
) -> Result<Connector, &'static str> {
    let mut builder = TlsConnector::builder();
    if insecure {
        builder.danger_accept_invalid_certs(true).danger_accept_invalid_hostnames(true);
    }
    if let Some(authorities) = authorities {
        builder.disable_built_in_roots(true);
        for certificate in authorities {
            builder.add_root_certificate(certificate);
        }
    }
    if let Some((certificate, key)) = identity {
        // The library's error does not say which certificate is wrong.
        Certificate::from_pem(certificate).map_err(|_| wrong::CERTIFICATE)?;
        builder.identity(Identity::from_pkcs8(certificate, key).map_err(|_| wrong::KEY)?);
    }
    builder.build().map_err(|_| if identity.is_some() { wrong::KEY } else { wrong::AUTHORITIES })
}
