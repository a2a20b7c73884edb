//! A reentrant distributed mutex on Redis.

mod backend;
mod config;
mod deadline;
mod error;
mod script;
mod server;
mod telemetry;

pub use config::Builder;
pub use error::{Error, ErrorKind, Loss, Result};
pub use server::Server;
