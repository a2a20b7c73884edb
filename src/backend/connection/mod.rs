//! A connection to one Redis server, and what is said over it.

mod backoff;
mod connection;
pub(crate) mod dial;
mod handshake;
mod scripts;
mod settings;
mod site;
mod subscriber;
mod topics;
pub(crate) mod verdict;
mod vitals;

pub(crate) use backoff::Backoff;
pub(crate) use connection::{CLOSED, Line, Link, QUEUE, Signs, State};
pub(crate) use handshake::Purpose;
pub(crate) use scripts::{ask, ask_all};
pub(crate) use settings::{for_messages, tuned};
pub(crate) use site::{Gate, Site, Target, moved};
pub(crate) use subscriber::Subscriber;
pub(crate) use vitals::{Clock, Vitals};
