//! A holder that has lost its lock sends further commands: none of them touches the next holder's lock.

use nestlock::Loss;

use super::SECOND;
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, eventually, soon};

/// A renewal ran, but its answer did not arrive. So the hold is lost for this client, while its key stays for another lease.
#[tokio::test]
async fn the_remaining_key_of_a_lost_hold_is_removed_when_its_last_guard_is_dropped() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(6 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    let late = proxy.on(|c| c.is("renew") || c.is("settle")).hold_reply();
    late.done().await;
    server.ask::<()>(&["PEXPIRE", "stock", "120000"]).await;
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    late.let_through().await;
    let ends = proxy.on(|c| c.is("release")).watch();
    assert_eq!(server.keys().await, ["stock"]);
    let field = guard.hold_id().to_owned();
    drop(guard);
    let end = ends.seen().await;
    assert_eq!(end.argv()[..2], [field, "0".to_owned()]);
    eventually("the key's end", async || server.keys().await.is_empty()).await;
}
