//! A Redis server as a master.

mod one_vote;
mod reconnect;
mod replica_acks;
mod role;
mod server;
mod source;
mod spare;

pub(crate) use one_vote::OneVote;
pub(crate) use role::Role;
pub(crate) use server::RedisServer;
pub(crate) use spare::Spare;
