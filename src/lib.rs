//! A reentrant distributed mutex on Redis.

mod backend;
mod deadline;
mod error;
mod script;

pub use error::{Error, ErrorKind, Loss, Result};
