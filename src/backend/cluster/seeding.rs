//! Seeds have to be nodes of one cluster: of two, two clients would each find another one, and both hold a lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::topology::Topology;
use crate::backend::cluster::topology_query::{NodeReport, TopologyQuery};
use crate::base::telemetry;
use crate::error::{Error, ErrorKind, Result};

/// How long the other seeds are waited for, once one has answered.
const GRACE: Duration = Duration::from_secs(1);

impl Nodes {
    /// The first view of all: every seed is asked, and those that answer have to know each other.
    pub(super) async fn first_scout(&self) -> Result<Topology> {
        let seeds = self.seed_places();
        let mut inquiry =
            TopologyQuery::new(self.candidates_at(seeds.clone()), Duration::ZERO, self.patience());
        let mut first: Option<(NodeReport, Instant)> = None;
        let mut heard = Vec::new();
        loop {
            let told = match &first {
                Some((_, until)) => timeout_at(*until, inquiry.next()).await.unwrap_or_default(),
                None => inquiry.next().await,
            };
            let Some(told) = told else { break };
            let Ok(told) = told else { continue };
            heard.push(told.place.clone());
            match &first {
                Some((first, _)) if !first.view.ids.meet(&told.view.ids) => {
                    return Err(two_clusters(&first.address, &told.address));
                }
                Some(_) => {}
                None => first = Some((told, Instant::now() + GRACE)),
            }
        }
        let Some((NodeReport { view, .. }, _)) = first else { return Err(inquiry.failure(self)) };
        let unheard = seeds.into_iter().filter(|seed| !heard.contains(seed) && !view.has(seed)).collect();
        self.identity.set_unheard(unheard);
        Ok(view)
    }

    /// The same for seeds that were away then. 1. This client finds its cluster by one seed. 2. Another one, for which only a
    /// late seed was there, finds another cluster by that. 3. Both hold a lock. So unless most seeds are of this cluster, by
    /// its own account or their answer, nothing is granted any more.
    pub(super) async fn hear_late_seeds(&self) {
        let unheard = self.identity.unheard();
        if unheard.is_empty() {
            return;
        }
        let mut inquiry = TopologyQuery::new(self.candidates_at(unheard), Duration::ZERO, self.patience());
        let mut strangers = Vec::new();
        while let Some(told) = inquiry.next().await {
            let Ok(told) = told else { continue };
            if !self.identity.heard(&told.place, &told.view.ids) {
                strangers.push(told.address);
            }
        }
        let most = self.identity.has_most(self.seed_places().len());
        for stranger in strangers {
            telemetry::seed_of_another(&stranger);
            if !most {
                self.identity.contest(two_clusters(&self.seeds.to_string().into(), &stranger));
            }
        }
    }
}

fn two_clusters(one: &Arc<str>, other: &Arc<str>) -> Error {
    let told = format!(
        "seeds of different clusters were given to `cluster`: {one} and {other} know no node in common; give nodes of \
         one cluster only"
    );
    Error::new(ErrorKind::Config, told)
}
