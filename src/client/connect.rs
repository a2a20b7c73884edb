//! Connects to the masters. A majority has to be reachable.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;

use crate::backend::cluster::Cluster;
use crate::backend::memory::InMemory;
use crate::backend::server::{OneVote, RedisServer, Role};
use crate::backend::{Backend, Login};
use crate::base::{Events, boxed, gated, telemetry};
use crate::config::{Config, MasterKind};
use crate::error::{Error, Result};

/// Connects to all masters. Fails without a majority. A wrong password or option is an error even if only one of many masters has
/// it, so that the mistake is noticed early.
pub(crate) async fn connect_all(
    config: &Config,
    events: &[Arc<dyn Events>],
) -> Result<Vec<Arc<dyn Backend>>> {
    let masters = config.masters.iter().zip(roles(config)).zip(events);
    let joining = masters.map(|((master, role), events)| join(master, role, config, Arc::downgrade(events)));
    let mut joining: Vec<_> = joining.map(boxed).map(Some).collect();
    let mut joined: Vec<_> = joining.iter().map(|_| None).collect();
    // Polled together here, not spawned, so that a dropped future leaves nothing to clean up.
    poll_fn(|cx| {
        for (joining, joined) in joining.iter_mut().zip(&mut joined) {
            if let Some(Poll::Ready(master)) = joining.as_mut().map(|joining| joining.as_mut().poll(cx)) {
                (*joining, *joined) = (None, Some(master?));
            }
        }
        if joining.iter().all(Option::is_none) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    let (masters, away): (Vec<_>, Vec<_>) = joined.into_iter().flatten().unzip();
    let mut away: Vec<Error> = away.into_iter().flatten().collect();
    let there = masters.len() - away.len();
    if there < masters.len() / 2 + 1
        && let Some(error) = away.pop()
    {
        let (masters, majority) = (masters.len(), masters.len() / 2 + 1);
        let counted = format!(
            "only {there} of {masters} masters can be connected to, but {majority} are needed; the last failure"
        );
        return Err(if masters == 1 { error } else { error.prefixed(&counted) });
    }
    away.iter().for_each(telemetry::absent);
    warn_of_even(&masters);
    compare_clocks(config, &masters);
    Ok(masters)
}

/// Begins to connect to all masters. Returns at once; fails only if no master can be tried.
pub(super) fn connect_all_lazily(
    config: &Config,
    events: &[Arc<dyn Events>],
) -> Result<Vec<Arc<dyn Backend>>> {
    let masters = config.masters.iter().zip(roles(config)).zip(events);
    let masters = masters.map(|((master, role), events)| begin(master, role, config, Arc::downgrade(events)));
    let masters = masters.collect::<Result<Vec<_>>>()?;
    warn_of_even(&masters);
    if masters.iter().filter(|master| !master.is_portable()).count() > 1 {
        let (masters, config) = (masters.clone(), config.clone());
        tokio::spawn(gated(Box::pin(async move {
            // Each attempt ends at the latest when the session closes its masters.
            for master in &masters {
                master.clone().first_attempt().await;
            }
            compare_clocks(&config, &masters);
        })));
    }
    Ok(masters)
}

/// Returns how each of the masters is used.
fn roles(config: &Config) -> impl Iterator<Item = Role> {
    let login = config.provider.clone().map(Login::new);
    let alone = config.masters.len() == 1;
    OneVote::each(config.masters.len()).map(move |vote| Role {
        alone,
        node_timeout: config.node_timeout,
        needs_age: config.probation().is_some(),
        uses_backup_thread: config.uses_backup_thread(),
        replicas: config.replicas,
        one_vote: (!alone).then_some(vote),
        login: login.clone(),
        address_map: config.address_map.clone(),
    })
}

fn warn_of_even(masters: &[Arc<dyn Backend>]) {
    if masters.len().is_multiple_of(2) {
        telemetry::even_masters(masters.len());
    }
}

/// Logs the first pair of masters whose clocks differ by too much. After a counter was lost, the order of fencing tokens relies on
/// clocks.
fn compare_clocks(config: &Config, masters: &[Arc<dyn Backend>]) {
    let clocks = masters.iter().zip(&config.masters);
    let clocks: Vec<_> = clocks.filter_map(|(backend, master)| Some((backend.clock()?, master))).collect();
    let allowed = config.lease.duration() / 4;
    let pairs =
        clocks.iter().enumerate().flat_map(|(at, one)| clocks[..at].iter().map(move |other| (other, one)));
    let mut apart = pairs.map(|(one, other)| (one.1, other.1, one.0.apart(&other.0)));
    if let Some((one, other, apart)) = apart.find(|(_, _, apart)| *apart > allowed) {
        telemetry::clocks_apart(&one.to_string(), &other.to_string(), apart);
    }
}

/// Connects to one master. If the master can't be reached now, also returns the error.
async fn join(
    master: &MasterKind,
    role: Role,
    config: &Config,
    events: Weak<dyn Events>,
) -> Result<(Arc<dyn Backend>, Option<Error>)> {
    let single = match master {
        MasterKind::Server(server) => RedisServer::at(server, role, events)?,
        MasterKind::Sentinel(sentinels) => RedisServer::by_sentinels(sentinels, role, events)?,
        MasterKind::Cluster(seeds) => {
            let cluster = Cluster::new(seeds, role, config.sharded_channels, events)?;
            let away = cluster.connect().await?;
            return Ok((cluster, away));
        }
        MasterKind::Memory(memory) => return Ok((InMemory::join(memory, config.node_timeout, events), None)),
    };
    let (single, away) = single.connect().await?;
    Ok((single, away))
}

/// Begins to connect to one master.
fn begin(
    master: &MasterKind,
    role: Role,
    config: &Config,
    events: Weak<dyn Events>,
) -> Result<Arc<dyn Backend>> {
    Ok(match master {
        MasterKind::Server(server) => RedisServer::at(server, role, events)?.start(true),
        MasterKind::Sentinel(sentinels) => RedisServer::by_sentinels(sentinels, role, events)?.start(true),
        MasterKind::Cluster(seeds) => {
            let cluster = Cluster::new(seeds, role, config.sharded_channels, events)?;
            cluster.connect_lazily();
            cluster
        }
        MasterKind::Memory(memory) => InMemory::join(memory, config.node_timeout, events),
    })
}

#[cfg(test)]
mod tests;
