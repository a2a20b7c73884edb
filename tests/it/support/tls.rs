//! Certificates for the tests' servers.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tempfile::TempDir;

pub const CA: &str = "ca.pem";
pub const CERT: &str = "server.pem";
pub const KEY: &str = "server.key";

/// A certificate for the same key that has expired long ago.
pub const EXPIRED: &str = "expired.pem";
/// A copy of the certificate that has not expired.
pub const FRESH: &str = "fresh.pem";

/// A certificate for the same key, but for another name.
pub const ANOTHER: &str = "another.pem";
/// Two client certificates for the same key: one of the test's authority, and one of an authority that nobody trusts.
pub const CLIENT: &str = "client.pem";
pub const STRANGER: &str = "stranger.pem";

/// An authority's certificate and those that it has signed, in their own directory.
pub struct Certificates(TempDir);

impl Certificates {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Certificates {
        let dir = tempfile::Builder::new().prefix("nestlock-certificates-").tempdir().unwrap();
        write_certificates(dir.path());
        Certificates(dir)
    }

    pub(super) fn copy_to(&self, dir: &Path) {
        for file in std::fs::read_dir(self.0.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), dir.join(file.file_name())).unwrap();
        }
    }

    /// Returns the server's certificate, its key, and the certificate of its authority, each with the name of its option.
    pub fn options(&self) -> [(&'static str, PathBuf); 3] {
        options(self.0.path())
    }

    /// Returns the certificate of the authority, in PEM.
    pub fn authority(&self) -> Vec<u8> {
        std::fs::read(self.0.path().join(CA)).unwrap()
    }

    /// Returns a server's certificate and its key, in PEM.
    pub fn server(&self) -> [Vec<u8>; 2] {
        self.read([CERT, KEY])
    }

    /// Returns a client's certificate and its key, in PEM.
    pub fn client(&self) -> [Vec<u8>; 2] {
        self.read([CLIENT, KEY])
    }

    fn read(&self, files: [&str; 2]) -> [Vec<u8>; 2] {
        files.map(|file| std::fs::read(self.0.path().join(file)).unwrap())
    }
}

pub(super) fn options(dir: &Path) -> [(&'static str, PathBuf); 3] {
    [("tls-cert-file", CERT), ("tls-key-file", KEY), ("tls-ca-cert-file", CA)]
        .map(|(option, file)| (option, dir.join(file)))
}

/// Writes an authority's certificate, and the certificates for `localhost` that it has signed, with their key.
fn write_certificates(dir: &Path) {
    let (authority, unknown) = (authority("nestlock test authority"), authority("another authority"));
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut expired = CertificateParams::new(names.clone()).unwrap();
    (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let expired = expired.signed_by(&key, &authority).unwrap();
    let of = |name: &str| CertificateParams::new(vec![name.to_owned()]).unwrap();
    let another = of("another.invalid").signed_by(&key, &authority).unwrap();
    let (client, stranger) =
        (of("client").signed_by(&key, &authority), of("client").signed_by(&key, &unknown));
    let server = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
    std::fs::write(dir.join(CA), authority.pem()).unwrap();
    std::fs::write(dir.join(EXPIRED), expired.pem()).unwrap();
    std::fs::write(dir.join(ANOTHER), another.pem()).unwrap();
    std::fs::write(dir.join(CLIENT), client.unwrap().pem()).unwrap();
    std::fs::write(dir.join(STRANGER), stranger.unwrap().pem()).unwrap();
    std::fs::write(dir.join(FRESH), server.pem()).unwrap();
    std::fs::write(dir.join(CERT), server.pem()).unwrap();
    std::fs::write(dir.join(KEY), key.serialize_pem()).unwrap();
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    authority.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap()
}
