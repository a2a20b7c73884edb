//! Commands and answers over one socket.
//!
//! `hello` opens a `connection`, which has a task: `calls` is its state, `frame` finds and decodes answers, and
//! `socket` and `tls` are what it writes to and reads from. `unsent` is the error of a command that never got there.

mod calls;
mod connection;
mod frame;
mod hello;
mod socket;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
mod tls;
mod unsent;

pub(crate) use connection::{Connection, OnPush, PendingAnswer};
pub(crate) use frame::text;
pub(crate) use hello::open;
pub(crate) use unsent::{TOO_LATE, unsent, why_unsent};
