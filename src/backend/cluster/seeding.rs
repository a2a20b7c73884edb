//! Checks that all seeds are nodes of one cluster. With seeds of two clusters, two clients could each find another one, and both
//! hold a lock.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::cluster::topology::Topology;
use crate::backend::cluster::topology_query::NodeReport;
use crate::base::telemetry;
use crate::error::{Error, Result, rejected};

/// How long to wait for the other seeds once one has answered.
const GRACE: Duration = Duration::from_secs(1);

impl Nodes {
    /// Returns the first topology. Queries all seeds; those that answer must be nodes of one cluster.
    pub(super) async fn first_topology(&self) -> Result<Topology> {
        let seeds = self.seed_addresses();
        let mut query = self.query_at(&seeds);
        let Some(NodeReport { topology, node_address, address, .. }) = query.next().await else {
            return Err(query.failure());
        };
        let (until, mut answered) = (Instant::now() + GRACE, vec![node_address]);
        while let Ok(Some(other)) = timeout_at(until, query.next()).await {
            if !topology.ids.may_be_one_cluster(&other.topology.ids) {
                return Err(two_clusters(&address, &other.address));
            }
            answered.push(other.node_address);
        }
        let is_unanswered = |seed: &NodeAddress| !answered.contains(seed) && !topology.has(seed);
        self.identity.set_unconfirmed_seeds(seeds.into_iter().filter(is_unanswered).collect());
        Ok(topology)
    }

    /// Checks the seeds that could not be reached at first. Otherwise: 1. This client finds its cluster by one seed. 2. Another client
    /// reaches only a late seed, and finds another cluster by it. 3. Both hold a lock. So no more locks are granted until most
    /// seeds are nodes of this cluster, by its topology or their answers. A seed of another cluster is asked again, since it, or this
    /// client, may move to the other cluster.
    pub(super) async fn query_late_seeds(&self) {
        let mut query = self.query_at(&self.identity.unconfirmed_seeds());
        let mut strangers = Vec::new();
        while let Some(report) = query.next().await {
            if !self.identity.seed_answered(&report.node_address, &report.topology.ids) {
                strangers.push(report.address);
            }
        }
        let most = self.identity.has_most_seeds(self.seed_addresses().len());
        for stranger in &strangers {
            self.identity.report_stranger(stranger, telemetry::seed_of_another);
        }
        if most {
            // A seed of another cluster may have answered before most seeds of this one did.
            self.identity.block_grants(None);
        } else if let Some(stranger) = strangers.first() {
            self.identity.block_grants(Some(two_clusters(&self.seeds.to_string(), stranger)));
        }
    }
}

fn two_clusters(one: &str, other: &str) -> Error {
    rejected(format!(
        "seeds of different clusters were given to `Master::cluster`: {one} and {other} have no node in common; give nodes of \
         one cluster only"
    ))
}

#[cfg(test)]
mod tests;
