//! What `close` finishes, and what remains to be done after it.

use nestlock::{Error, ErrorKind, Owner};

use super::{long_lived, tidy};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{eventually, soon};

#[tokio::test]
async fn close_waits_for_a_release_that_is_under_way() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = long_lived(&proxy.url()).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    let held = proxy.on(|c| c.is("release")).times(1).hold();
    drop(guard);
    held.seen().await;
    let mut closing = Box::pin(locks.close());
    assert!(futures::poll!(&mut closing).is_pending());
    held.let_through().await;
    soon("the close", closing).await.unwrap();
    assert!(server.keys().await.is_empty());
}

#[test]
fn waiting_requests_and_new_ones_are_closed_when_the_runtime_that_connected_has_ended() {
    let looks = tokio::runtime::Runtime::new().unwrap();
    let server = looks.block_on(Server::start());
    let theirs = tokio::runtime::Runtime::new().unwrap();
    let locks = theirs.block_on(long_lived(&server.url()));
    let holder = looks.block_on(long_lived(&server.url()));
    let assert_closed = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        assert!(error.to_string().contains("runtime") && error.to_string().contains("ended"), "{error}");
    };
    let guard = looks.block_on(async { holder.mutex("stock").lock().await.unwrap() });
    let stock = locks.mutex("stock");
    let waiter = looks.spawn({
        let stock = stock.clone();
        async move { stock.lock().await }
    });
    looks.block_on(eventually("the waiter", async || !server.channels().await.is_empty()));
    theirs.shutdown_background();
    looks.block_on(async {
        assert_closed(soon("the waiter's end", waiter).await.unwrap().unwrap_err());
        assert_closed(stock.lock().await.unwrap_err());
        assert_closed(stock.try_lock().await.unwrap_err());
        assert_closed(stock.is_locked().await.unwrap_err());
        assert_closed(stock.force_release().await.unwrap_err());
        // The waiter may have been asking. If its command left a field, the field ends with its lease.
        let closed = soon("the close", locks.close()).await;
        assert!(closed.is_ok() || closed.is_err_and(|error| error.kind() == ErrorKind::Unavailable));
        guard.release().await.unwrap();
        drop(holder);
        tidy(&server).await;
        eventually("the last connection's end", async || server.clients().await == 0).await;
    });
}

/// The process may end after `close`, so `close` has to wait.
#[tokio::test]
async fn close_waits_for_a_grant_that_is_under_way_and_undoes_it() {
    for what in ["lock", "run", "several names", "resume"] {
        let server = Server::start().await;
        let proxy = Proxy::to(&server).await;
        let (theirs, ours) = (long_lived(&server.url()).await, long_lived(&proxy.url()).await);
        let claimed = theirs.mutex("claimed").lock().await.unwrap();
        let claim = claimed.into_claim().await.unwrap();
        if what != "resume" {
            server.ask::<i64>(&["DEL", "claimed"]).await;
        }
        let late = proxy.on(|c| c.is("acquire") || c.is("move")).times(1).hold_reply();
        let asks = tokio::spawn({
            let (stock, several) = (ours.mutex("stock"), ours.mutexes(["stock", "order"]));
            let claimed = ours.mutex("claimed");
            async move {
                match what {
                    "lock" => stock.lock().await.map(drop),
                    "run" => stock.run(|_| std::future::pending::<()>()).await,
                    "several names" => several.lock().await.map(drop),
                    _ => claimed.resume(&claim).await.map(drop),
                }
            }
        });
        late.seen().await;
        let mut closing = Box::pin(ours.close());
        assert!(futures::poll!(&mut closing).is_pending(), "{what}");
        late.let_through().await;
        soon("the close", closing).await.unwrap();
        assert!(server.keys().await.is_empty(), "{what}: {:?}", server.keys().await);
        assert_eq!(soon("the answer", asks).await.unwrap().unwrap_err().kind(), ErrorKind::Closed, "{what}");
    }
}

#[test]
fn close_reports_releases_that_the_end_of_the_runtime_left_to_their_leases() {
    let looks = tokio::runtime::Runtime::new().unwrap();
    let server = looks.block_on(Server::start());
    let theirs = tokio::runtime::Runtime::new().unwrap();
    let locks = theirs.block_on(long_lived(&server.url()));
    let stock = locks.mutex("stock");
    let guard = theirs.block_on(async { stock.lock().await.unwrap() });
    theirs.shutdown_background();
    looks.block_on(async {
        eventually("the end of the background", async || {
            let stranger = Owner::new();
            stock.try_lock().owner(&stranger).await.is_err_and(|error| error.kind() == ErrorKind::Closed)
        })
        .await;
        drop(guard);
        let error = soon("the close", locks.close()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("runtime"), "{error}");
    });
}
