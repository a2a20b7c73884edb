//! The tests that need a real server, a bad network, or more than one process, and the contract of all backends.
//! `support` describes how to write one.

// Narrower visibility has no use in a test binary, since nothing outside can reach its items. A test fails by panicking.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// The contract is one text, and is included as one module for each kind of home.
#![allow(clippy::duplicate_mod)]

mod support;

mod address_map;
mod api;
mod blocked;
mod cluster;
mod credentials;
mod docs;
mod errors;
mod fair;
mod faults;
mod fencing;
mod house;
#[cfg(feature = "tower")]
mod layer;
mod lazily;
mod leaks;
mod leases;
mod loss;
mod memory;
#[cfg(feature = "metrics")]
mod metrics;
mod on_cluster;
mod on_fair_redis;
mod on_memory;
mod on_nesting_redis;
mod on_paused_memory;
mod on_quorum;
mod on_redis;
mod quorum;
mod replicas;
mod scripts;
mod sentinel;
mod spans;
mod streams;
mod support_works;
mod tls;
mod traits;
mod waiting;
mod wire;
mod workers;
