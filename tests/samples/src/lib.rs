//! The guides' samples that need other crates: SQLite, connection pools, axum, tonic, cloud SDKs. nestlock
//! does not depend on these, so its doctests ignore the samples. They run here: `cargo test -p samples`.

include!(concat!(env!("OUT_DIR"), "/pages.rs"));
