//! The samples of the guides that stand on other crates: SQLite, pools of connections, axum, tonic, the libraries of clouds. The crate does
//! not build these, and ignores the samples. They run here: `cargo test -p samples`.

include!(concat!(env!("OUT_DIR"), "/pages.rs"));
