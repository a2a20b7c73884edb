//! Redisson's `RFencedLock` on the same lock. The commands are those of Redisson 4.7.0 as `MONITOR` shows them: an acquire and a re-entry
//! increment the counter, which never has a TTL.

use nestlock::Locks;

use super::{COUNTER, next_token};
use crate::support::server::Server;
use crate::support::{builder, eventually, locks, soon};

const JAVA: &str = "e4a85f5e-2103-4c02-ade1-d8e0aa7691bb:12";

/// Thread 12 of a Java service.
struct Java<'a>(&'a Server);

impl Java<'_> {
    /// Runs `tryLockAndGetToken()` on a lock that is free, or that this thread holds.
    async fn lock(&self) -> u64 {
        let token = self.0.ask(&["INCR", COUNTER]).await;
        self.0.ask::<()>(&["HINCRBY", "stock", JAVA, "1"]).await;
        self.0.ask::<()>(&["PEXPIRE", "stock", "30000"]).await;
        token
    }

    /// Runs the outermost `unlock()`.
    async fn unlock(&self) {
        self.0.ask::<()>(&["DEL", "stock"]).await;
        self.0.ask::<()>(&["PUBLISH", "redisson_lock__channel:{stock}", "0"]).await;
    }

    /// Runs `getToken()`.
    async fn token(&self) -> u64 {
        self.0.ask(&["GET", COUNTER]).await
    }
}

async fn ttl(server: &Server) -> i64 {
    server.ask(&["TTL", COUNTER]).await
}

#[tokio::test]
async fn tokens_grow_over_holds_of_both_and_redissons_counter_keeps_no_ttl() {
    let server = Server::start().await;
    let java = Java(&server);
    assert_eq!(java.lock().await, 1);
    assert_eq!(java.lock().await, 2, "its re-entry");
    let stock = locks(&server.url()).await.mutex("stock").fenced();
    assert!(stock.try_lock().await.unwrap().is_none());
    java.unlock().await;
    let mut before = 2;
    for _ in 0..5 {
        let guard = soon("the lock", stock.lock()).await.unwrap();
        let inner = stock.lock().await.unwrap();
        let ours = guard.token();
        assert!(ours > before);
        assert_eq!((java.token().await, inner.token()), (ours, ours), "a re-entry here does not increment");
        inner.release().await.unwrap();
        guard.extend(std::time::Duration::from_secs(60)).await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(ttl(&server).await, -1);

        let theirs = java.lock().await;
        assert!(theirs > ours);
        assert!(java.lock().await > theirs);
        before = java.token().await;
        java.unlock().await;
    }
}

#[tokio::test]
async fn a_counter_of_ours_may_have_an_end_or_none_and_java_counts_on() {
    let server = Server::start().await;
    let java = Java(&server);
    let ours = next_token(&locks(&server.url()).await.mutex("stock").fenced()).await;
    assert!(ttl(&server).await > 86_000);
    let theirs = java.lock().await;
    assert_eq!(theirs, ours + 1);
    java.unlock().await;
    // A fleet that shares its locks with Java gives its counters no TTL, and removes the TTL that an earlier fleet set.
    let shared = builder(&server.url()).token_ttl(std::time::Duration::MAX).connect().await.unwrap();
    assert!(next_token(&shared.mutex("stock").fenced()).await > theirs);
    assert_eq!(ttl(&server).await, -1);
    assert!(next_token(&locks(&server.url()).await.mutex("stock").fenced()).await > theirs + 1);
    assert_eq!(ttl(&server).await, -1, "a TTL was set again");
}

#[tokio::test]
async fn a_waiter_is_woken_by_an_unlock_of_java_and_has_a_larger_token() {
    let server = Server::start().await;
    let java = Java(&server);
    let theirs = java.lock().await;
    let hour = std::time::Duration::from_secs(3600);
    let locks: Locks = builder(&server.url()).poll_interval(hour).connect().await.unwrap();
    let waits = tokio::spawn(locks.mutex("stock").fenced().lock());
    eventually("it listens", async || !server.channels().await.is_empty()).await;
    java.unlock().await;
    let guard = soon("the waiter", waits).await.unwrap().unwrap();
    assert!(guard.token() > theirs);
    guard.release().await.unwrap();
}
