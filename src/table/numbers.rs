//! `Numbers`: the source of the numbers of a session's requests, levels and commands.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Hands out numbers, each greater than all before it.
#[derive(Debug, Default)]
pub(crate) struct Numbers(AtomicU64);

impl Numbers {
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Relaxed) + 1
    }
}
