//! A connection to one Redis server, and what is sent over it.
//!
//! - made: `endpoint` (where to), `dial`, `settings`, `login`, `handshake` (the checks), `backoff` (the pauses in between);
//! - for commands: `slot` (the current connection), `evalsha` (the calls), `redis_error` (what their errors mean);
//! - for messages: `subscriber` and its task, `channels` (the state of each subscription), `listener` (what goes over it);
//! - what is known of the server: `server_info` (its age), `data_watch` (its data), `optional_rights` (the user's).

mod backoff;
mod channels;
mod data_watch;
pub(crate) mod dial;
mod endpoint;
mod evalsha;
mod handshake;
mod listener;
mod login;
mod optional_rights;
pub(crate) mod redis_error;
mod server_info;
mod settings;
mod slot;
mod subscriber;

pub(crate) use backoff::Backoff;
pub(crate) use channels::ChannelRequest;
pub(crate) use data_watch::DataWatch;
pub(crate) use dial::connect_limit;
pub(crate) use endpoint::{Endpoint, Gate, Target, moved};
pub(crate) use evalsha::{CHUNK, ask_about_data, ask_all, begin, finish, info_replication, run_last};
pub(crate) use handshake::Purpose;
pub(crate) use listener::{ChannelKind, Listener, Requester, open as listen};
pub(crate) use login::Login;
pub(crate) use optional_rights::OptionalRights;
pub(crate) use server_info::ServerClock;
pub(crate) use settings::tuned;
pub(crate) use slot::{CLOSED, ConnectionSlot, Link, LinkStatus, State};
pub(crate) use subscriber::Subscriber;

pub(crate) use crate::backend::resp::Connection;
