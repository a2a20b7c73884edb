//! Asks nodes who serves what.

use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisError, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::cluster::identity::Ids;
use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::cluster::topology::Topology;
use crate::backend::connection::dial::too_long;
use crate::backend::connection::{Endpoint, Line, dial, redis_error};
use crate::base::telemetry;
use crate::error::{Error, ErrorKind, Result};

/// The next one is asked after so long without an answer; the first one may be frozen.
const STAGGER: Duration = Duration::from_millis(100);

const TOO_FEW: &str = "the nodes that answer know too few of the nodes of this cluster to be believed; they may have been given to another one";

/// A node that may be asked.
pub(super) struct Candidate {
    place: NodeAddress,
    site: Endpoint,
    /// Its command connection, where there is one.
    line: Option<Arc<Line>>,
}

/// What a node answered, and where.
pub(super) struct NodeReport {
    pub(super) view: Topology,
    pub(super) place: NodeAddress,
    pub(super) address: Arc<str>,
    line: Option<Arc<Line>>,
}

impl Nodes {
    /// The first view that vouches: it knows more than half of the known nodes. What else answers is not believed as long as one
    /// that vouches may come back. 1. A node is taken out, and given to another cluster; its id stays. 2. For a moment it alone
    /// answers. 3. Its view knows a node of ours, and leads to the other cluster.
    pub(super) async fn scout(&self) -> Result<Topology> {
        let Some(ids) = self.identity.ids() else { return self.first_scout().await };
        let mut inquiry = TopologyQuery::new(self.candidates(), STAGGER, self.patience());
        let mut vouching = None;
        let (mut doubtful, mut strangers) = (Vec::new(), Vec::new());
        while let Some(told) = inquiry.next().await {
            let Ok(told) = told else { continue };
            if ids.vouch_for(&told.view.ids) {
                vouching = Some(told.view);
                break;
            }
            let few = if ids.shared(&told.view.ids) > 0 { &mut doubtful } else { &mut strangers };
            few.push(told);
        }
        strangers.iter().for_each(|stranger| self.shun(stranger));
        if let Some(view) = vouching {
            // What the gate would refuse is not used over a connection that stands, either.
            doubtful.iter().filter(|told| !ids.includes(&told.view.ids)).for_each(|told| self.shun(told));
            return Ok(view);
        }
        let doubt = doubtful.first().map(|told| told.address.clone());
        match (self.successor(&ids, doubtful, strangers), doubt) {
            (Some(view), _) => Ok(view),
            (None, Some(address)) => Err(Error::new(ErrorKind::Unavailable, TOO_FEW).at(&address)),
            (None, None) => Err(inquiry.failure(self)),
        }
    }

    /// A node of another cluster answers there.
    fn shun(&self, stranger: &NodeReport) {
        if let Some(line) = &stranger.line {
            line.lost_any("the node belongs to another cluster now");
        }
        if self.identity.is_news(&stranger.address) {
            telemetry::stranger(&stranger.address);
        }
    }

    /// What is taken where no view has vouched for as long as a lease. First of all the cluster that most seeds are nodes of now:
    /// two clients with the same seeds come to the same end, since no two clusters have most. Else what is left of the old
    /// one: the view that knows most of its nodes and no others.
    fn successor(
        &self,
        ids: &Ids,
        doubtful: Vec<NodeReport>,
        strangers: Vec<NodeReport>,
    ) -> Option<Topology> {
        if !self.identity.is_gone() {
            return None;
        }
        let seeds = self.seed_places();
        let mut all: Vec<NodeReport> = doubtful.into_iter().chain(strangers).collect();
        let votes = |view: &Topology| {
            let same = |told: &&NodeReport| seeds.contains(&told.place) && told.view.ids.meet(&view.ids);
            all.iter().filter(same).count()
        };
        let elected = all.iter().position(|told| 2 * votes(&told.view) > seeds.len());
        let left = || {
            let left = all.iter().enumerate().filter(|(_, told)| ids.includes(&told.view.ids));
            let most =
                left.map(|(at, told)| (ids.shared(&told.view.ids), at)).filter(|(shared, _)| *shared > 0);
            most.max().map(|(_, at)| at)
        };
        let NodeReport { view, address, .. } = all.swap_remove(elected.or_else(left)?);
        if !ids.meet(&view.ids) {
            telemetry::cluster_replaced(&address);
        }
        Some(view)
    }

    /// Those whose connections stand, those that are known, the seeds; each once, and beginning anywhere. The one that messages
    /// are heard from comes last: where it has left the cluster, it may be the last to know.
    fn candidates(&self) -> Vec<Candidate> {
        let (nodes, replicas) = self.all();
        let (up, down): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.single.line().is_up());
        let lines = mixed(up).into_iter().map(|node| (node.place, Some(node.single.line().clone())));
        let others = mixed(down.into_iter().map(|node| node.place).chain(replicas).collect());
        let places =
            lines.chain(others.into_iter().chain(mixed(self.seed_places())).map(|place| (place, None)));
        let mut candidates: Vec<Candidate> = Vec::new();
        for (place, line) in places {
            if !candidates.iter().any(|candidate| candidate.place == place)
                && let Ok(site) = self.site(&place)
            {
                candidates.push(Candidate { place, site, line });
            }
        }
        let ear = self.ear();
        let (last, mut candidates): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| Some(&candidate.place) == ear.as_ref());
        candidates.extend(last);
        candidates
    }

    /// The same, of these alone.
    pub(super) fn candidates_at(&self, places: Vec<NodeAddress>) -> Vec<Candidate> {
        let candidate = |place| Some(Candidate { site: self.site(&place).ok()?, place, line: None });
        mixed(places).into_iter().filter_map(candidate).collect()
    }

    /// Each once.
    pub(super) fn seed_places(&self) -> Vec<NodeAddress> {
        let mut places = Vec::new();
        for place in self.seeds.all().iter().filter_map(|seed| seed.info()).filter_map(NodeAddress::seed) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }
}

