//! A Redis Cluster as one master.
//!
//! - a call: `cluster` takes it, `route` sends it to the node in `nodes` that serves its slot (`slots`), within a `limit`;
//!   `split_calls` runs a fenced one key by key while the slot migrates;
//! - a new connection: `gate` checks that its node belongs to the cluster, by the ids in `identity`; `seeding` checks the seeds;
//! - the topology: `topology` is the answer of a node, `topology_query` asks for it, `topology_watch` keeps it up to date;
//! - messages: `sharded` has the subscriptions, `pubsub_node` chooses the node for plain ones, `shard_reports` passes their reports on.

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
