//! A Redis Cluster as one master.

mod cluster;
mod gate;
mod identity;
mod limit;
mod nodes;
mod pubsub_node;
mod route;
mod seeding;
mod shard_reports;
mod sharded;
mod slots;
mod split_calls;
#[cfg(test)]
mod testing;
mod topology;
mod topology_query;
mod topology_watch;

pub(crate) use cluster::Cluster;
