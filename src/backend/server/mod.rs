//! A Redis server as a master.

mod reconnect;
mod replica_acks;
mod role;
mod server;
mod source;

pub(crate) use role::Role;
pub(crate) use server::RedisServer;
