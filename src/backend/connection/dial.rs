//! Makes connections, and chooses the certificate authorities that they trust.

use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, RedisResult};

use crate::backend::connection::redis_error;

/// A connection for commands, by the redis crate.
pub(super) async fn connect(
    client: &Client,
    config: &AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    #[cfg(test)]
    if let Some(stream) = testing::stream(client).await {
        let settings = client.get_connection_info().redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream?, config.clone()).await?;
        drop(tokio::spawn(driver));
        return Ok(connection);
    }
    trusting(client)?.get_multiplexed_async_connection_with_config(config).await
}

/// A connection for messages.
pub(crate) async fn listen(client: &Client) -> RedisResult<PubSub> {
    #[cfg(test)]
    if let Some(stream) = testing::stream(client).await {
        return PubSub::new(client.get_connection_info().redis_settings(), stream?).await;
    }
    trusting(client)?.get_async_pubsub().await.map_err(|error| without_credentials(error, client))
}

/// A server repeats the arguments of a command that it does not know. Those of `HELLO` are the credentials. A proxy may repeat them
/// in any error.
pub(super) fn without_credentials(error: RedisError, client: &Client) -> RedisError {
    let command = error.detail().and_then(|text| text.split_once(", with args beginning with"));
    if let Some((command, _)) = command {
        return (error.kind(), "the server does not know a command", command.to_owned()).into();
    }
    let password = client.get_connection_info().redis_settings().password().filter(|text| !text.is_empty());
    if password.is_some_and(|password| error.to_string().contains(password)) {
        let is_login = redis_error::is_credentials(&error);
        let kind = if is_login { ErrorKind::AuthenticationFailed } else { error.kind() };
        return (kind, "the server's error is not shown, since the password is a part of it").into();
    }
    error
}

/// The error text of an attempt that took longer than its limit.
pub(crate) fn too_long(limit: Duration) -> String {
    format!("the server can't be reached within {limit:?}; check that it runs, its address, and the network")
}

/// The client with the system's authorities, if it uses TLS and has none configured.
///
/// By default the redis crate trusts no authority if both of its TLS libraries are enabled, and any crate of the program may
/// enable the other one. They are read for each connection, as by the redis crate: they may be renewed while the process runs.
#[cfg(feature = "tls-rustls")]
fn trusting(client: &Client) -> RedisResult<Client> {
    use redis::{ConnectionAddr, TlsCertificates};
    let info = client.get_connection_info();
    if let ConnectionAddr::TcpTls { insecure: false, tls_params: None, .. } = info.addr() {
        let root_cert = Some(roots::system()?.into_bytes());
        return Client::build_with_tls(info.clone(), TlsCertificates { client_tls: None, root_cert });
    }
    Ok(client.clone())
}

#[cfg(not(feature = "tls-rustls"))]
fn trusting(client: &Client) -> RedisResult<&Client> {
    Ok(client)
}

#[cfg(feature = "tls-rustls")]
mod roots {
    use std::io::{Error, ErrorKind};
    use std::sync::Mutex;

    use redis::RedisResult;
    use rustls::RootCertStore;
    use rustls::pki_types::CertificateDer;

    use crate::base::lock;

    /// The authorities that were read last, and their PEM text.
    static LAST: Mutex<(Vec<CertificateDer<'static>>, String)> = Mutex::new((Vec::new(), String::new()));

    /// The system's authorities, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name, as PEM. Skips those that rustls can't
    /// use.
    pub(super) fn system() -> RedisResult<String> {
        let read = rustls_native_certs::load_native_certs();
        if read.certs.is_empty() {
            let why = read.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
            let message = format!(
                "no certificate authority can be read on this machine ({why}), so no certificate is trusted; install \
                 the system's authorities, or set SSL_CERT_FILE to a file of them"
            );
            return Err(Error::new(ErrorKind::NotFound, message).into());
        }
        let mut last = lock(&LAST);
        if last.0 != read.certs {
            let mut store = RootCertStore::empty();
            let usable = read.certs.iter().filter(|cert| store.add((*cert).clone()).is_ok());
            let text = usable.map(|cert| pem(cert)).collect();
            *last = (read.certs, text);
        }
        Ok(last.1.clone())
    }

    pub(super) fn pem(der: &[u8]) -> String {
        let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
        for line in der.chunks(48) {
            line.chunks(3).for_each(|three| text.extend(base64(three)));
            text.push('\n');
        }
        text + "-----END CERTIFICATE-----\n"
    }

    /// One to three bytes as four characters.
    fn base64(bytes: &[u8]) -> [char; 4] {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |at: usize| match at <= bytes.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * at)) as usize & 63]),
            false => '=',
        };
        [0, 1, 2, 3].map(digit)
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_repeats_the_password_is_not_shown() {
        let client = Client::open("redis://bob:hunter2@localhost").unwrap();
        let server = "localhost:6379".into();
        for (code, text, kind, shown) in [
            ("WRONGPASS", "HELLO 3 AUTH bob hunter2", crate::ErrorKind::Denied, "password is wrong"),
            ("ERR", "no such thing: hunter2", crate::ErrorKind::Unavailable, "is not shown"),
            ("ERR", "no such thing", crate::ErrorKind::Unavailable, "no such thing"),
        ] {
            let error = redis::make_extension_error(code.to_owned(), Some(text.to_owned()));
            let error = redis_error::unreachable(without_credentials(error, &client), &server);
            let text = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
            assert_eq!(error.kind(), kind, "{text}");
            assert!(text.contains(shown) && !text.contains("hunter2"), "{text}");
        }
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn a_certificate_is_written_as_it_is_read() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;

        for length in 1..200 {
            let der: Vec<u8> = (0..length).map(|at: u8| at.wrapping_mul(83) ^ length).collect();
            assert_eq!(CertificateDer::from_pem_slice(roots::pem(&der).as_bytes()).unwrap().as_ref(), der);
        }
    }
}
