//! Commands that ran although their callers are gone: the background undoes them.

use super::{long_lived, tidy};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::soon;

#[tokio::test]
async fn a_request_dropped_after_the_server_granted_is_undone() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = long_lived(&proxy.url()).await;
    let granted = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let mut request = Box::pin(locks.mutex("stock").lock());
    tokio::select! {
        _ = granted.done() => {}
        _ = &mut request => panic!("the reply is held"),
    }
    assert_eq!(server.keys().await, ["stock"]);
    drop(request);
    granted.let_through().await;
    tidy(&server).await;
}

#[tokio::test]
async fn a_request_dropped_before_its_command_reached_the_server_is_undone_when_it_does() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = long_lived(&proxy.url()).await;
    let held = proxy.on(|c| c.is("acquire")).times(1).hold();
    let mut request = Box::pin(locks.mutex("stock").lock());
    tokio::select! {
        _ = held.seen() => {}
        _ = &mut request => panic!("the command is held"),
    }
    drop(request);
    let settled = proxy.on(|c| c.is("release")).watch();
    held.let_through().await;
    settled.seen().await;
    tidy(&server).await;
}

#[tokio::test]
async fn a_nested_request_dropped_after_the_server_granted_leaves_the_outer_hold() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = long_lived(&proxy.url()).await;
    let stock = locks.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let granted = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let mut inner = Box::pin(stock.lock());
    tokio::select! {
        _ = granted.done() => {}
        _ = &mut inner => panic!("the reply is held"),
    }
    let count = async || server.ask::<Option<String>>(&["HGET", "stock", outer.hold_id()]).await;
    assert_eq!(count().await.as_deref(), Some("2"));
    drop(inner);
    granted.let_through().await;
    crate::support::eventually("the count of one guard", async || count().await.as_deref() == Some("1"))
        .await;
    assert!(!outer.is_lost());
    outer.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn a_release_that_is_dropped_under_way_is_finished() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = long_lived(&proxy.url()).await;
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let release = proxy.on(|c| c.is("release")).times(1).lose_and_reset();
    {
        let mut releasing = Box::pin(guard.release());
        tokio::select! {
            biased;
            _ = release.done() => {}
            _ = &mut releasing => panic!("the release is lost"),
        }
    }
    tidy(&server).await;
    soon("the lock", stock.lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn clean_up_goes_on_when_the_callers_runtime_is_gone() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = long_lived(&proxy.url()).await;
    let granted = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let stock = locks.mutex("stock");
    let (cancels, cancelled) = tokio::sync::oneshot::channel::<()>();
    let callers = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::select! { _ = stock.lock() => panic!("its answer is held"), _ = cancelled => {} }
        });
    });
    granted.done().await;
    cancels.send(()).unwrap();
    tokio::task::spawn_blocking(|| callers.join().unwrap()).await.unwrap();
    granted.let_through().await;
    tidy(&server).await;
}
