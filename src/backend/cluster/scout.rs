//! Asks nodes who serves what.

use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisError, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::nodes::Nodes;
use super::slots::Place;
use super::view::View;
use crate::backend::connection::Line;
use crate::backend::keeper::too_long;
use crate::backend::source::Site;
use crate::backend::verdict;
use crate::error::{Error, ErrorKind, Result};

/// The next one is asked after so long without an answer; the first one may be frozen.
const STAGGER: Duration = Duration::from_millis(100);

/// A node that may be asked.
struct Candidate {
    place: Place,
    site: Site,
    /// Its command connection, where there is one.
    line: Option<Arc<Line>>,
}

impl Nodes {
    /// The view of the first node that tells.
    pub(super) async fn scout(&self) -> Result<View> {
        let limit = self.patience();
        let mut candidates = self.candidates().into_iter().peekable();
        let mut asking = JoinSet::new();
        let mut failed: Option<Error> = None;
        loop {
            if let Some(candidate) = candidates.next() {
                asking.spawn(look(candidate, limit));
            }
            tokio::select! {
                told = asking.join_next() => match told {
                    Some(Ok(Ok(view))) => return Ok(view),
                    Some(Ok(Err(error))) => failed = Some(graver(failed, error)),
                    Some(Err(_)) => {}
                    None if candidates.peek().is_none() => break,
                    None => {}
                },
                () = sleep(STAGGER), if candidates.peek().is_some() => {}
            }
        }
        Err(failed.unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("no node of {} can be asked", self.seeds))
        }))
    }

    /// Those whose connections stand, those that are known, the seeds; each once, and beginning anywhere.
    fn candidates(&self) -> Vec<Candidate> {
        let (nodes, replicas) = self.all();
        let (up, down): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.single.line().is_up());
        let lines = mixed(up).into_iter().map(|node| (node.place, Some(node.single.line().clone())));
        let others = mixed(down.into_iter().map(|node| node.place).chain(replicas).collect());
        let mut candidates: Vec<Candidate> = Vec::new();
        for (place, line) in lines.chain(others.into_iter().map(|place| (place, None))) {
            if let Ok(site) = self.site(&place) {
                candidates.push(Candidate { place, site, line });
            }
        }
        for place in
            mixed(self.seeds.all().iter().filter_map(|seed| seed.info()).filter_map(Place::seed).collect())
        {
            if !candidates.iter().any(|candidate| candidate.place == place)
                && let Ok(site) = self.site(&place)
            {
                candidates.push(Candidate { place, site, line: None });
            }
        }
        candidates
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
async fn look(candidate: Candidate, limit: Duration) -> Result<View> {
    let Candidate { place, site, line } = candidate;
    match timeout(limit, asked(&site, line)).await {
        Ok(answer) => understood(answer?, &place, &site.address),
        Err(_) => Err(verdict::not_sent(&too_long(limit), &site.address).error),
    }
}

/// Over its command connection or, where it has none, over one for the moment.
async fn asked(site: &Site, line: Option<Arc<Line>>) -> Result<Value> {
    let question = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
    let unreachable = |error| verdict::unreachable(error, &site.address);
    if let Some(line) = line {
        let mut link = line.link(Instant::now()).await.map_err(|failure| failure.error)?;
        return link.send_whenever(&question).await.map_err(unreachable);
    }
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let connection = site.client.get_multiplexed_async_connection_with_config(&config).await;
    connection.map_err(unreachable)?.send_packed_command(&question).await.map_err(unreachable)
}

fn understood(answer: Value, place: &Place, address: &Arc<str>) -> Result<View> {
    let answer = answer.extract_error().map_err(|error| refused(error, address))?;
    let wrong = match View::read(&answer, place) {
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
    } else if verdict::is_denied(&error) {
        let text = verdict::answer(&error).unwrap_or_default();
        (
            ErrorKind::Denied,
            format!(
                "the node denies this user to ask who serves what: {text}; grant it by ACL SETUSER … +cluster|slots"
            ),
        )
    } else {
        return verdict::unreachable(error, address);
    };
    Error::new(wrong.0, wrong.1).at(address).because(error)
}
