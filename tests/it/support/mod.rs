//! What the tests of this binary build on: real servers, a bad network, other processes, the log. The tests
//! of `cli/`, and `tests/torture/`, `tests/interop/` and `tests/forks/`, use it too.
//!
//! A test that needs only a lock belongs to `contract/`, which runs over each kind of [`home`]. Any other
//! test is in a file or folder of `tests/it/` that is named after the situation, with a `mod` line in
//! `main.rs`. Tests run side by side: each has its own server, and its own lock names if it reads the log.
//!
//! ```ignore
//! let server = Server::start().await;              // or Server::with(&["--maxmemory", "2mb"]), Server::tls()
//! server.kill(); server.restart().await;           // also restart_empty(), freeze(), thaw()
//! server.ask::<i64>(&["HGET", "name", "field"]).await;      // also try_ask, set, info, admin
//! server.keys().await; server.channels().await; server.clients().await; server.commands_run().await["hincrby"];
//!
//! let proxy = Proxy::to(&server).await;            // clients connect to proxy.url()
//! let hold = proxy.on(|c| c.is("release") && c.names("name")).times(1).hold();
//! let release = hold.seen().await;                 // a Command: script, keys(), argv(), args, connection
//! proxy.reset(Which::All).await;                   // the client gives up; also close(), half_open(), refuse()
//! assert_eq!(hold.let_through().await, [":1\r\n"]);         // the held command runs now
//!
//! let lost = proxy.on(|c| c.is("acquire")).times(1).drop_reply();
//! lost.done().await;                               // the command has run, and its reply is lost
//!
//! let mut worker = Worker::start("holder", &[("url", &server.url())]);     // in workers.rs, a process of its own
//! worker.expect("holding").await; worker.freeze(); worker.kill();
//!
//! log::recorded(|e| e.level == Level::WARN && e.mentions("name")).await;
//!
//! eventually("the lock is free", async || server.keys().await.is_empty()).await;
//! ```
//!
//! **On commands**: [`Command::is`](resp::Command::is) takes the file name of a script (`acquire`, `release`,
//! `renew`, …) or the name of a command (`subscribe`). Faults after [`on`](proxy::Proxy::on): `watch`,
//! `hold`, `hold_reply`, `drop_reply`, `drop_reply_and_reset`, `drop_reply_and_close`, `delay_reply`,
//! `replace_in_reply`, `replace_reply`, `lose_and_reset`; before them `times(n)` and `skip(n)`. A fault ends
//! when its [`Fault`](proxy::Fault) is dropped, so bind it to a name. Held commands hold back everything that
//! follows on their connection, as TCP does.
//!
//! **On time**: do not sleep for a fixed time. Await an event (`seen`, `done`, `line`, `recorded`), wrap other waits in [`soon`], and poll
//! with [`eventually`] only for what no event reports. Both fail after [`PATIENCE`], which no test is meant to reach. A busy machine may
//! pause for seconds. So a hold that a test expects to be renewed has a lease of six seconds or more; a time that is compared with a TTL is
//! measured from before the command; and a node timeout within which answers must arrive is a second or more.
//!
//! **On the scripts**: servers start with the scripts loaded. The first run of each script over a connection is an `EVAL`, and each later
//! one an `EVALSHA`. After `SCRIPT FLUSH`, the same connection shows an `EVALSHA`, which is answered with NOSCRIPT, and then the `EVAL`. A
//! dropped or late reply then applies to the command that runs. A held `EVALSHA` is let through unchanged.

// Each binary that includes this module uses only a part of it.
#![allow(dead_code, unused_imports)]

pub mod child;
pub mod cluster;
pub mod home;
pub mod line;
pub mod log;
mod lone_node;
pub mod process;
pub mod proxy;
pub mod resp;
pub mod scripts;
pub mod sentinel;
pub mod server;
pub mod tls;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use nestlock::Fenced;

pub use child::is_running;

/// Returns the options that a test starts from: those of its server, or of a proxy in front of it.
///
/// Every `Locks` of a test comes from here or from [`home`]. A test that waits for a node timeout sets a shorter one.
pub fn builder(url: &str) -> nestlock::Builder {
    options(url)
}

/// Returns the options that a test starts from, over this master.
pub fn options(master: impl Into<nestlock::Master>) -> nestlock::Builder {
    nestlock::Locks::builder(master).node_timeout(NODE_TIMEOUT)
}

