//! What a hold promises, one promise a test.

use std::time::{Duration, Instant};

use futures::future::join_all;
use nestlock::{ErrorKind, Guard, Loss};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{LONG, tidy};
use crate::support::process::Worker;
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, eventually, locks, soon};

#[tokio::test]
async fn promise_3_the_count_on_the_server_is_that_of_the_live_guards() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let server = Server::start().await;
    let locks = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let mut guards: Vec<Guard> = vec![stock.lock().await.unwrap()];
    for _ in 0..300 {
        match random.random_range(0..4) {
            0 | 1 if guards.len() < 12 => {
                let guard = stock.lock().await.unwrap();
                assert_eq!(guard.depth(), guards.len() + 1);
                guards.push(guard);
            }
            // Out of order too.
            2 if guards.len() > 1 => {
                let guard = guards.remove(random.random_range(0..guards.len()));
                guard.release().await.unwrap();
            }
            3 if guards.len() > 1 => drop(guards.pop()),
            _ => {}
        }
        let (field, count) = (guards[0].field(), guards.len().to_string());
        eventually("the count", async || server.ask::<String>(&["HGET", "stock", field]).await == count)
            .await;
    }
    drop(guards);
    tidy(&server).await;
}

#[tokio::test]
async fn promise_4_nobody_renews_or_frees_anothers_lock() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let lease = Duration::from_millis(1_500);
    let robbed = builder(&proxy.url()).lease(lease).connect().await.unwrap();
    let others = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let stock = robbed.mutex("stock");
    let guards = [stock.lock().await.unwrap(), stock.lock().await.unwrap(), stock.lock().await.unwrap()];
    server.ask::<()>(&["DEL", "stock"]).await;
    let theirs = others.mutex("stock").lock().fixed_lease(LONG).await.unwrap();
    let stands = async || server.ask::<Vec<String>>(&["HGETALL", "stock"]).await;
    let before = [theirs.field().to_owned(), "1".to_owned()];
    assert_eq!(stands().await, before);

    // By its next renewal it finds out. What it then tries harms nobody.
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
    assert_eq!(server.ask::<Option<String>>(&["HGET", "stock", theirs.field()]).await.as_deref(), Some("1"));
    theirs.release().await.unwrap();
}

#[tokio::test]
async fn promise_5_every_hold_that_is_gone_is_reported() {
    let server = Server::start().await;
    let locks = builder(&server.url()).lease(Duration::from_secs(3)).connect().await.unwrap();
    let mutexes: Vec<_> = (0..50).map(|at| locks.mutex(format!("stock:{at}"))).collect();
    let guards = join_all(mutexes.iter().map(|mutex| async { mutex.lock().await.unwrap() })).await;
    let runs: Vec<_> = (0..50)
        .map(|at| tokio::spawn(locks.mutex(format!("run:{at}")).run(std::future::pending::<()>())))
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
async fn promise_5_a_hold_that_cannot_be_renewed_is_reported_before_another_can_get_it() {
    let server = Server::start().await;
    let lease = Duration::from_secs(2);
    let locks = builder(&server.url()).lease(lease).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    server.freeze();
    let loss = soon("the loss", guard.lost()).await;
    assert_eq!(loss, Loss::Expired);
    assert!(tokio::time::Instant::now() >= guard.valid_until());
    assert_eq!(soon("the release", guard.release()).await.unwrap_err().loss(), Some(Loss::Expired));
    server.thaw();
    tidy(&server).await;
}

#[tokio::test]
async fn promise_6_a_lock_that_is_released_goes_to_who_waits_without_asking_again() {
    let server = Server::start().await;
    // Neither a poll nor the lease's end can be what wakes a waiter within the test.
    let connect =
        async || builder(&server.url()).lease(LONG).poll_interval(Duration::MAX).connect().await.unwrap();
    let (one, two) = (connect().await, connect().await);
    for round in 0..20 {
        let guard = one.mutex("stock").lock().await.unwrap();
        let stranger = two.mutex("stock");
        let waits = tokio::spawn(async move { stranger.lock().await.unwrap().release().await });
        // At another moment of the waiter's way each time.
        tokio::time::sleep(Duration::from_micros(200 * round)).await;
        if round % 2 == 0 {
            drop(guard)
        } else {
            guard.release().await.unwrap()
        }
        soon("the waiter", waits).await.unwrap().unwrap();
    }
    tidy(&server).await;
}

#[tokio::test]
async fn promise_6_a_lock_that_is_forced_open_goes_to_who_waits() {
    let server = Server::start().await;
    let connect =
        async || builder(&server.url()).lease(LONG).poll_interval(Duration::MAX).connect().await.unwrap();
    let (one, two, three) = (connect().await, connect().await, connect().await);
    let guard = one.mutex("stock").lock().await.unwrap();
    let stranger = two.mutex("stock");
    let waits = tokio::spawn(async move { stranger.lock().await });
    eventually("the waiter hears", async || !server.channels().await.is_empty()).await;
    assert!(three.mutex("stock").force_release().await.unwrap());
    soon("the waiter", waits).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Gone));
}

#[tokio::test]
async fn promise_7_after_a_crash_the_lock_is_granted_when_the_lease_ends_and_not_before() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    let mut worker = Worker::start("holder", &[("url", &server.url()), ("lease", "2000")]);
    worker.expect("holding").await;
    let stock = locks.mutex("stock");
    let waits = tokio::spawn(async move { stock.lock().await });
    eventually("the waiter hears", async || !server.channels().await.is_empty()).await;
    worker.kill();
    let began = Instant::now();
    let left: u64 = server.ask(&["PTTL", "stock"]).await;
    assert!((1..=2_000).contains(&left), "{left}");
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
                // And one that waits for each.
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

#[tokio::test]
async fn promise_9_a_re_entry_after_the_end_of_the_lease_is_an_error() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    let stock = locks.mutex("stock");
    let outer = stock.lock().fixed_lease(Duration::from_millis(300)).await.unwrap();
    assert_eq!(soon("the end", outer.lost()).await, Loss::Expired);
    for error in [stock.lock().await.unwrap_err(), stock.try_lock().await.unwrap_err()] {
        assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::Expired)));
    }
    assert!(!stock.is_held());
    drop(outer);
    tidy(&server).await;
    stock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn promise_9_a_release_after_the_end_of_the_lease_is_reported_and_touches_nothing() {
    let server = Server::start().await;
    let (locks, others) = (locks(&server.url()).await, locks(&server.url()).await);
    let guard = locks.mutex("stock").lock().fixed_lease(Duration::from_millis(300)).await.unwrap();
    let theirs = soon("the lock", others.mutex("stock").lock()).await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Expired));
    let stands: Vec<String> = server.ask(&["HGETALL", "stock"]).await;
    assert_eq!(stands, [theirs.field(), "1"]);
    theirs.release().await.unwrap();
}
