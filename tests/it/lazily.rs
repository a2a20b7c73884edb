//! Programs that start while their servers can't be reached.

use std::task::Poll;

use futures::FutureExt;
use nestlock::{Builder, ErrorKind, Locks, Memory, Owner};
use tokio::task::yield_now;
use tracing::Level;

use crate::quorum::servers::{over, servers};
use crate::replicas::master;
use crate::streams::Over;
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::sentinel::{Group, NAME};
use crate::support::server::Server;
use crate::support::{SECOND, builder, eventually, log, options, quorum, soon};

/// Checks three things about a home that can't be reached. A request ends by its own limit. A request without a limit waits until `come`
/// has started the home. The log reports both states. `named` is the text by which the home's error and its log line name it.
async fn waits_for(home: Builder, named: &str, come: impl AsyncFnOnce()) -> Locks {
    let of_home = |level: Level, text: &str| {
        let (text, named) = (text.to_owned(), named.to_owned());
        move |event: &log::Event| {
            event.level == level && event.message.contains(&text) && event.mentions(&named)
        }
    };
    let locks = home.unavailable_after(600 * SECOND).connect_lazily().unwrap();
    let stock = locks.mutex("stock");
    let error = soon("its end", stock.try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = soon("its end", stock.lock().within(SECOND / 10)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let waits = tokio::spawn(stock.lock());
    log::recorded(of_home(Level::WARN, "can't be reached now; it is used once it can")).await;
    come().await;
    soon("the lock", waits).await.unwrap().unwrap().release().await.unwrap();
    log::recorded(of_home(Level::INFO, "connected to Redis, which could not be reached before")).await;
    assert_eq!(log::all(of_home(Level::WARN, "can't be reached now")).len(), 1);
    locks
}

crate::streams::over_each_stream! {
    a_server_that_comes_later_is_used,
}

async fn a_server_that_comes_later_is_used(over: Over) {
    let server = Server::start().await;
    let (_proxy, address) = over.proxy(&server);
    let named = format!("{address:?}");
    let named = named.split('"').nth(1).unwrap_or(&named).to_owned();
    server.kill();
    let home = options(address);
    let locks = waits_for(home, &named, async || server.restart_empty().await).await;
    // From now on locks are taken and released there as on any other server.
    let guard = locks.mutex("stock").lock().await.unwrap();
    assert_eq!(server.keys().await, ["stock"]);
    guard.release().await.unwrap();
    locks.close().await.unwrap();
}

#[tokio::test]
async fn replicas_that_acknowledge_grants_are_waited_for_too() {
    let (server, _replicas) = master(1).await;
    let proxy = Proxy::to(&server).await;
    let refusing = proxy.refuse().await;
    let home = builder(&proxy.url()).replicas(1, 60 * SECOND).lease(600 * SECOND);
    waits_for(home, &proxy.port().to_string(), async || drop(refusing)).await;
}

#[tokio::test]
async fn sentinels_that_come_later_name_the_master() {
    let group = Group::start().await;
    let proxy = Proxy::to_sentinel(&group.sentinels[0]).await;
    let refusing = proxy.refuse().await;
    let home = options(nestlock::Master::sentinel([proxy.url()], NAME));
    waits_for(home, &proxy.port().to_string(), async || drop(refusing)).await;
}

#[tokio::test]
async fn a_cluster_that_comes_later_is_used() {
    let cluster = Cluster::shared().await;
    let proxy = Proxy::to(cluster.node(0)).await;
    let refusing = proxy.refuse().await;
    let home = options(nestlock::Master::cluster([proxy.url()])).prefix("late:");
    waits_for(home, &proxy.port().to_string(), async || drop(refusing)).await;
}

#[tokio::test]
async fn a_majority_that_comes_later_is_used() {
    let servers = servers(3).await;
    servers[1..].iter().for_each(Server::kill);
    let named = servers[1].port().to_string();
    let home = over(&servers);
    waits_for(home, &named, async || servers[1].restart_empty().await).await;
}

/// The claim was not moved, so nothing has to be ended.
#[tokio::test]
async fn a_claim_whose_resume_is_dropped_before_it_reached_a_server_is_still_good() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let guard = builder(&server.url())
        .lease(600 * SECOND)
        .connect()
        .await
        .unwrap()
        .mutex("stock")
        .lock()
        .await
        .unwrap();
    let claim = soon("the claim", guard.into_claim()).await.unwrap();
    let refusing = proxy.refuse().await;
    let stock = options(proxy.url()).connect_lazily().unwrap().mutex("stock");
    {
        let mut resuming = std::pin::pin!(stock.resume(&claim));
        assert!(std::future::poll_fn(|cx| Poll::Ready(resuming.as_mut().poll(cx))).await.is_pending());
    }
    drop(refusing);
    let resumed = async || loop {
        match stock.resume(&claim).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => yield_now().await,
            other => break other,
        }
    };
    let resumed = soon("the hold", resumed()).await.unwrap();
    assert_eq!(server.keys().await, ["stock"]);
    resumed.release().await.unwrap();
    assert!(server.keys().await.is_empty());
}

/// The runtime has one thread, so no connection has been tried before the requests are made.
#[tokio::test]
async fn a_single_attempt_at_several_masters_waits_until_they_were_tried() {
    let servers = servers(3).await;
    let lazily = || over(&servers).connect_lazily().unwrap();
    assert!(!soon("the answer", lazily().mutex("stock").is_locked()).await.unwrap());
    let guard = soon("the lock", lazily().mutex("stock").try_lock()).await.unwrap().expect("nobody has it");
    let claim = guard.into_claim().await.unwrap();
    let resumed = soon("the hold", lazily().mutex("stock").resume(&claim)).await.unwrap();
    resumed.release().await.unwrap();
    // A silent master keeps no request waiting.
    servers[2].freeze();
    let guard = soon("the lock", lazily().mutex("another").try_lock()).await.unwrap().expect("nobody has it");
    guard.release().await.unwrap();
}

