//! Options at their limits: nothing panics.

use std::time::Duration;

use nestlock::{Builder, ErrorKind, Loss};

use super::Home;
use crate::support::{eventually, soon};

/// Takes a lock, waits for it, nests it and releases it, all with these options.
async fn works(what: &str, home: &Home, options: impl Fn(Builder) -> Builder) {
    let connect = async || options(home.builder()).connect().await.unwrap();
    let (locks, others) = (connect().await, connect().await);
    let stock = locks.mutex("stock");
    let guard = soon(what, stock.lock()).await.unwrap();
    soon(what, stock.run(async |_| {})).await.unwrap();
    let stranger = others.mutex("stock");
    assert!(soon(what, stranger.try_lock()).await.unwrap().is_none(), "{what}");
    let waits = tokio::spawn(async move { stranger.lock().await.unwrap().release().await });
    home.listened().await;
    soon(what, guard.release()).await.unwrap();
    soon(what, waits).await.unwrap().unwrap();
    assert!(home.keys().await.is_empty(), "{what}");
    soon(what, locks.close()).await.unwrap();
}

#[tokio::test]
async fn options_at_their_ends_work() {
    let home = Home::start().await;
    let (zero, forever, tiny) = (Duration::ZERO, Duration::MAX, Duration::from_nanos(1));
    works("node_timeout", &home, |b| b.node_timeout(forever)).await;
    works("unavailable_after", &home, |b| b.unavailable_after(forever)).await;
    works("no unavailable_after", &home, |b| b.unavailable_after(zero)).await;
    works("poll_interval", &home, |b| b.poll_interval(forever)).await;
    works("short poll_interval", &home, |b| b.poll_interval(tiny)).await;
    works("retry_delay", &home, |b| b.retry_delay(forever..=forever)).await;
    works("no retry_delay", &home, |b| b.retry_delay(zero..=zero)).await;
    works("any retry_delay", &home, |b| b.retry_delay(zero..=forever)).await;
    works("no drift", &home, |b| b.drift(0.0, zero)).await;
    works("much drift", &home, |b| b.drift(0.5, Duration::from_secs(10))).await;
    works("longest lease", &home, |b| b.lease(Duration::from_millis((1 << 52) - 1))).await;
    works("prefix", &home, |b| b.prefix("x".repeat(1_024))).await;
}

#[tokio::test]
async fn waits_and_holds_at_their_ends_work() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let (zero, forever) = (Duration::ZERO, Duration::MAX);
    let stock = locks.mutex("stock");
    for within in [zero, forever] {
        stock.lock().within(within).max_hold(forever).await.unwrap().release().await.unwrap();
        stock.try_lock().within(within).await.unwrap().unwrap().release().await.unwrap();
    }
    let longest = Duration::from_millis((1 << 52) - 1);
    let guard = stock.lock().fixed_lease(longest).await.unwrap();
    assert!(guard.valid_until() > tokio::time::Instant::now());
    guard.extend(longest).await.unwrap();
    guard.release().await.unwrap();

    // A `max_hold` of zero is odd, but allowed.
    let guard = stock.lock().max_hold(zero).await.unwrap();
    assert_eq!(soon("the end", guard.lost()).await, Loss::MaxHold);
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::MaxHold));
    let error = stock.lock().max_hold(zero).run(|_| std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(error.loss(), Some(Loss::MaxHold));
    eventually("the locks' end", async || home.keys().await.is_empty()).await;
}

#[tokio::test]
async fn a_node_timeout_that_nothing_can_meet_is_unavailable() {
    let home = Home::start().await;
    let short = Duration::from_nanos(1);
    let locks = home
        .builder()
        .node_timeout(short)
        .unavailable_after(Duration::from_millis(50))
        .lease(Duration::from_secs(1))
        .connect()
        .await
        .unwrap();
    let stock = locks.mutex("stock");
    // The store is fast, but a request may still exceed the timeout now and then.
    if let Err(error) = soon("try_lock", stock.try_lock()).await {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    if let Err(error) = soon("lock", stock.lock()).await {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    eventually("the lease's end", async || home.keys().await.is_empty()).await;
}