/// Returns the options that a test starts from, over several masters. The masters are trusted although they have just been started.
pub fn quorum(masters: impl IntoIterator<Item = impl Into<nestlock::Master>>) -> nestlock::Builder {
    nestlock::Locks::quorum(masters).node_timeout(NODE_TIMEOUT).restart_delay(Duration::ZERO)
}

/// Returns a `Locks` over this server or proxy.
pub async fn locks(url: &str) -> nestlock::Locks {
    builder(url).connect().await.expect("the test's server takes connections")
}

/// Longer than the default, so that a busy machine doesn't look like a dead server.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);

pub const SECOND: Duration = Duration::from_secs(1);

/// The limit of a request that has to give up soon, but not before the server of a busy machine has answered.
pub const SOON_OVER: Duration = SECOND;

/// So long that nothing that waits for its end happens within a test.
pub const HOUR: Duration = Duration::from_secs(3600);

/// Returns the part of a lease that is left after the drift.
pub fn less_drift(lease: Duration) -> Duration {
    lease - lease / 100 - Duration::from_millis(2)
}

/// Returns options with which no timer wakes a waiter: neither the poll interval nor the pause of a waiter without messages. So only an
/// event can give it the lock.
pub fn without_timers(builder: nestlock::Builder) -> nestlock::Builder {
    builder.poll_interval(Duration::MAX).retry_delay(HOUR..=HOUR)
}

/// The field of another program's hold, as Redisson writes it.
pub const STRANGER: &str = "0f3c9a44-77e0-4e0c-8d1f-2b6d7c1f5a90:1";

/// How long a test waits for something that must happen. It is far more than a busy machine needs, and more than the node timeout of a
/// [`Cluster`](cluster::Cluster), after which its nodes connect to each other again.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Awaits a future. If it is not ready within [`PATIENCE`], fails the test with the name `what`.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not come within {PATIENCE:?}"),
    }
}

/// Waits until `is_so` returns true. If it does not within [`PATIENCE`], fails the test with the name `what`.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Returns a request of another owner that is already in its queue.
pub fn enlisted(mutex: &nestlock::Mutex) -> nestlock::futures::Request<nestlock::Guard> {
    polled(mutex.lock().owner(&nestlock::Owner::new()))
}

/// Returns a request of another owner for a token that is already in its queue.
pub fn enlisted_fenced(
    mutex: &nestlock::Mutex<Fenced>,
) -> nestlock::futures::Request<nestlock::Guard<Fenced>> {
    polled(mutex.lock().owner(&nestlock::Owner::new()))
}

/// Takes the lock, and returns the token of the grant.
pub async fn next_token(mutex: &nestlock::Mutex<Fenced>) -> u64 {
    let guard = soon("the lock", mutex.lock().owner(&nestlock::Owner::new())).await.unwrap();
    let given = guard.token();
    guard.release().await.unwrap();
    given
}

fn polled<F: Future + Unpin>(mut request: F) -> F {
    let mut context = Context::from_waker(Waker::noop());
    assert!(Future::poll(Pin::new(&mut request), &mut context).is_pending());
    request
}

/// Polls a request until it sleeps as the head, and leaves it unpolled after that.
pub async fn parked(
    request: &mut nestlock::futures::Request<nestlock::Guard>,
    asleep: impl Future<Output = ()>,
) {
    tokio::select! {
        _ = request => panic!("somebody else holds it"),
        () = asleep => {}
    }
}

/// Takes a hold of `stock` whose renewals check it every two seconds, long before its lease would be over.
pub async fn watched(builder: nestlock::Builder) -> (nestlock::Locks, nestlock::Guard) {
    let locks = builder.lease(6 * SECOND).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    (locks, guard)
}

/// Checks that the guard and its release report that the key of `stock` is gone.
pub async fn assert_gone(guard: nestlock::Guard) {
    assert_eq!(soon("the loss", guard.lost()).await, nestlock::Loss::Gone);
    assert!(guard.is_lost());
    let error = guard.release().await.unwrap_err();
    let expected = (nestlock::ErrorKind::Lost, Some(nestlock::Loss::Gone), Some("stock"));
    assert_eq!((error.kind(), error.loss(), error.lock()), expected);
}
