//! Servers that answer some and refuse others.

use std::time::Duration;

use nestlock::{ErrorKind, Owner};

use crate::support::server::Server;
use crate::support::{builder, soon};

#[tokio::test]
async fn a_lock_in_a_full_server_is_unavailable_in_the_end() {
    let server = Server::start().await;
    let locks = builder(&server.url()).unavailable_after(Duration::from_secs(1)).connect().await.unwrap();
    server.set("maxmemory", 1).await;
    let error = soon("the refusal", locks.mutex("stock").lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("OOM")),
        "{error}"
    );
}

#[tokio::test]
async fn all_who_wait_hear_of_an_outage_together() {
    let server = Server::start().await;
    let limit = Duration::from_secs(1);
    let options = builder(&server.url()).unavailable_after(limit).node_timeout(Duration::from_secs(1));
    let locks = options.connect().await.unwrap();
    let stock = locks.mutex("stock");
    server.freeze();
    let waiters = (0..1000).map(|_| {
        let stock = stock.clone();
        async move { stock.lock().owner(&Owner::new()).await.unwrap_err().kind() }
    });
    // One after the other would take a thousand node timeouts.
    let kinds = soon("all answers", futures::future::join_all(waiters)).await;
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::Unavailable));
    server.thaw();
}
