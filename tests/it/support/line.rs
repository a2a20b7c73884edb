//! The line of a lock on the server, and the processes that wait in it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use nestlock::{Guard, Locks, Result};
use tokio::task::JoinHandle;

use super::server::Server;
use super::{eventually, soon};

/// Returns the key of this lock's line.
pub fn key(name: &str) -> String {
    format!("nestlock_line:{{{name}}}")
}

/// Returns the first parts of the waiters' fields for this lock, in order.
pub async fn members(server: &Server, name: &str) -> Vec<String> {
    // If the slot has moved, a node of a cluster answers with an error.
    let members = server.try_ask::<Vec<String>>(&["ZRANGE", &key(name), "0", "-1"]).await;
    let start = format!("nestlock_wake:{{{name}}}:");
    let of_a_cluster = |member: &str| member.strip_prefix(&start).map(str::to_owned);
    let of_a_server = |member: &str| member.strip_prefix("nestlock_wake:").map(str::to_owned);
    let field = |member: &String| of_a_cluster(member).or_else(|| of_a_server(member)).expect("a channel");
    members.unwrap_or_default().iter().map(|member| session_of(&field(member)).to_owned()).collect()
}

/// Waits until this many processes wait for this lock.
pub async fn stand(server: &Server, name: &str, count: usize) {
    eventually("a line", async || members(server, name).await.len() == count).await;
}

/// Starts a waiter for this lock.
pub fn waits(locks: &Locks, name: &str) -> JoinHandle<Result<Guard>> {
    tokio::spawn(locks.mutex(name).lock())
}

/// Returns the guard that a waiter gets.
pub async fn granted(waiter: JoinHandle<Result<Guard>>) -> Guard {
    soon("the lock", waiter).await.unwrap().unwrap()
}

/// Returns the first part of a guard's field, which names its process.
pub fn session(guard: &Guard) -> &str {
    session_of(guard.hold_id())
}

/// Returns the first part of a field, which names its process.
pub fn session_of(field: &str) -> &str {
    field.rsplit_once(':').expect("a field").0
}

/// Stands for the work under the lock. Fails if another task is inside too.
pub async fn alone(inside: &AtomicUsize) {
    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two were inside at once");
    tokio::task::yield_now().await;
    inside.fetch_sub(1, SeqCst);
}
