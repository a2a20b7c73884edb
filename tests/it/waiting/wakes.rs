//! Wakes that the wrong waiter must not use up.

use std::time::Duration;

use nestlock::Owner;

use crate::support::server::Server;
use crate::support::{PATIENCE, STRANGER, builder, eventually, soon};

const FOREVER: Duration = Duration::MAX;

/// Makes another program hold the lock.
async fn stranger(server: &Server, name: &str) {
    server.ask::<()>(&["HSET", name, STRANGER, "1"]).await;
    server.ask::<()>(&["PEXPIRE", name, "600000"]).await;
}

async fn free(server: &Server, name: &str, channel: &str) {
    server.ask::<()>(&["DEL", name]).await;
    server.ask::<()>(&["PUBLISH", channel, "0"]).await;
}

#[tokio::test]
async fn two_names_of_one_channel_are_both_notified_of_their_releases() {
    let server = Server::start().await;
    let locks = builder(&server.url()).poll_interval(FOREVER).connect().await.unwrap();
    stranger(&server, "x").await;
    stranger(&server, "{x}").await;
    let waiter = |name: &str| {
        let mutex = locks.mutex(name);
        tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
    };
    let plain = waiter("x");
    eventually("the subscription", async || !server.channels().await.is_empty()).await;
    server.reset_commands_run().await;
    let braced = waiter("{x}");
    // The second try comes after the subscription is confirmed.
    eventually("two tries", async || server.scripts_run().await >= 2).await;
    free(&server, "{x}", "redisson_lock__channel:{x}").await;
    soon("the braced one", braced).await.unwrap();
    free(&server, "x", "redisson_lock__channel:{x}").await;
    soon("the plain one", plain).await.unwrap();
}

#[tokio::test]
async fn a_message_that_a_dropped_head_got_is_the_next_ones() {
    let server = Server::start().await;
    let locks = builder(&server.url()).poll_interval(FOREVER).connect().await.unwrap();
    let stock = locks.mutex("stock");
    stranger(&server, "stock").await;
    let tries = async |n: u64| {
        eventually("a try", async || server.scripts_run().await >= n).await;
    };
    server.reset_commands_run().await;
    let (a, b) = (Owner::new(), Owner::new());
    let mut first = stock.lock().owner(&a);
    tokio::select! { _ = &mut first => panic!("it is held"), () = tries(2) => {} }
    // The first request sleeps. It is woken and not polled, so the second one is the head: it asks, and sleeps too.
    let mutex = stock.clone();
    let second = tokio::spawn(async move { mutex.lock().owner(&b).await.unwrap().release().await.unwrap() });
    server.ask::<()>(&["PUBLISH", "redisson_lock__channel:{stock}", "0"]).await;
    tries(3).await;
    // The first request is the head again, asks, and sleeps.
    tokio::select! { _ = &mut first => panic!("it is held"), () = tries(4) => {} }
    free(&server, "stock", "redisson_lock__channel:{stock}").await;
    // The first request is woken, and is dropped before it has asked again.
    let woken = async || !server.keys().await.is_empty();
    for _ in 0..20 {
        if woken().await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(first);
    soon("the second", second).await.unwrap();
    let _ = locks;
}

#[tokio::test]
async fn a_server_that_is_slow_is_asked_by_the_head_alone() {
    let server = Server::start().await;
    let locks = builder(&server.url()).poll_interval(FOREVER).node_timeout(PATIENCE).connect().await.unwrap();
    let stock = locks.mutex("stock");
    stranger(&server, "stock").await;
    server.reset_commands_run().await;
    server.freeze();
    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let stock = stock.clone();
            tokio::spawn(async move { stock.lock().await.map(drop) })
        })
        .collect();
    // This is much longer than a head may stay unpolled.
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.thaw();
    eventually("the subscription", async || !server.channels().await.is_empty()).await;
    let asked = async || server.scripts_run().await;
    // The head asks once before the subscription, and once after it. On a busy machine a head may be passed over if it does not run.
    eventually("the second try", async || asked().await >= 2).await;
    let asked = asked().await;
    assert!(asked < 5, "{asked}");
    waiters.iter().for_each(|waiter| waiter.abort());
}
