//! A Redis server as a master.

mod reconnect;
mod replica_acks;
mod server;
mod source;

pub(crate) use server::{RedisServer, Role, SHORTEST_CONNECT};
