//! The homes that keep a test's locks, for tests that run over every backend.
//!
//! Each kind of [`Home`](redis::Home) has the same few functions: [`builder`](redis::Home::builder) and [`locks`](redis::Home::locks) for
//! the lock's own API, a view of the locks that are held, and the faults that every backend can have. What only one backend has
//! (connections, command counts, a proxy) has no place here.

pub mod memory;
pub mod redis;

use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a lock name that no other test uses, not even the same test over another backend. It is for tests that read the log.
fn unique(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}
