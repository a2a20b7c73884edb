//! `fair`: processes get a lock in the order in which they began to wait for it.

mod beside;
mod gone;
mod order;
mod waiters;

use std::time::Duration;

use nestlock::{Builder, Guard, Locks, Result};
use tokio::task::JoinHandle;

use crate::support::server::Server;
use crate::support::{self, HOUR, eventually, soon};

const LINE: &str = "nestlock_line:{stock}";

/// So long that nobody waits for the end of a term: whatever comes, comes at once.
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
    tokio::spawn(locks.mutex("stock").lock())
}

/// Returns what the fields of those who wait for `stock` begin with, in order.
async fn line(server: &Server) -> Vec<String> {
    let members: Vec<String> = server.ask(&["ZRANGE", LINE, "0", "-1"]).await;
    let session = |member: &String| {
        member.strip_prefix("nestlock_wake:").unwrap().rsplit_once(':').unwrap().0.to_owned()
    };
    members.iter().map(session).collect()
}

/// Waits until this many wait for `stock`.
async fn stand(server: &Server, count: usize) {
    eventually("a line", async || line(server).await.len() == count).await;
}

/// Returns who holds `stock` or was handed it: what the field begins with, and its count.
async fn holder(server: &Server) -> Option<(String, usize)> {
    let fields: Vec<(String, usize)> = server.ask(&["HGETALL", "stock"]).await;
    assert!(fields.len() <= 1, "{fields:?}");
    fields.first().map(|(field, count)| (field.rsplit_once(':').unwrap().0.to_owned(), *count))
}

/// Returns what the field of a guard begins with.
fn session(guard: &Guard) -> &str {
    guard.field().rsplit_once(':').unwrap().0
}

/// Returns what a waiter gets.
async fn granted(waiter: JoinHandle<Result<Guard>>) -> Guard {
    soon("the lock", waiter).await.unwrap().unwrap()
}

/// Waits until neither a lock nor a line is left.
async fn tidy(server: &Server) {
    eventually("the end", async || server.all_keys().await.iter().all(|key| key.contains("token:"))).await;
}
