//! What `close` finishes, and what is left to be done after it.

use std::time::Duration;

use futures::future::join_all;
use nestlock::{Error, ErrorKind, Loss, Owner};

use super::{LONG, long_lived, tidy};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, eventually, locks, soon};

/// The kind, of an error that tells of `close`.
fn closed(error: Error) {
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(error.to_string().contains("was closed"), "{error}");
}

#[tokio::test]
async fn close_finishes_queued_releases() {
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let mutexes: Vec<_> = (0..100).map(|at| locks.mutex(format!("stock:{at}"))).collect();
    let guards = join_all(mutexes.iter().map(|mutex| mutex.lock())).await;
    assert_eq!(server.keys().await.len(), 100);
    drop(guards);
    locks.close().await.unwrap();
    assert!(server.keys().await.is_empty());
    eventually("the connection's end", async || server.clients().await == 0).await;
}

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

#[tokio::test]
async fn close_may_be_called_again_and_at_once() {
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    drop(guard);
    let closed = join_all((0..5).map(|_| locks.close())).await;
    assert!(closed.iter().all(Result::is_ok), "{closed:?}");
    locks.clone().close().await.unwrap();
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn everything_is_closed_after_close() {
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    locks.close().await.unwrap();
    server.reset_commands_run().await;
    closed(stock.lock().await.unwrap_err());
    closed(stock.lock().within(Duration::ZERO).await.unwrap_err());
    closed(stock.try_lock().await.unwrap_err());
    closed(stock.run(async {}).await.unwrap_err());
    closed(stock.try_lock().run(async {}).await.unwrap_err());
    closed(stock.is_locked().await.unwrap_err());
    closed(stock.remaining_lease().await.unwrap_err());
    closed(stock.force_release().await.unwrap_err());
    closed(guard.extend(LONG).await.unwrap_err());
    closed(locks.mutex("other").lock().await.unwrap_err());
    let run = server.commands_run().await;
    assert!(!run.contains_key("evalsha") && !run.contains_key("eval"), "{run:?}");
    guard.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn a_guard_can_be_released_after_close() {
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let stock = locks.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    locks.close().await.unwrap();
    assert_eq!(server.keys().await, ["stock"]);
    inner.release().await.unwrap();
    assert_eq!(server.keys().await, ["stock"]);
    outer.release().await.unwrap();
    assert!(server.keys().await.is_empty());
    drop((locks, stock));
    eventually("the connection's end", async || server.clients().await == 0).await;
}

#[tokio::test]
async fn a_guard_dropped_after_close_is_released_as_well_as_possible() {
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    locks.close().await.unwrap();
    drop(guard);
    tidy(&server).await;
}

#[tokio::test]
async fn renewal_ends_with_close_and_the_guard_is_lost_at_its_end() {
    let server = Server::start().await;
    let lease = Duration::from_secs(2);
    let locks = builder(&server.url()).lease(lease).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    locks.close().await.unwrap();
    let until = guard.valid_until();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert!(tokio::time::Instant::now() >= until);
    assert_eq!(guard.valid_until().max(until), until.max(guard.valid_until()));
    eventually("the lease's end", async || server.keys().await.is_empty()).await;
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Expired));
}

#[tokio::test]
async fn requests_that_wait_end_with_close() {
    let server = Server::start().await;
    let (holder, locks) = (long_lived(&server.url()).await, long_lived(&server.url()).await);
    let guard = holder.mutex("stock").lock().await.unwrap();
    let waiters: Vec<_> = (0..5)
        .map(|_| {
            let stock = locks.mutex("stock");
            tokio::spawn(async move { stock.lock().await })
        })
        .collect();
    eventually("the waiters", async || !server.channels().await.is_empty()).await;
    locks.close().await.unwrap();
    for waiter in waiters {
        closed(soon("a waiter's end", waiter).await.unwrap().unwrap_err());
    }
    eventually("the channel's end", async || server.channels().await.is_empty()).await;
    guard.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn close_tells_of_releases_that_are_left_to_their_leases() {
    let server = Server::start().await;
    let locks =
        builder(&server.url()).lease(LONG).node_timeout(Duration::from_millis(200)).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    server.freeze();
    drop(guard);
    let error = soon("the close", locks.close()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    server.thaw();
    // It goes on in the background, and ends there.
    tidy(&server).await;
    eventually("the last connection's end", async || server.clients().await == 0).await;
    locks.close().await.unwrap();
}

#[test]
fn waiting_requests_and_new_ones_are_closed_when_the_runtime_that_connected_has_ended() {
    let looks = tokio::runtime::Runtime::new().unwrap();
    let server = looks.block_on(Server::start());
    let theirs = tokio::runtime::Runtime::new().unwrap();
    let locks = theirs.block_on(long_lived(&server.url()));
    let holder = looks.block_on(long_lived(&server.url()));
    let tells = |error: Error| {
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
        tells(soon("the waiter's end", waiter).await.unwrap().unwrap_err());
        tells(stock.lock().await.unwrap_err());
        tells(stock.try_lock().await.unwrap_err());
        tells(stock.is_locked().await.unwrap_err());
        tells(stock.force_release().await.unwrap_err());
        // The waiter may have been asking: what that left, if anything, is left to its lease.
        let closed = soon("the close", locks.close()).await;
        assert!(closed.is_ok() || closed.is_err_and(|error| error.kind() == ErrorKind::Unavailable));
        guard.release().await.unwrap();
        drop(holder);
        tidy(&server).await;
        eventually("the last connection's end", async || server.clients().await == 0).await;
    });
}

#[tokio::test]
async fn a_grant_that_comes_after_close_is_undone() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let ours = locks(&proxy.url()).await;
    let stock = ours.mutex("stock");
    let late = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let asks = tokio::spawn(stock.lock());
    late.seen().await;
    soon("close", ours.close()).await.unwrap();
    late.let_through().await;
    assert_eq!(soon("the answer", asks).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    eventually("the undoing", async || server.keys().await.is_empty()).await;
}

#[test]
fn close_tells_of_releases_that_the_end_of_the_runtime_left_to_their_leases() {
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
