//! The fair line of a lock, as it stands on the server, and those who wait in it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use nestlock::{Guard, Locks, Result};
use tokio::task::JoinHandle;

use super::server::Server;
use super::{eventually, soon};

/// Returns the key of this lock's line.
pub fn key(name: &str) -> String {
    format!("nestlock_line:{{{name}}}")
}

/// Returns what the fields of those who wait for this lock begin with, in order.
pub async fn members(server: &Server, name: &str) -> Vec<String> {
    // A node of a cluster whose slot has moved answers with an error.
    let members = server.try_ask::<Vec<String>>(&["ZRANGE", &key(name), "0", "-1"]).await;
    let start = format!("nestlock_wake:{{{name}}}:");
    let of_a_cluster = |member: &str| member.strip_prefix(&start).map(str::to_owned);
    let of_a_server = |member: &str| member.strip_prefix("nestlock_wake:").map(str::to_owned);
    let field = |member: &String| of_a_cluster(member).or_else(|| of_a_server(member)).expect("a channel");
    members.unwrap_or_default().iter().map(|member| session_of(&field(member)).to_owned()).collect()
}

/// Waits until this many wait for this lock.
pub async fn stand(server: &Server, name: &str, count: usize) {
    eventually("a line", async || members(server, name).await.len() == count).await;
}

/// Starts a waiter for this lock.
pub fn waits(locks: &Locks, name: &str) -> JoinHandle<Result<Guard>> {
    tokio::spawn(locks.mutex(name).lock())
}

/// Returns what a waiter gets.
pub async fn granted(waiter: JoinHandle<Result<Guard>>) -> Guard {
    soon("the lock", waiter).await.unwrap().unwrap()
}

/// Returns what the field of a guard begins with: its process.
pub fn session(guard: &Guard) -> &str {
    session_of(guard.hold_id())
}

/// Returns what a field begins with.
pub fn session_of(field: &str) -> &str {
    field.rsplit_once(':').expect("a field").0
}

/// What is done under the lock: it fails if somebody else is inside.
pub async fn alone(inside: &AtomicUsize) {
    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two were inside at once");
    tokio::task::yield_now().await;
    inside.fetch_sub(1, SeqCst);
}