/// Polls a future once, before any master was tried.
async fn begun<F: Future + Unpin>(mut future: F) -> F {
    assert!(std::future::poll_fn(|cx| Poll::Ready(future.poll_unpin(cx))).await.is_pending());
    future
}

#[tokio::test]
async fn the_owner_is_that_of_the_first_poll() {
    let servers = servers(3).await;
    let locks = over(&servers).connect_lazily().unwrap();
    let request = begun(Box::pin(locks.mutex("stock").lock().into_future())).await;
    let guard = soon("the lock", tokio::spawn(request)).await.unwrap().unwrap();
    assert_eq!(guard.owner(), Owner::current());
    guard.release().await.unwrap();
}

/// A guard keeps the connections open.
#[tokio::test]
async fn a_resume_that_had_to_wait_for_connections_uses_up_no_claim_after_a_close() {
    let servers = servers(3).await;
    let other = over(&servers).connect().await.unwrap();
    let claim = other.mutex("stock").lock().await.unwrap().into_claim().await.unwrap();
    let locks = over(&servers).connect_lazily().unwrap();
    let stock = locks.mutex("stock");
    let resuming = begun(Box::pin(stock.resume(&claim))).await;
    let guard = soon("the lock", locks.mutex("another").lock()).await.unwrap();
    locks.close().await.unwrap();
    let error = soon("its end", resuming).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    guard.release().await.unwrap();
    other.mutex("stock").resume(&claim).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_wrong_setting_is_an_error_as_soon_as_it_is_known_and_until_it_is_corrected() {
    let server = Server::start().await;
    let denied = async |home: Builder| {
        let locks = home.connect_lazily().unwrap();
        let stock = locks.mutex("stock");
        for _ in 0..2 {
            let error = soon("the answer", stock.try_lock()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            let error = soon("the answer", stock.lock()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(!format!("{error} {error:?}").contains("hidden"), "{error}");
        }
        locks
    };
    server.ask::<()>(&["ACL", "SETUSER", "late", "on", ">right", "~*", "&*", "+@all"]).await;
    let locks = denied(builder(&server.url().replace("redis://", "redis://late:hidden@"))).await;
    server.ask::<()>(&["ACL", "SETUSER", "late", ">hidden"]).await;
    eventually("the lock", async || match locks.mutex("stock").lock().await {
        Ok(guard) => guard.release().await.is_ok(),
        Err(_) => false,
    })
    .await;
    let cluster = Cluster::shared().await.node(0).url().replace("redis://", "redis://late:hidden@");
    denied(options(nestlock::Master::cluster([cluster]))).await;

    let is_config = async |home: Builder, words: &str| {
        let locks = home.connect_lazily().unwrap();
        let error = soon("the answer", locks.mutex("stock").lock()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(words), "{error}");
    };
    is_config(options(nestlock::Master::cluster([server.url()])), "without `Master::cluster`").await;
    is_config(options(nestlock::Master::sentinel([server.url()], NAME)), "are no sentinels").await;
    let group = Group::start().await;
    is_config(options(nestlock::Master::sentinel(group.urls("", ""), "nobody")), "no master `nobody`").await;
    is_config(builder(&format!("{}/99", server.url())), "database").await;

    // An error that needs no answer is returned at once.
    let error = builder("http://host").connect_lazily().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn a_wrong_password_of_one_of_several_is_logged_and_the_others_go_on() {
    let servers = servers(3).await;
    servers[2].ask::<()>(&["CONFIG", "SET", "requirepass", "secret"]).await;
    let locks = over(&servers).connect_lazily().unwrap();
    soon("the lock", locks.mutex("stock").lock()).await.unwrap().release().await.unwrap();
    let port = servers[2].port().to_string();
    log::recorded(|event| {
        event.level == Level::WARN && event.mentions(&port) && event.mentions("refuses the login")
    })
    .await;
}

/// The connections' tasks end before they have made a connection.
#[tokio::test]
async fn nothing_is_left_of_what_is_closed_before_its_servers_came() {
    let server = Server::start().await;
    server.kill();
    let urls = || [server.url()];
    let metrics = tokio::runtime::Handle::current().metrics();
    for home in [
        builder(&server.url()),
        builder(&server.url()).replicas(1, SECOND),
        options(nestlock::Master::sentinel(urls(), NAME)),
        options(nestlock::Master::cluster(urls())),
        quorum([server.url(), "redis://127.0.0.1:1".into(), "redis://127.0.0.2:1".into()]),
    ] {
        for closes in [true, false] {
            let locks = home.clone().connect_lazily().unwrap();
            let waits = tokio::spawn(locks.mutex("stock").lock());
            eventually("a task that waits", async || metrics.num_alive_tasks() > 1).await;
            if closes {
                locks.close().await.unwrap();
                let error = soon("its end", waits).await.unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            } else {
                waits.abort();
            }
            drop(locks);
            eventually("no task", async || metrics.num_alive_tasks() == 0).await;
        }
    }
}

#[test]
fn outside_a_runtime_only_what_is_in_memory_is_connected() {
    for home in [
        builder("redis://127.0.0.1:1"),
        options(nestlock::Master::cluster(["redis://127.0.0.1:1"])),
        options(nestlock::Master::sentinel(["redis://127.0.0.1:1"], NAME)),
        quorum(["redis://127.0.0.1:1", "redis://127.0.0.1:2"]),
    ] {
        assert_eq!(home.connect_lazily().unwrap_err().kind(), ErrorKind::Misuse);
    }
    options(Memory::new()).connect_lazily().unwrap();
}
