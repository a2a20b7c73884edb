//! A Redis server as a master.
//!
//! `server` runs the calls, in its `role` among the masters, and `replica_acks` those that replicas have to acknowledge. `reconnect` keeps
//! its connection, to where `source` says, and `one_vote` ensures that no other master is the same server. `spare` is for the backup
//! thread.

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
