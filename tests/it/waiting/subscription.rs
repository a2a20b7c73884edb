//! Messages of releases, and waiters that get none.

use std::time::Duration;

use nestlock::{Guard, Locks};

use super::{asleep, foreign_guard, without_timers};
use crate::support::proxy::{Proxy, Which};
use crate::support::server::Server;
use crate::support::{builder, enlisted, log, soon};

/// Starts a server, a proxy in front of it, a `Locks` over that proxy in which no timer wakes a waiter, and another process that holds
/// `stock`.
async fn held_behind_a_proxy() -> (Server, Proxy, Locks, Guard) {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = without_timers(&proxy.url()).connect().await.unwrap();
    let foreign = foreign_guard(&server, "stock").await;
    (server, proxy, locks, foreign)
}

#[tokio::test]
async fn a_release_before_the_confirmation_is_not_missed() {
    let (_server, proxy, locks, foreign) = held_behind_a_proxy().await;
    let (attempts, hold) = (proxy.on(|c| c.is("acquire")).watch(), proxy.on(|c| c.is("subscribe")).hold());
    let waiting = tokio::spawn(locks.mutex("stock").lock());
    // 1. The waiter's acquire is refused. 2. Its subscription is sent. 3. The lock becomes free. 4. The subscription is confirmed.
    attempts.seen().await;
    hold.seen().await;
    foreign.release().await.unwrap();
    assert!(attempts.seen_now().is_none());
    hold.let_through().await;
    drop(soon("the lock", waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_release_while_the_confirmation_is_on_its_way_back_is_not_missed() {
    let (_server, proxy, locks, foreign) = held_behind_a_proxy().await;
    let hold = proxy.on(|c| c.is("subscribe")).hold_reply();
    let waiting = tokio::spawn(locks.mutex("stock").lock());
    hold.done().await;
    foreign.release().await.unwrap();
    hold.let_through().await;
    drop(soon("the lock", waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_message_while_the_head_asks_is_not_missed() {
    let (_server, proxy, locks, foreign) = held_behind_a_proxy().await;
    // This is the attempt after the confirmation: its answer is "busy", and the message overtakes that answer.
    let hold = proxy.on(|c| c.is("acquire")).skip(1).times(1).hold_reply();
    let waiting = tokio::spawn(locks.mutex("stock").lock());
    hold.done().await;
    foreign.release().await.unwrap();
    hold.let_through().await;
    drop(soon("the lock", waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_lost_subscription_wakes_the_head() {
    let (server, proxy, locks, foreign) = held_behind_a_proxy().await;
    let waiting = tokio::spawn(locks.mutex("stock").lock());
    asleep(&server, 1).await;
    // The message is lost on the way. No new subscription succeeds either, whose confirmation would wake the head.
    let half_open = proxy.half_open(Which::Subscribers);
    foreign.release().await.unwrap();
    let _refusing = proxy.refuse().await;
    proxy.reset(Which::Subscribers).await;
    drop(soon("the lock", waiting).await.unwrap().unwrap());
    drop(half_open);
}

#[tokio::test]
async fn a_lost_subscription_wakes_the_heads_of_all_names() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = without_timers(&proxy.url()).connect().await.unwrap();
    let mut guards = Vec::new();
    for name in ["one", "two", "three"] {
        guards.push(foreign_guard(&server, name).await);
    }
    let tasks = ["one", "two", "three"].map(|name| tokio::spawn(enlisted(&locks.mutex(name))));
    crate::support::eventually("three subscriptions", async || server.channels().await.len() == 3).await;
    let half_open = proxy.half_open(Which::Subscribers);
    for guard in guards {
        guard.release().await.unwrap();
    }
    proxy.reset(Which::Subscribers).await;
    for task in tasks {
        drop(soon("the lock", task).await.unwrap().unwrap());
    }
    drop(half_open);
}

#[tokio::test]
async fn where_subscribing_is_refused_the_head_polls() {
    let server = Server::start().await;
    let user = ["ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels"];
    server.ask::<()>(&user).await;
    let url = format!("redis://mute:secret@127.0.0.1:{}", server.port());
    let locks = builder(&url).poll_interval(Duration::MAX).connect().await.unwrap();
    let foreign = foreign_guard(&server, "refused-here").await;
    let waiting = tokio::spawn(locks.mutex("refused-here").lock());
    let event = log::recorded(|e| e.mentions("refused-here") && e.mentions("subscription refused")).await;
    assert!(!event.mentions("secret"), "{event:?}");
    foreign.release().await.unwrap();
    let guard = soon("the lock", waiting).await.unwrap().unwrap();
    // Its own release can't be published either, but it still counts.
    guard.release().await.unwrap();
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn where_no_subscriber_can_connect_the_head_polls() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = builder(&proxy.url()).poll_interval(Duration::MAX).connect().await.unwrap();
    let foreign = foreign_guard(&server, "stock").await;
    let attempts = proxy.on(|c| c.is("acquire")).watch();
    let _refusing = proxy.refuse().await;
    let waiting = tokio::spawn(locks.mutex("stock").lock());
    for _ in 0..4 {
        attempts.seen().await;
    }
    foreign.release().await.unwrap();
    drop(soon("the lock", waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn the_poll_cap_finds_what_a_half_open_subscription_does_not_report() {
    log::capture();
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let cap = Duration::from_millis(100);
    let locks = builder(&proxy.url()).poll_interval(cap).connect().await.unwrap();
    let foreign = foreign_guard(&server, "stock").await;
    let waiting = tokio::spawn(locks.mutex("stock").lock());
    asleep(&server, 1).await;
    let half_open = proxy.half_open(Which::Subscribers);
    let attempts = proxy.on(|c| c.is("acquire")).watch();
    for _ in 0..3 {
        attempts.seen().await;
    }
    // If the client had noticed the silent connection, the attempts would have come only many poll intervals later.
    let address = proxy.url().replace("redis://", "");
    let noticed = log::find(|e| e.mentions(&address) && e.mentions("subscriber connection"));
    assert!(noticed.is_none(), "{noticed:?}");
    foreign.release().await.unwrap();
    drop(soon("the lock", waiting).await.unwrap().unwrap());
    drop(half_open);
}

#[tokio::test]
async fn a_waiter_is_notified_again_after_its_subscription_was_lost() {
    let (server, proxy, locks, foreign) = held_behind_a_proxy().await;
    let confirmed = proxy.on(|c| c.is("subscribe")).watch();
    let attempts = proxy.on(|c| c.is("acquire")).watch();
    let waiting = tokio::spawn(locks.mutex("stock").lock());
    confirmed.seen().await;
    asleep(&server, 1).await;
    proxy.reset(Which::Subscribers).await;
    // The loss wakes the waiter, and so does the new confirmation.
    confirmed.seen().await;
    for _ in 0..4 {
        attempts.seen().await;
    }
    foreign.release().await.unwrap();
    drop(soon("the lock", waiting).await.unwrap().unwrap());
}
