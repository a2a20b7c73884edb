//! Certificates for a server of the tests.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

pub const CA: &str = "ca.pem";
pub const CERT: &str = "server.pem";
pub const KEY: &str = "server.key";

/// Writes an authority's certificate, and a certificate for `localhost` that it signed, with its key.
pub fn write_certificates(dir: &Path) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    authority.distinguished_name.push(DnType::CommonName, "nestlock test authority");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let server = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
    std::fs::write(dir.join(CA), authority.pem()).unwrap();
    std::fs::write(dir.join(CERT), server.pem()).unwrap();
    std::fs::write(dir.join(KEY), key.serialize_pem()).unwrap();
}
