//! What `connect` requires of a server if grants wait for its replicas.

use nestlock::ErrorKind;

use super::SHORT;
use crate::support::builder;
use crate::support::server::Server;

#[tokio::test]
async fn a_server_that_refuses_wait_is_reported() {
    let without = Server::with(&["--rename-command", "WAIT", ""]).await;
    let denied = Server::start().await;
    denied.ask::<String>(&["ACL", "SETUSER", "default", "-wait"]).await;
    for server in [without, denied] {
        builder(&server.url()).connect().await.unwrap();
        let error = builder(&server.url()).replicas(1, SHORT).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        for text in ["`replicas`", "WAIT", "`+wait`", &server.port().to_string()] {
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}

#[tokio::test]
async fn a_replica_is_no_master() {
    let (_master, replicas) = super::master(1).await;
    let error = builder(&replicas[0].url()).replicas(1, SHORT).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("is a replica"), "{error}");
}

#[tokio::test]
async fn no_replicas_need_no_second_connection() {
    let server = Server::start().await;
    let locks = builder(&server.url()).replicas(0, SHORT).connect().await.unwrap();
    assert_eq!(server.clients().await, 1);
    drop(locks);
    let locks = builder(&server.url()).replicas(1, SHORT).connect().await.unwrap();
    crate::support::eventually("two connections", async || server.clients().await == 2).await;
    locks.close().await.unwrap();
    crate::support::eventually("none", async || server.clients().await == 0).await;
}
