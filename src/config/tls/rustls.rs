//! Settings for rustls.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::config::tls::wrong;

pub(crate) type Authorities = Arc<RootCertStore>;
pub(crate) type Connector = Arc<ClientConfig>;

pub(crate) fn no_authorities() -> Authorities {
    RootCertStore::empty().into()
}

pub(crate) fn authorities(pem: &[u8]) -> Result<Authorities, &'static str> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| wrong::AUTHORITIES)?;
        store.add(certificate).map_err(|_| wrong::AUTHORITIES)?;
    }
    if store.is_empty() { Err(wrong::AUTHORITIES) } else { Ok(store.into()) }
}

/// Makes a connector with the cryptography that the program has chosen or, if it has chosen none, with ring's.
pub(crate) fn connector(
    authorities: Authorities,
    identity: Option<(&[u8], &[u8])>,
    insecure: bool,
) -> Result<Connector, &'static str> {
    let chosen = CryptoProvider::get_default().cloned();
    let provider = chosen.unwrap_or_else(|| Arc::new(ring::default_provider()));
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().map_err(
            |_| "the program's provider of cryptography for rustls has no version of TLS in common with it",
        )?;
    let builder = if insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(NoVerification(provider)))
    } else {
        builder.with_root_certificates(authorities)
    };
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth().into()) };
    let certificates = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.ok().filter(|certificates| !certificates.is_empty());
    let certificates = certificates.ok_or(wrong::CERTIFICATE)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| wrong::KEY)?;
    builder.with_client_auth_cert(certificates, key).map(Arc::new).map_err(|_| wrong::KEY)
}

/// Accepts any certificate.
#[derive(Debug)]
struct NoVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
