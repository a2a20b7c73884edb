//! Servers that are reached over TLS, whose certificate an authority of the test's own has signed.

#![cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]

use nestlock::{ErrorKind, Locks};

use crate::support::process::Worker;
use crate::support::server::Server;

#[tokio::test]
async fn a_lock_is_taken_and_released_over_tls() {
    let server = Server::tls().await;
    let authority = server.ca_file();
    // A process of its own: where the system's authorities stand is read once in a process.
    let mut worker = Worker::with_env(
        "locks_over_tls",
        &[("url", &server.tls_url())],
        &[("SSL_CERT_FILE", authority.to_str().unwrap())],
    );
    worker.expect("holding").await;
    assert_eq!(server.keys().await, ["stock"]);
    let plain = crate::support::locks(&server.url()).await;
    let waits = tokio::spawn(async move { plain.mutex("stock").lock().await });
    crate::support::eventually("the waiter", async || !server.channels().await.is_empty()).await;
    worker.say("release");
    worker.expect("released").await;
    let guard = crate::support::soon("the lock", waits).await.unwrap().unwrap();
    worker.say("wait");
    crate::support::eventually("the waiter over TLS", async || !server.channels().await.is_empty()).await;
    guard.release().await.unwrap();
    worker.expect("holding").await;
    assert!(worker.wait().await.success());
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_not_trusted() {
    let server = Server::tls().await;
    let error = Locks::connect(server.tls_url().replace("rediss://", "rediss://:hidden@")).await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{text}");
    assert!(text.to_lowercase().contains("certificate") && !text.contains("hidden"), "{text}");
}

#[tokio::test]
async fn a_server_without_tls_is_reported() {
    let server = Server::start().await;
    let error = Locks::connect(format!("rediss://127.0.0.1:{}", server.port())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// No library that another crate turns on makes a difference to it.
#[tokio::test]
async fn a_url_that_asks_for_no_proof_is_asked_for_none() {
    let server = Server::tls().await;
    let insecure = crate::support::locks(&format!("{}/#insecure", server.tls_url())).await;
    let guard = insecure.mutex("stock").lock().await.unwrap();
    assert_eq!(server.keys().await, ["stock"]);
    guard.release().await.unwrap();
}

#[cfg(feature = "redis-1")]
mod certificates {
    use nestlock::{Error, ErrorKind, Locks};
    use redis::{ClientTlsConfig, TlsCertificates};

    use crate::support::builder;
    use crate::support::server::Server;

    /// A connection that trusts the server's authority, and has this certificate for itself.
    async fn connect(server: &Server, own: Option<(Vec<u8>, Vec<u8>)>) -> nestlock::Result<Locks> {
        let client_tls = own.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let root_cert = Some(std::fs::read(server.ca_file()).unwrap());
        // A server without a password takes any user's.
        let url = server.tls_url().replace("rediss://", "rediss://default:hidden@");
        let client = redis::Client::build_with_tls(url, TlsCertificates { client_tls, root_cert }).unwrap();
        builder("redis://127.0.0.1").server(client).connect().await
    }

    fn unavailable(error: &Error) -> String {
        let text = format!("{error} {error:?}").to_lowercase();
        assert!(error.kind() == ErrorKind::Unavailable && !text.contains("hidden"), "{text}");
        text
    }

    #[tokio::test]
    async fn a_certificate_for_another_name_is_not_trusted() {
        let server = Server::tls().await;
        connect(&server, None).await.unwrap().close().await.unwrap();
        server.restart_as_another().await;
        let text = unavailable(&connect(&server, None).await.unwrap_err());
        assert!(text.contains("not trusted") && text.contains("certificate"), "{text}");
    }

    #[tokio::test]
    async fn a_client_shows_the_certificate_that_it_was_given() {
        let server = Server::tls_with(&["--tls-auth-clients", "yes"]).await;
        unavailable(&connect(&server, None).await.unwrap_err());
        unavailable(&connect(&server, Some(server.client_certificate(false))).await.unwrap_err());
        let locks = connect(&server, Some(server.client_certificate(true))).await.unwrap();
        let guard = locks.mutex("stock").lock().await.unwrap();
        assert_eq!(server.keys().await, ["stock"]);
        guard.release().await.unwrap();
    }
}

#[cfg(feature = "redis-1")]
mod expired {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use nestlock::Locks;
    use tokio::net::{TcpListener, TcpStream};
    use tracing::Level;

    use crate::support::server::Server;
    use crate::support::{eventually, log};

    /// One of three masters, whose certificate expires while it is connected to: the lock works on without it.
    #[tokio::test]
    async fn a_master_whose_certificate_has_expired_is_warned_of_once_in_an_outage() {
        let (one, two, three) = (Server::start().await, Server::start().await, Server::tls().await);
        let root_cert = Some(std::fs::read(three.ca_file()).unwrap());
        // A server without a password takes any user's.
        let (port, attempts) = counted(three.tls_url().trim_start_matches("rediss://").to_owned()).await;
        let address = format!("localhost:{port}");
        let url = format!("rediss://default:hidden@{address}");
        let certificates = redis::TlsCertificates { client_tls: None, root_cert };
        let connect = async || {
            let client = redis::Client::build_with_tls(url.as_str(), certificates.clone()).unwrap();
            let masters = [one.url().into(), two.url().into(), nestlock::Server::from(client)];
            Locks::builder().servers(masters).delayed_restart(false).connect().await.unwrap()
        };
        let warnings = || {
            log::all(|event| {
                event.level == Level::WARN
                    && event.mentions("certificate")
                    && event.mentions("xpired")
                    && event.mentions(&address)
            })
        };
        let locks = connect().await;
        for outage in 1..=2 {
            three.restart_expired(true).await;
            eventually("a warning", async || warnings().len() >= outage).await;
            // It is tried again in that time.
            locks.mutex("stock").run(async {}).await.unwrap();
            let before = attempts.load(SeqCst);
            eventually("more attempts", async || attempts.load(SeqCst) >= before + 3).await;
            assert_eq!(warnings().len(), outage, "{:?}", warnings());
            three.restart_expired(false).await;
            let again = |event: &log::Event| {
                event.message.contains("reconnected to Redis") && event.mentions(&address)
            };
            eventually("it is back", async || log::all(again).len() == outage).await;
        }
        // From the start on.
        three.restart_expired(true).await;
        eventually("a warning", async || warnings().len() >= 3).await;
        let other = connect().await;
        eventually("a warning", async || warnings().len() >= 4).await;
        other.mutex("stock").run(async {}).await.unwrap();
        let before = attempts.load(SeqCst);
        eventually("more attempts of both", async || attempts.load(SeqCst) >= before + 8).await;
        assert_eq!(warnings().len(), 4, "{:?}", warnings());
        assert!(warnings().iter().all(|event| !event.mentions("hidden")));
    }

    /// A port that leads to another, and how many connections it took. The server does not count those that fail for a certificate.
    async fn counted(to: String) -> (u16, Arc<AtomicUsize>) {
        let door = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (port, count) = (door.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let taken = count.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = door.accept().await {
                taken.fetch_add(1, SeqCst);
                let to = to.clone();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(to).await?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await
                });
            }
        });
        (port, count)
    }
}
