//! What a hold promises, one promise per test.

use std::time::{Duration, Instant};

use futures::future::join_all;
use nestlock::{ErrorKind, Loss};

use super::{LONG, tidy};
use crate::support::process::Worker;
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, eventually, locks, soon};

#[tokio::test]
async fn promise_4_nobody_renews_or_frees_anothers_lock() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let lease = Duration::from_secs(6);
    let robbed = builder(&proxy.url()).lease(lease).connect().await.unwrap();
    let others = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let stock = robbed.mutex("stock");
    let guards = [stock.lock().await.unwrap(), stock.lock().await.unwrap(), stock.lock().await.unwrap()];
    server.ask::<()>(&["DEL", "stock"]).await;
    let theirs = others.mutex("stock").lock().fixed_lease(LONG).await.unwrap();
    let stands = async || server.ask::<Vec<String>>(&["HGETALL", "stock"]).await;
    let before = [theirs.hold_id().to_owned(), "1".to_owned()];
    assert_eq!(stands().await, before);

    // The holder notices the loss at its next renewal. Nothing that it tries then does harm.
    let [first, second, third] = guards;
    assert_eq!(soon("the loss", first.lost()).await, Loss::Gone);
    let tried = proxy.on(|c| c.is("release") || c.is("settle") || c.is("renew")).watch();
    assert_eq!(first.extend(2 * LONG).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(second.release().await.unwrap_err().loss(), Some(Loss::Gone));
    drop(third);
    drop(first);
    robbed.close().await.unwrap();
    drop(tried);
    assert_eq!(stands().await, before);
    let ttl: i64 = server.ask(&["PTTL", "stock"]).await;
    assert!(ttl > 0 && ttl <= LONG.as_millis() as i64, "{ttl}");
    theirs.release().await.unwrap();
}

#[tokio::test]
async fn promise_4_a_release_that_comes_late_frees_nobody_elses_lock() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let slow = builder(&proxy.url()).connect().await.unwrap();
    let others = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let guard = slow.mutex("stock").lock().await.unwrap();
    let late = proxy.on(|c| c.is("release") && c.names("stock")).times(1).hold();
    let releasing = tokio::spawn(guard.release());
    late.seen().await;
    server.ask::<()>(&["DEL", "stock"]).await;
    let theirs = others.mutex("stock").lock().await.unwrap();
    late.let_through().await;
    assert_eq!(soon("the release", releasing).await.unwrap().unwrap_err().loss(), Some(Loss::Gone));
    assert_eq!(
        server.ask::<Option<String>>(&["HGET", "stock", theirs.hold_id()]).await.as_deref(),
        Some("1")
    );
    theirs.release().await.unwrap();
}

#[tokio::test]
async fn promise_5_every_hold_that_is_gone_is_reported() {
    let server = Server::start().await;
    let locks = builder(&server.url()).lease(Duration::from_secs(9)).connect().await.unwrap();
    let mutexes: Vec<_> = (0..50).map(|at| locks.mutex(format!("stock:{at}"))).collect();
    let guards = join_all(mutexes.iter().map(|mutex| async { mutex.lock().await.unwrap() })).await;
    let runs: Vec<_> = (0..50)
        .map(|at| tokio::spawn(locks.mutex(format!("run:{at}")).run(|_| std::future::pending::<()>())))
        .collect();
    eventually("all holds", async || server.keys().await.len() == 100).await;
    server.ask::<()>(&["FLUSHALL"]).await;
    for guard in &guards {
        assert_eq!(soon("a loss", guard.lost()).await, Loss::Gone);
    }
    for run in runs {
        assert_eq!(soon("a run's end", run).await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test]
async fn promise_7_after_a_crash_the_lock_is_granted_when_the_lease_ends_and_not_before() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    let mut worker = Worker::start("holder", &[("url", &server.url()), ("lease", "6000")]);
    worker.expect("holding").await;
    let stock = locks.mutex("stock");
    let waits = tokio::spawn(async move { stock.lock().await });
    eventually("the waiter is subscribed", async || !server.channels().await.is_empty()).await;
    worker.kill();
    let began = Instant::now();
    let left: u64 = server.ask(&["PTTL", "stock"]).await;
    assert!((1..=6_000).contains(&left), "{left}");
    let guard = soon("the lock", waits).await.unwrap().unwrap();
    // The server's clock counts in milliseconds.
    assert!(
        began.elapsed() + Duration::from_millis(5) >= Duration::from_millis(left),
        "{:?}",
        began.elapsed()
    );
    guard.release().await.unwrap();
}

#[tokio::test]
async fn promise_8_one_lease_after_everything_stopped_nothing_is_left() {
    let server = Server::start().await;
    let url = server.url();
    let lease = Duration::from_secs(2);
    let mut worker = Worker::start("holder", &[("url", &url), ("lease", "2000")]);
    worker.expect("holding").await;
    let users = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let guards = runtime.block_on(async {
            let locks = builder(&url).lease(lease).connect().await.unwrap();
            let mut guards = Vec::new();
            for at in 0..20 {
                let mutex = locks.mutex(format!("stock:{at}"));
                guards.push(mutex.lock().await.unwrap());
                // Each hold also has a request that waits for it.
                let stranger = mutex.clone();
                tokio::spawn(async move { stranger.lock().await });
            }
            guards
        });
        runtime.shutdown_background();
        drop(guards);
    });
    tokio::task::spawn_blocking(|| users.join().unwrap()).await.unwrap();
    worker.kill();
    tidy(&server).await;
    eventually("the last connection's end", async || server.clients().await == 0).await;
}
