//! The command on real servers: how it ends, what becomes of its child, and what it shows.

// The tests need `setsid`, `script`, `pgrep` and `/proc`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod errors;
mod exec;
mod help;
mod looks;
mod loss;
mod nested;
mod quorum;
mod run;
mod signals;
mod terminal;

// The helpers with which the tests of the crate start their servers.
#[allow(
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::must_use_candidate
)]
#[path = "../../../tests/it/support/mod.rs"]
mod support;
