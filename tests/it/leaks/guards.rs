//! Guards that are dropped in places where no future runs.

use std::time::Duration;

use nestlock::ErrorKind;
use tokio::runtime::Runtime;

use crate::support::process::Worker;
use crate::support::server::Server;
use crate::support::{builder, eventually, soon};

#[test]
fn a_guard_kept_beyond_its_runtime_is_lost_in_time_and_can_be_released() {
    let looks = Runtime::new().unwrap();
    let server = looks.block_on(Server::start());
    let runtime = Runtime::new().unwrap();
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

/// After a clock was paused anywhere in the process, tokio's clock doesn't work once tokio's own thread-locals are gone.
#[test]
fn a_guard_may_be_dropped_by_a_thread_local_that_outlives_those_of_tokio() {
    thread_local! {
        // This thread-local is made before tokio's, so it is dropped after them.
        static KEPT: std::cell::RefCell<Option<nestlock::Guard>> = const { std::cell::RefCell::new(None) };
    }
    let current_thread =
        || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    current_thread().unwrap().block_on(tokio::task::yield_now());
    let runtime = Runtime::new().unwrap();
    let (server, stock) = runtime.block_on(async {
        let server = Server::start().await;
        let stock = builder(&server.url()).connect().await.unwrap().mutex("stock");
        (server, stock)
    });
    let handle = runtime.handle().clone();
    let thread = std::thread::spawn(move || {
        KEPT.take();
        KEPT.set(Some(handle.block_on(stock.lock()).unwrap()));
    });
    thread.join().unwrap();
    runtime.block_on(eventually("the end of the hold", async || server.keys().await.is_empty()));
}

const LEASE: i64 = 600_000;

#[tokio::test]
async fn a_process_that_ends_with_a_live_guard_ends_at_once_and_its_lease_frees_the_lock() {
    let server = Server::start().await;
    for how in ["in_a_static", "forgotten", "exit"] {
        let worker = ends(&server.url(), "several threads", how).await;
        let began = std::time::Instant::now();
        let status = worker.wait().await;
        assert!(status.success(), "{how}: {status}");
        // The process did not wait for the end of its lease.
        assert!(began.elapsed() < Duration::from_secs(25), "{how}");
        // The key still has its TTL. It is deleted here, so that the test need not wait.
        let left: i64 = server.ask(&["PTTL", "stock"]).await;
        assert!((1..=LEASE).contains(&left), "{how}: {left}");
        server.ask::<()>(&["DEL", "stock"]).await;
    }
}

async fn ends(url: &str, runtime: &str, how: &str) -> Worker {
    let worker = Worker::start("ends_with_a_guard", &[("url", url), ("runtime", runtime), ("how", how)]);
    worker.expect("holding").await;
    worker
}

/// The key is gone long before its lease is over.
#[tokio::test]
async fn a_process_that_ends_after_the_drop_of_its_guard_leaves_no_lock() {
    let server = Server::start().await;
    leaves_no_lock(&server, &server.url()).await;
}

#[tokio::test]
async fn a_process_that_ends_after_the_drop_of_its_guard_leaves_no_lock_over_a_unix_socket() {
    let server = Server::with(&["--unixsocket", "ends.sock"]).await;
    leaves_no_lock(&server, &format!("unix://{}", server.dir().join("ends.sock").display())).await;
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[tokio::test]
async fn over_tls_a_process_that_closes_leaves_no_lock() {
    let server = Server::tls().await;
    for (how, runtime) in ways(["by_close"]) {
        // The URL has the name of the host.
        let worker = ends(&format!("{}/#insecure", server.tls_url()), runtime, how).await;
        assert!(worker.wait().await.success(), "{runtime}");
        assert!(server.keys().await.is_empty(), "{runtime}");
    }
}

async fn leaves_no_lock(server: &Server, url: &str) {
    for (how, runtime) in ways([
        "in_block_on",
        "by_an_error",
        "by_a_panic",
        "by_a_signal",
        "outside",
        "after_the_runtime",
        "exit_after_the_drop",
    ]) {
        let worker = ends(url, runtime, how).await;
        if how == "by_a_signal" {
            worker.expect("to be ended").await;
            worker.interrupt();
        }
        assert!(worker.wait().await.success(), "{how}, {runtime}");
        eventually(&format!("the end of the lock ({how}, {runtime})"), async || {
            server.keys().await.is_empty()
        })
        .await;
    }
}

/// The ways are tried one after another. In some of them a task is dropped with its guard, a second guard is dropped after the first, or a
/// hold is offered to a waiter.
#[tokio::test]
async fn a_runtime_that_ends_leaves_no_lock() {
    let server = Server::start().await;
    for (how, runtime) in ways(["dropped_together", "in_tasks", "kept", "at_least", "offered", "asked_for"]) {
        let params = [("url", &*server.url()), ("runtime", runtime), ("how", how)];
        let mut worker = Worker::start("outlives_its_runtime", &params);
        worker.expect("the runtime has ended").await;
        eventually(&format!("the end of all locks ({how}, {runtime})"), async || {
            server.keys().await.is_empty()
        })
        .await;
        worker.say("end");
        assert!(worker.wait().await.success(), "{how}, {runtime}");
    }
}

fn ways<const N: usize>(all: [&'static str; N]) -> impl Iterator<Item = (&'static str, &'static str)> {
    all.into_iter().flat_map(|how| ["one thread", "several threads"].map(|runtime| (how, runtime)))
}
