//! `fair`: processes get a lock in the order in which they began to wait for it.

mod beside;
mod gone;
mod order;
mod waiters;

use std::time::Duration;

use nestlock::{Builder, Guard, Locks, Result};
use tokio::task::JoinHandle;

use crate::support::line::{self, granted, session, session_of};
use crate::support::server::Server;
use crate::support::{self, HOUR, eventually};

const LINE: &str = "nestlock_line:{stock}";

/// So long that no test waits for the end of a term.
const LONG: Duration = Duration::from_secs(600);

/// Returns options with which no timer wakes a waiter, and nobody gets the lock because somebody else's term or lease ended.
fn fair(builder: Builder) -> Builder {
    support::without_timers(builder).fair(true).node_timeout(LONG).lease(HOUR)
}

/// Connects as another process does.
async fn process(url: &str) -> Locks {
    fair(support::builder(url)).connect().await.unwrap()
}

/// Starts a waiter for `stock`.
fn waits(locks: &Locks) -> JoinHandle<Result<Guard>> {
    line::waits(locks, "stock")
}

/// Returns the first parts of the waiters' fields for `stock`, in order.
async fn line(server: &Server) -> Vec<String> {
    line::members(server, "stock").await
}

/// Waits until this many processes wait for `stock`.
async fn stand(server: &Server, count: usize) {
    line::stand(server, "stock", count).await;
}

/// Returns the holder of `stock`, or the process it was handed to: the first part of its field, and its count.
async fn holder(server: &Server) -> Option<(String, usize)> {
    let fields: Vec<(String, usize)> = server.ask(&["HGETALL", "stock"]).await;
    assert!(fields.len() <= 1, "{fields:?}");
    fields.first().map(|(field, count)| (session_of(field).to_owned(), *count))
}

/// Waits until neither a lock nor a line is left.
async fn tidy(server: &Server) {
    eventually("the end", async || server.all_keys().await.iter().all(|key| key.contains("token:"))).await;
}
