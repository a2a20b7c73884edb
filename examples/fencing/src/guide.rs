//! The samples of the guide to fencing tokens. Those on SQLite are left out where the crate's are run, since the crate does not
//! build SQLite; they run here: `cargo test -p fencing --doc -- --include-ignored`.
#![cfg_attr(doctest, doc = include_str!("../../../docs/fencing.md"))]
