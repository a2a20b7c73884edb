//! A fenced lock on one server: the options of its counter, and the errors if its key is in use.

use std::time::Duration;

use nestlock::{ErrorKind, Locks};

use super::{COUNTER, SECOND, next_token};
use crate::support::server::Server;
use crate::support::{builder, eventually, locks, soon};

async fn ttl(server: &Server) -> i64 {
    server.ask(&["TTL", COUNTER]).await
}

async fn counter(server: &Server) -> Option<u64> {
    server.ask(&["GET", COUNTER]).await
}

async fn with_lease(server: &Server, lease: Duration) -> Locks {
    builder(&server.url()).lease(lease).connect().await.unwrap()
}

#[tokio::test]
async fn a_token_is_the_servers_time_and_lies_beside_the_lock() {
    let server = Server::start().await;
    let guard = locks(&server.url()).await.mutex("stock").fenced().lock().await.unwrap();
    let (seconds, micros): (u64, u64) = server.ask(&["TIME"]).await;
    let (given, now) = (guard.token(), seconds * 1_000_000 + micros);
    assert!(given <= now && given > now - 60_000_000, "{given} at {now}");
    assert_eq!(counter(&server).await, Some(given));
    assert_eq!(server.keys().await, [COUNTER, "stock"]);
}

#[tokio::test]
async fn the_counter_is_kept_for_the_given_time() {
    let server = Server::start().await;
    next_token(&locks(&server.url()).await.mutex("stock").fenced()).await;
    assert!((86_000..=86_400).contains(&ttl(&server).await));
    let week = Duration::from_secs(7 * 86_400);
    next_token(&builder(&server.url()).token_ttl(week).connect().await.unwrap().mutex("stock").fenced())
        .await;
    assert!((604_000..=604_800).contains(&ttl(&server).await));
    next_token(&locks(&server.url()).await.mutex("stock").fenced()).await;
    assert!((604_000..=604_800).contains(&ttl(&server).await), "the TTL was shortened");
    // If the lease is longer than a day, the counter outlives it.
    server.ask::<()>(&["DEL", COUNTER]).await;
    next_token(&with_lease(&server, week).await.mutex("stock").fenced()).await;
    assert!((604_000..=604_800).contains(&ttl(&server).await));
}

#[tokio::test]
async fn renewals_keep_the_counter_and_bring_it_back_where_it_was_lost() {
    let server = Server::start().await;
    let stock = with_lease(&server, 6 * SECOND).await.mutex("stock").fenced();
    let guard = stock.lock().await.unwrap();
    server.ask::<()>(&["EXPIRE", COUNTER, "60"]).await;
    eventually("it stays for longer", async || ttl(&server).await > 80_000).await;
    server.ask::<()>(&["DEL", COUNTER]).await;
    eventually("it is back", async || counter(&server).await == Some(guard.token())).await;
    server.ask::<()>(&["SET", COUNTER, "7"]).await;
    eventually("it is raised", async || counter(&server).await == Some(guard.token())).await;
    assert_eq!(ttl(&server).await, -1, "a TTL was set");
}

#[tokio::test]
async fn a_key_that_is_no_counter_is_named_and_the_lock_stays_free() {
    let server = Server::start().await;
    let (stock, plain) = {
        let locks = locks(&server.url()).await;
        (locks.mutex("stock").fenced(), locks.mutex("stock"))
    };
    for (make, found) in [
        (&["RPUSH", COUNTER, "x"][..], "a list"),
        (&["SET", COUNTER, "seven"], "a string that is no number"),
        (&["SET", COUNTER, "9223372036854775807"], "the highest number"),
    ] {
        server.ask::<()>(&["DEL", COUNTER]).await;
        server.ask::<()>(make).await;
        for error in [
            soon("lock", stock.lock()).await.unwrap_err(),
            soon("try_lock", stock.try_lock()).await.unwrap_err(),
            soon("run", stock.run(async |_| {})).await.unwrap_err(),
        ] {
            let text = error.to_string();
            assert_eq!((error.kind(), error.lock()), (ErrorKind::NotALock, Some("stock")), "{text}");
            assert!(text.contains(COUNTER) && text.contains(found), "{text}");
        }
        assert!(!stock.is_locked().await.unwrap());
        soon("a plain lock", plain.run(async |_| {})).await.unwrap();
    }
}

/// A counter that can't be raised doesn't end the hold.
#[tokio::test]
async fn a_hold_whose_counter_cannot_be_raised_is_renewed_reentered_and_released() {
    let server = Server::start().await;
    let stock = with_lease(&server, 6 * SECOND).await.mutex("stock").fenced();
    let guard = stock.lock().await.unwrap();
    let (given, end) = (guard.token(), guard.valid_until());
    server.ask::<()>(&["DEL", COUNTER]).await;
    server.ask::<()>(&["RPUSH", COUNTER, "x"]).await;
    eventually("a renewal", async || guard.valid_until() > end + SECOND).await;
    let inner = soon("a re-entry", stock.lock()).await.unwrap();
    assert_eq!((inner.depth(), inner.token()), (2, given));
    soon("an inner release", inner.release()).await.unwrap();
    let end = guard.valid_until();
    eventually("one more", async || guard.valid_until() > end + SECOND).await;
    assert!(!guard.is_lost());
    soon("the release", guard.release()).await.unwrap();
    assert!(!stock.is_locked().await.unwrap());
}

#[tokio::test]
async fn on_a_full_server_a_hold_lives_on_and_nobody_new_gets_in() {
    let server = Server::with(&["--maxmemory-policy", "noeviction"]).await;
    let locks = builder(&server.url()).lease(6 * SECOND).unavailable_after(SECOND).connect().await.unwrap();
    let (stock, other) = (locks.mutex("stock").fenced(), locks.mutex("other").fenced());
    let guard = stock.lock().await.unwrap();
    server.ask::<()>(&["DEL", COUNTER]).await;
    server.set("maxmemory", 1).await;
    let end = guard.valid_until();
    eventually("renewals", async || guard.valid_until() > end + 6 * SECOND).await;
    assert_eq!(soon("another", other.lock()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(counter(&server).await, None);
    server.set("maxmemory", 0).await;
    eventually("its counter", async || counter(&server).await == Some(guard.token())).await;
    soon("the release", guard.release()).await.unwrap();
    assert!(!stock.is_locked().await.unwrap() && !other.is_locked().await.unwrap());
}

#[tokio::test]
async fn a_lock_without_tokens_has_no_counter() {
    let server = Server::start().await;
    let stock = locks(&server.url()).await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    guard.extend(60 * SECOND).await.unwrap();
    stock.run(async |_| {}).await.unwrap();
    assert_eq!(server.keys().await, ["stock"]);
}
