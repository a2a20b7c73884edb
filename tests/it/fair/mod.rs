//! `fair`: processes get a lock in the order in which they began to wait for it.

mod beside;
mod gone;
mod order;

use std::time::Duration;

use nestlock::{Builder, Guard, Locks, Result};
use tokio::task::JoinHandle;

use crate::support::server::Server;
use crate::support::{self, HOUR, eventually, soon};

const LINE: &str = "nestlock_line:{stock}";

/// So long that nobody waits for the end of a term: what comes, comes at once.
const LONG: Duration = Duration::from_secs(600);

/// No timer wakes a waiter, and nobody gets the lock since another one's term or lease is over.
fn fair(builder: Builder) -> Builder {
    support::without_timers(builder).fair(true).node_timeout(LONG).lease(HOUR)
}

/// As another process has one.
async fn process(url: &str) -> Locks {
    fair(support::builder(url)).connect().await.unwrap()
}

/// Waits for `stock`.
fn waits(locks: &Locks) -> JoinHandle<Result<Guard>> {
    tokio::spawn(locks.mutex("stock").lock())
}

/// Those who wait for `stock`, in order: what their fields begin with.
async fn line(server: &Server) -> Vec<String> {
    let members: Vec<String> = server.ask(&["ZRANGE", LINE, "0", "-1"]).await;
    let session = |member: &String| {
        member.strip_prefix("nestlock_wake:").unwrap().rsplit_once(':').unwrap().0.to_owned()
    };
    members.iter().map(session).collect()
}

/// Waits until so many wait for `stock`.
async fn stand(server: &Server, count: usize) {
    eventually("a line", async || line(server).await.len() == count).await;
}

/// Who holds `stock`, or was handed it: what the field begins with, and its count.
async fn holder(server: &Server) -> Option<(String, usize)> {
    let fields: Vec<(String, usize)> = server.ask(&["HGETALL", "stock"]).await;
    assert!(fields.len() <= 1, "{fields:?}");
    fields.first().map(|(field, count)| (field.rsplit_once(':').unwrap().0.to_owned(), *count))
}

/// What the field of a guard begins with.
fn session(guard: &Guard) -> &str {
    guard.field().rsplit_once(':').unwrap().0
}

/// What a waiter gets.
async fn granted(waiter: JoinHandle<Result<Guard>>) -> Guard {
    soon("the lock", waiter).await.unwrap().unwrap()
}

/// Waits until neither a lock nor a line is there.
async fn tidy(server: &Server) {
    eventually("the end", async || server.keys().await.iter().all(|key| key.contains("token:"))).await;
}
