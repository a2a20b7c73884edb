//! Waiting while the server is away.

use std::time::Duration;

use nestlock::{ErrorKind, Owner};
use tokio::time::Instant;

use crate::support::server::Server;
use crate::support::{SECOND, builder, enlisted, eventually, log, soon};

#[tokio::test]
async fn a_lock_that_waits_survives_a_restart() {
    let server = Server::start().await;
    let locks = builder(&server.url()).unavailable_after(Duration::MAX).connect().await.unwrap();
    let stock = locks.mutex("rides-over");
    server.kill();
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(enlisted(&stock))).collect();
    log::recorded(|e| e.mentions("rides-over") && e.mentions("retrying")).await;
    server.restart().await;
    for one in waiting {
        soon("the lock", one).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_gives_up_when_the_server_was_away_too_long() {
    let server = Server::start().await;
    let limit = SECOND;
    let locks = builder(&server.url()).unavailable_after(limit).connect().await.unwrap();
    let stock = locks.mutex("stock");
    server.kill();
    let begun = Instant::now();
    let behind = tokio::spawn(enlisted(&stock));
    let error = soon("its end", stock.lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
    assert!(std::error::Error::source(&error).is_some(), "{error:?}");
    assert_eq!(soon("the other's end", behind).await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    // The time of `unavailable_after` starts again with each request, and with each outage.
    server.restart().await;
    // On a busy machine the new connections may take longer than that time.
    eventually("the lock", async || stock.lock().await.is_ok()).await;
}

#[tokio::test]
async fn one_attempt_on_a_server_that_is_away_is_unavailable() {
    let server = Server::start().await;
    let locks = builder(&server.url()).unavailable_after(Duration::MAX).connect().await.unwrap();
    let stock = locks.mutex("stock");
    server.kill();
    assert_eq!(soon("its end", stock.try_lock()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let zero = stock.lock().within(Duration::ZERO);
    assert_eq!(soon("its end", zero).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_limit_that_ends_in_an_outage_is_unavailable() {
    let server = Server::start().await;
    let locks = builder(&server.url()).unavailable_after(Duration::MAX).connect().await.unwrap();
    let (begun, limit) = (Instant::now(), Duration::from_millis(100));
    server.kill();
    let error = soon("its end", locks.mutex("stock").lock().within(limit)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() >= limit);
    let none = soon("its end", locks.mutex("stock").try_lock().within(limit)).await;
    assert_eq!(none.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_limit_that_ends_behind_others_in_an_outage_is_unavailable() {
    let server = Server::start().await;
    let locks = builder(&server.url()).unavailable_after(Duration::MAX).connect().await.unwrap();
    let stock = locks.mutex("behind-in-an-outage");
    server.kill();
    let head = tokio::spawn(enlisted(&stock));
    log::recorded(|e| e.mentions("behind-in-an-outage") && e.mentions("retrying")).await;
    let second = stock.lock().owner(&Owner::new()).within(Duration::from_millis(300));
    assert_eq!(soon("its end", second).await.unwrap_err().kind(), ErrorKind::Unavailable);
    head.abort();
}