/// Nodes that are asked one after the other, and answer in any order.
pub(super) struct TopologyQuery {
    candidates: std::vec::IntoIter<Candidate>,
    stagger: Duration,
    limit: Duration,
    asking: JoinSet<Result<NodeReport>>,
    failed: Option<Error>,
}

impl TopologyQuery {
    pub(super) fn new(candidates: Vec<Candidate>, stagger: Duration, limit: Duration) -> TopologyQuery {
        let candidates = candidates.into_iter();
        TopologyQuery { candidates, stagger, limit, asking: JoinSet::new(), failed: None }
    }

    /// The next answer; `None` when there will be no more.
    pub(super) async fn next(&mut self) -> Option<Result<NodeReport, ()>> {
        loop {
            if let Some(candidate) = self.candidates.next() {
                self.asking.spawn(look(candidate, self.limit));
            }
            let more = self.candidates.len() > 0;
            tokio::select! {
                told = self.asking.join_next() => match told {
                    Some(Ok(Ok(told))) => return Some(Ok(told)),
                    Some(Ok(Err(error))) => {
                        self.failed = Some(graver(self.failed.take(), error));
                        return Some(Err(()));
                    }
                    Some(Err(_)) => {}
                    None if !more => return None,
                    None => {}
                },
                () = sleep(self.stagger), if more => {}
            }
        }
    }

    /// Why none gave what was looked for.
    pub(super) fn failure(&mut self, nodes: &Nodes) -> Error {
        self.failed.take().unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("no node of {} can be asked", nodes.seeds))
        })
    }
}
/// Begins anywhere, so that not all clients ask the same node.
fn mixed<T>(mut list: Vec<T>) -> Vec<T> {
    if !list.is_empty() {
        let first = rand::random_range(0..list.len());
        list.rotate_left(first);
    }
    list
}

/// What is wrong with an option helps more than that another node is down.
fn graver(known: Option<Error>, error: Error) -> Error {
    match known {
        Some(known) if known.kind() != ErrorKind::Unavailable => known,
        _ => error,
    }
}

/// What one node tells.
async fn look(candidate: Candidate, limit: Duration) -> Result<NodeReport> {
    let Candidate { place, site, line } = candidate;
    match timeout(limit, asked(&site, line.clone())).await {
        Ok(answer) => {
            let (view, address) = (understood(answer?, &place, &site.address)?, site.address);
            Ok(NodeReport { view, place, address, line })
        }
        Err(_) => Err(redis_error::not_sent(&too_long(limit), &site.address).error),
    }
}

/// Over its command connection or, where it has none, over one for the moment.
async fn asked(site: &Endpoint, line: Option<Arc<Line>>) -> Result<Value> {
    let question = question();
    let unreachable = |error| redis_error::unreachable(error, &site.address);
    if let Some(line) = line {
        let mut link = line.link(Instant::now()).await.map_err(|failure| failure.error)?;
        return link.send_whenever(&question).await.map_err(unreachable);
    }
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let connection = dial::connect(&site.client, &config).await;
    connection.map_err(unreachable)?.send_packed_command(&question).await.map_err(unreachable)
}

pub(super) fn question() -> redis::Cmd {
    redis::cmd("CLUSTER").arg("SLOTS").to_owned()
}

pub(super) fn understood(answer: Value, place: &NodeAddress, address: &Arc<str>) -> Result<Topology> {
    let answer = answer.extract_error().map_err(|error| refused(error, address))?;
    let wrong = match Topology::read(&answer, place) {
        Some(view) if view.slots.is_empty() => "no slot of its cluster is served; give each to a node",
        Some(view) => return Ok(view),
        None => "its answer to CLUSTER SLOTS can't be understood; check what it is that answers there",
    };
    Err(Error::new(ErrorKind::Unavailable, wrong).at(address))
}

fn refused(error: RedisError, address: &Arc<str>) -> Error {
    let wrong = if error.detail().is_some_and(|text| text.contains("cluster support disabled")) {
        (
            ErrorKind::Config,
            "the server is no node of a cluster; give it to `server` in place of `cluster`".to_owned(),
        )
    } else if redis_error::is_denied(&error) {
        let text = redis_error::answer(&error).unwrap_or_default();
        (
            ErrorKind::Denied,
            format!(
                "the node denies this user to ask who serves what: {text}; grant it by ACL SETUSER … +cluster|slots"
            ),
        )
    } else {
        return redis_error::unreachable(error, address);
    };
    Error::new(wrong.0, wrong.1).at(address).because(error)
}
