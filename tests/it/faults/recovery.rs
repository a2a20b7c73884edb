//! Servers that stop and come back.

use super::{LONG, tidy};
use crate::support::server::Server;
use crate::support::{builder, eventually, soon};

#[tokio::test]
async fn a_server_that_ends_idle_connections_is_no_trouble() {
    let server = Server::with(&["--timeout", "1"]).await;
    let locks = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    for _ in 0..2 {
        let before = server.client_ids().await;
        assert!(!before.is_empty());
        eventually("another connection", async || {
            let now = server.client_ids().await;
            !now.is_empty() && now.is_disjoint(&before)
        })
        .await;
        soon("a re-entry", stock.run(async |_| {})).await.unwrap();
        assert!(!guard.is_lost());
    }
    soon("the release", guard.release()).await.unwrap();
    tidy(&server).await;
}
