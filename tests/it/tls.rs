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
    let told = format!("{error} {error:?}");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{told}");
    assert!(told.to_lowercase().contains("certificate") && !told.contains("hidden"), "{told}");
}

#[tokio::test]
async fn a_server_without_tls_is_told() {
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
