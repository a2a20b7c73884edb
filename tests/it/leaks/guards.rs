//! Guards dropped where no future runs.

use std::cell::RefCell;
use std::time::Duration;

use nestlock::{ErrorKind, Guard};
use tokio::runtime::{Builder, Runtime};

use super::{long_lived, tidy};
use crate::support::process::Worker;
use crate::support::server::Server;
use crate::support::{builder, eventually, soon};

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn many_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_guard_dropped_inside_a_runtime_is_released() {
    for runtime in [one_thread(), many_threads()] {
        runtime.block_on(async {
            let server = Server::start().await;
            let locks = long_lived(&server.url()).await;
            drop(locks.mutex("stock").lock().await.unwrap());
            tidy(&server).await;
        });
    }
}

#[tokio::test]
async fn a_guard_dropped_on_a_thread_without_a_runtime_is_released() {
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn a_guard_dropped_by_a_panicking_task_is_released() {
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let stock = locks.mutex("stock");
    let panicking = tokio::spawn(async move {
        let _outer = stock.lock().await.unwrap();
        let _inner = stock.lock().await.unwrap();
        panic!("as a failing program does");
    });
    assert!(panicking.await.unwrap_err().is_panic());
    tidy(&server).await;
}

#[tokio::test]
async fn a_guard_dropped_by_a_panicking_thread_is_released() {
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    let panicking = std::thread::spawn(move || {
        let _guard = guard;
        panic!("as a failing program does");
    });
    // Not an abort, which a second panic in the drop would be.
    assert!(panicking.join().is_err());
    tidy(&server).await;
}

#[tokio::test]
async fn a_guard_in_a_thread_local_is_released_when_its_thread_ends() {
    thread_local!(static KEPT: RefCell<Option<Guard>> = const { RefCell::new(None) });
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    std::thread::spawn(move || KEPT.set(Some(guard))).join().unwrap();
    tidy(&server).await;
}

#[test]
fn a_guard_in_a_thread_local_of_a_runtimes_thread_outlives_that_runtime_without_a_panic() {
    thread_local!(static KEPT: RefCell<Option<Guard>> = const { RefCell::new(None) });
    let looks = one_thread();
    let server = looks.block_on(Server::start());
    let url = server.url();
    // The runtime was this thread's, and is gone when its locals are.
    std::thread::spawn(move || {
        let runtime = one_thread();
        runtime.block_on(async {
            let locks = builder(&url).lease(Duration::from_secs(1)).connect().await.unwrap();
            KEPT.set(Some(locks.mutex("stock").lock().await.unwrap()));
        });
    })
    .join()
    .unwrap();
    looks.block_on(eventually("the lease's end", async || server.keys().await.is_empty()));
}

#[test]
fn a_guard_dropped_after_its_runtime_was_shut_down_is_left_to_its_lease() {
    let looks = many_threads();
    let server = looks.block_on(Server::start());
    for runtime in [one_thread(), many_threads()] {
        let (locks, guard) = runtime.block_on(async {
            let locks = builder(&server.url()).lease(Duration::from_secs(1)).connect().await.unwrap();
            let guard = locks.mutex("stock").lock().await.unwrap();
            (locks, guard)
        });
        runtime.shutdown_background();
        drop(guard);
        assert!(!locks.mutex("stock").is_held());
        looks.block_on(eventually("the lease's end", async || server.keys().await.is_empty()));
    }
}

#[test]
fn a_guard_kept_beyond_its_runtime_is_lost_in_time_and_can_be_released() {
    let looks = many_threads();
    let server = looks.block_on(Server::start());
    let runtime = many_threads();
    let guard = runtime.block_on(async {
        let locks = builder(&server.url()).lease(Duration::from_secs(1)).connect().await.unwrap();
        locks.mutex("stock").lock().await.unwrap()
    });
    drop(runtime);
    looks.block_on(async {
        soon("the loss", guard.lost()).await;
        assert!(guard.is_lost());
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    });
}

#[tokio::test]
async fn a_process_that_ends_with_a_live_guard_ends_at_once_and_its_lease_frees_the_lock() {
    let server = Server::start().await;
    for how in ["in_block_on", "after_the_runtime", "in_a_static", "forgotten", "exit"] {
        let worker = Worker::start("ends_with_a_guard", &[("url", &server.url()), ("how", how)]);
        worker.expect("holding").await;
        let began = std::time::Instant::now();
        let status = worker.wait().await;
        assert!(status.success(), "{how}: {status}");
        // Its lease is a minute: it did not wait for that.
        assert!(began.elapsed() < Duration::from_secs(25), "{how}");
        // What a minute would do is done here, so that the test need not wait for it.
        let left: i64 = server.ask(&["PTTL", "stock"]).await;
        assert!(left <= 60_000 && left != -1, "{how}: {left}");
        server.ask::<()>(&["DEL", "stock"]).await;
    }
}
