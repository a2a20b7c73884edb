//! Every way to lose a hold is reported.

use nestlock::{ErrorKind, Loss};

use super::{LONG, SECOND};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{SOON_OVER, assert_gone, builder, eventually, locks, soon, watched};

#[tokio::test]
async fn an_evicted_key_is_a_loss() {
    let server = Server::with(&["--maxmemory-policy", "allkeys-random"]).await;
    let (_locks, guard) = watched(builder(&server.url())).await;
    server.set("maxmemory", 1).await;
    eventually("the eviction", async || {
        let _ = server.try_ask::<()>(&["SET", "other", "1"]).await;
        server.ask::<i64>(&["EXISTS", "stock"]).await == 0
    })
    .await;
    server.set("maxmemory", 0).await;
    assert_gone(guard).await;
}

#[tokio::test]
async fn a_key_that_became_anothers_is_a_loss() {
    let server = Server::start().await;
    let (_locks, guard) = watched(builder(&server.url())).await;
    server.ask::<()>(&["SET", "stock", "theirs", "PX", "60000"]).await;
    assert_gone(guard).await;
    assert_eq!(server.ask::<String>(&["GET", "stock"]).await, "theirs");
}

/// The client knows only the hold's earlier state, and the server may come back empty.
#[tokio::test]
async fn nothing_is_nested_while_the_server_is_known_to_be_away() {
    let server = Server::start().await;
    let stock = locks(&server.url()).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    guard.scope(stock.run(async |_| {})).await.unwrap();
    server.kill();
    let nests = async || stock.lock().within(SOON_OVER).run(async |_| {}).await;
    // The runs succeed until the client notices that the connection has ended.
    eventually("a refusal", async || nests().await.is_err()).await;
    assert_eq!(nests().await.unwrap_err().kind(), ErrorKind::Unavailable);
    server.restart_empty().await;
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
    assert_eq!(nests().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_server_that_was_restarted_with_its_data_keeps_the_hold() {
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let proxy = Proxy::to(&server).await;
    let stock = locks(&proxy.url()).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let settled = proxy.on(|c| c.is("settle")).delay_reply(SECOND / 100);
    server.restart().await;
    settled.done().await;
    soon("a re-entry", stock.run(async |_| {})).await.unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    assert!(server.keys().await.is_empty());
}

/// Redisson does this for `unlock` and `forceUnlock`: DEL, and PUBLISH of `0`.
#[tokio::test]
async fn a_deletion_with_a_message_is_noticed_at_once_where_somebody_waits() {
    let server = Server::start().await;
    let ours = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let guard = ours.mutex("stock").lock().await.unwrap();
    let mut waiting = Box::pin(ours.mutex("stock").lock().owner(&nestlock::Owner::new()));
    assert!(futures::poll!(&mut waiting).is_pending());
    eventually("the waiter listens", async || !server.channels().await.is_empty()).await;
    server.ask::<()>(&["DEL", "stock"]).await;
    eventually("the loss", async || {
        server.ask::<()>(&["PUBLISH", "redisson_lock__channel:{stock}", "0"]).await;
        guard.is_lost()
    })
    .await;
    assert_eq!(guard.loss(), Some(Loss::Gone));
    soon("the waiter", waiting).await.unwrap().release().await.unwrap();
}
