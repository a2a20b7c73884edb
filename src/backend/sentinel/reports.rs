//! The reports of sentinels, and the decision about which server is the master.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::time::Instant;

use crate::backend::connection::redis_error;
use crate::error::{Error, ErrorKind, Result, shown};

/// The master that a sentinel names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportedMaster {
    pub(super) host: String,
    pub(super) port: u16,
    /// The configuration epoch, which grows with each failover: the larger one is the newer. 0 if the sentinel does not report it.
    pub(super) epoch: u64,
    /// A failover has begun, and this master is about to be replaced: writes there are likely to be lost.
    pub(super) being_replaced: bool,
}

/// The report of one sentinel.
#[derive(Debug)]
pub(super) enum Report {
    Master(ReportedMaster),
    /// It does not know the master's name.
    Unknown,
    /// It is no sentinel.
    NoSentinel,
    /// It rejects the credentials, or the user lacks the right.
    Denied(Error),
    Unreachable(Error),
}

impl ReportedMaster {
    pub(super) fn is_at(&self, other: &ReportedMaster) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    /// Returns whether both name the same master in the same epoch.
    fn agrees_with(&self, other: &ReportedMaster) -> bool {
        self.epoch == other.epoch && self.is_at(other)
    }

    pub(super) fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl Report {
    /// Reads the answers to `SENTINEL GET-MASTER-ADDR-BY-NAME` and to `SENTINEL MASTER`.
    pub(super) fn read(address: Value, details: &Value, sentinel: &Arc<str>) -> Report {
        let address = match address.extract_error() {
            Ok(address) => address,
            Err(error) => return Report::refused(error, sentinel),
        };
        if address == Value::Nil {
            return Report::Unknown;
        }
        let Ok((host, port)) = redis::from_redis_value::<(String, u16)>(address) else {
            return Report::NoSentinel;
        };
        let text = |value: &Value| redis::from_redis_value_ref::<String>(value).unwrap_or_default();
        let detail = |name: &str| {
            details.as_map_iter()?.find(|(key, _)| text(key) == name).map(|(_, value)| text(value))
        };
        let epoch = detail("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
        let failing = detail("flags").is_some_and(|flags| flags.contains("failover_in_progress"));
        // After the promotion the failover continues for a while, and the address is that of the new master already.
        let old = detail("ip").as_ref() == Some(&host) && detail("port") == Some(port.to_string());
        Report::Master(ReportedMaster { host, port, epoch, being_replaced: failing && old })
    }

    /// Returns whether the sentinel has answered with an error that may be about the credentials.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Report::Denied(_) => true,
            Report::Unreachable(error) => redis_error::cause(error).and_then(redis_error::answer).is_some(),
            Report::Master(_) | Report::Unknown | Report::NoSentinel => false,
        }
    }

    /// Returns the report of a sentinel that could not be queried, or that refused.
    pub(super) fn refused(error: RedisError, sentinel: &Arc<str>) -> Report {
        let unknown_command =
            redis_error::answer(&error).is_some_and(|text| text.contains("unknown command"));
        if unknown_command {
            return Report::NoSentinel;
        }
        let error = redis_error::unreachable(error, sentinel);
        match error.kind() {
            ErrorKind::Denied => Report::Denied(error),
            _ => Report::Unreachable(error),
        }
    }
}

/// The reports that one client has received so far. Each field closes an execution in which clients return to an old master: a wrong order
/// of reports, a connection that is newer than a report, and a leader that falls silent. When sentinels are set up again, configuration
/// epochs start over; the order in which reports were first seen does not.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct ReportHistory {
    /// The first report of each master in each epoch, in the order in which they were seen.
    seen: Vec<ReportedMaster>,
    /// The report by which the last connection was made.
    pub(super) current: Option<ReportedMaster>,
    /// The last report of each sentinel, by its index, and when it was asked for.
    last: HashMap<usize, (ReportedMaster, Instant)>,
}

/// How many reports are remembered. Each failover adds one.
const REMEMBERED: usize = 1000;

/// How long the last report of a sentinel that does not answer still counts. It is longer than the other sentinels need to demote a
/// replica that a leader promoted before it died: they read roles every ten seconds, and wait for eight more.
const SILENCE: Duration = Duration::from_secs(30);

const STALE: &str =
    "the sentinels that answer report an older state than others did before; check that most of them run";

impl ReportHistory {
    /// Returns the last reports of sentinels that did not answer now. For a while, only the leader of a failover knows of it:
    ///
    /// 1. The leader reports that the master is about to be replaced, and all clients disconnect.
    /// 2. It promotes a replica, and does not answer for a second.
    /// 3. The others name the old master, which accepts writes.
    ///
    /// Without the leader's last report a lock would be granted there and lost with it, and two owners would hold the lock.
    ///
    /// Two queries may overlap: 1. One waits for a sentinel that hangs, and has the leader's answer from before the failover. 2. The
    /// other gets the leader's report of the failover. 3. The first one ends. Its older answer must not replace the later one.
    fn last_of_silent(&mut self, reports: &[(usize, Report)], asked: Instant) -> Vec<ReportedMaster> {
        for (sentinel, report) in reports {
            let is_older = self.last.get(sentinel).is_some_and(|(_, at)| *at > asked);
            match report {
                _ if is_older => {}
                Report::Master(named) => drop(self.last.insert(*sentinel, (named.clone(), asked))),
                Report::Unreachable(_) => {}
                Report::Unknown | Report::NoSentinel | Report::Denied(_) => drop(self.last.remove(sentinel)),
            }
        }
        let now = Instant::now();
        self.last.retain(|_, (_, at)| now.saturating_duration_since(*at) < SILENCE);
        let is_silent = |sentinel: &usize| {
            !reports
                .iter()
                .any(|(answered, report)| answered == sentinel && matches!(report, Report::Master(_)))
        };
        let silent = self.last.iter().filter(|(sentinel, _)| is_silent(sentinel));
        silent.map(|(_, (named, _))| named.clone()).collect()
    }

    /// Returns whether this report decides without the sentinels that have not answered yet. Once connected, the first report that the
    /// master is about to be replaced decides, and so does the first one that names a new master. The promotion follows the former
    /// within a tenth of a second.
    pub(super) fn is_decided_by(&self, named: &ReportedMaster) -> bool {
        let known = self.last.values().map(|(known, _)| known).chain(&self.current);
        let is_newest = known.map(|known| known.epoch).max().is_some_and(|known| named.epoch > known);
        is_newest || self.is_end_of_current(named)
    }

    fn record(&mut self, named: &[ReportedMaster]) {
        let mut named: Vec<&ReportedMaster> = named.iter().collect();
        named.sort_by_key(|named| named.epoch);
        for named in named {
            if self.first_seen(named).is_none() {
                self.seen.push(named.clone());
            }
        }
        let excess = self.seen.len().saturating_sub(REMEMBERED);
        self.seen.drain(..excess);
    }

    /// Returns when the report was first seen: a greater value is later.
    fn first_seen(&self, named: &ReportedMaster) -> Option<usize> {
        self.seen.iter().rposition(|seen| seen.agrees_with(named))
    }

    /// Returns whether it reports that the master of the last connection is about to be replaced.
    fn is_end_of_current(&self, named: &ReportedMaster) -> bool {
        named.being_replaced && self.current.as_ref().is_some_and(|current| named.is_at(current))
    }

    /// Returns whether `named`, the master that the reports were decided for, is older than the master of the last connection, so that the
    /// client must not follow the reports. `by_majority`: a majority of all sentinels names it, and then it is never stale. `quorate`: a
    /// majority of all sentinels has named a master, whichever. Without this rule:
    ///
    /// 1. All sentinels name A in epoch 2.
    /// 2. They are set up again, and begin to count epochs again, except for one that is cut off. They name B in epoch 1.
    /// 3. Only the one that is cut off answers a client that is connected to B. It names A, with the larger epoch.
    ///
    /// A lower epoch is stale as well: a single sentinel that is set up again may name any server.
    ///
    /// A report that the current master is about to be replaced is never stale, since it moves no client to another server:
    ///
    /// 1. The sentinels are set up again while a client is connected to A. Their epochs are smaller than the one it knows.
    /// 2. One leads a failover. Its report arrives first and [decides](Self::is_decided_by): it is the only one, with the smaller epoch.
    /// 3. If it were stale, the client would stay connected, and what A grants it until the promotion is noticed would be lost.
    fn is_stale(&self, named: &ReportedMaster, by_majority: bool, quorate: bool) -> bool {
        self.current.as_ref().is_some_and(|current| {
            let older = self.first_seen(named) < self.first_seen(current);
            let lower = named.epoch < current.epoch && !quorate;
            !by_majority && (older || lower) && !self.is_end_of_current(named)
        })
    }

    /// Returns whether the decision names another master than that of the last connection, or says that the latter is about to be replaced.
    pub(super) fn is_change(&self, named: &ReportedMaster) -> bool {
        self.current
            .as_ref()
            .is_some_and(|current| !named.is_at(current) || named.being_replaced && !current.being_replaced)
    }
}

/// Decides from the reports of the sentinels which server is the master.
///
/// The report with the largest epoch decides, even if a single sentinel gives it: the leader of a failover is the first to know the new
/// master. Its last report counts for a while after it has stopped answering. There is one exception. If a majority of the sentinels names
/// another master, in a report that was first seen later, that one is the master, even if its epoch is smaller: the sentinels were set up
/// again. The decision is an error if it is [stale](ReportHistory::is_stale).
///
/// `reports` has one report for each sentinel that answered, with its index. They were asked for at `asked`. `sentinels` is the number of all
/// sentinels. `first`: there was no connection yet, so what looks like a mistake in an option is reported as one. Later it is an outage,
/// since the sentinels may be about to be set up again.
pub(super) fn decide_master(
    reports: Vec<(usize, Report)>,
    asked: Instant,
    sentinels: usize,
    name: &str,
    first: bool,
    history: &mut ReportHistory,
) -> Result<ReportedMaster> {
    let silent = history.last_of_silent(&reports, asked);
    let mistake = if first { ErrorKind::Config } else { ErrorKind::Unavailable };
    let (mut named, mut unknown, mut others, mut denied, mut unreachable) = (Vec::new(), 0, 0, None, None);
    for (_, report) in reports {
        match report {
            Report::Master(one) => named.push(one),
            Report::Unknown => unknown += 1,
            Report::NoSentinel => others += 1,
            Report::Denied(error) => denied = denied.or(Some(error)),
            Report::Unreachable(error) => unreachable = unreachable.or(Some(error)),
        }
    }
    history.record(&named);
    let is_majority = |count: usize| count > sentinels / 2;
    let has_most = |one: &ReportedMaster| is_majority(named.iter().filter(|other| other.is_at(one)).count());
    // Never connect to a master that no sentinel names now.
    let silent = if named.is_empty() { Vec::new() } else { silent };
    let known = || named.iter().chain(&silent);
    // A sentinel that takes part in a failover knows more than one that does not yet. Otherwise the number of sentinels decides, and
    // never the order of the answers: if one sentinel knows the master by its name and another by its address, the client would
    // leave the master for itself again and again.
    let count = |one: &ReportedMaster| known().filter(|other| other.agrees_with(one)).count();
    let order = |one: &&ReportedMaster| {
        (Reverse(one.epoch), !one.being_replaced, Reverse(count(one)), one.host.clone(), one.port)
    };
    if let Some(newest) = known().min_by_key(order) {
        let preferred = named.iter().filter(|one| has_most(one));
        let preferred = preferred.max_by_key(|one| (one.epoch, one.being_replaced)).filter(|preferred| {
            !preferred.is_at(newest) && history.first_seen(preferred) > history.first_seen(newest)
        });
        let mut decided = preferred.unwrap_or(newest).clone();
        let replaced = || known().filter(|one| one.being_replaced);
        // If all sentinels but one were set up again, and that one's epoch is larger, the failover is reported with the smaller epoch.
        decided.being_replaced |= replaced().any(|one| one.is_at(&decided));
        if !history.is_stale(&decided, has_most(&decided), is_majority(named.len())) {
            return Ok(decided);
        }
        // The newest report may come from a sentinel that was left out and is silent, because the leader of a failover answered first.
        let end = replaced().find(|one| history.is_end_of_current(one)).cloned();
        return end.ok_or_else(|| Error::new(ErrorKind::Unavailable, STALE).at(&decided.address().into()));
    }
    if let Some(error) = denied {
        return Err(error);
    }
    let name = shown(name);
    if unknown + others > sentinels / 2 {
        let message = match unknown {
            0 => "the servers that answer are no sentinels; give `Master::sentinel` the addresses of the sentinels, whose default port \
                  is 26379"
                .to_owned(),
            _ => format!(
                "the sentinels know no master `{name}`; give the name by which they monitor it, as `SENTINEL MASTERS` reports it"
            ),
        };
        return Err(Error::new(mistake, message));
    }
    let message = format!("no sentinel reports where the master `{name}` is");
    Err(match unreachable {
        Some(error) => Error::new(ErrorKind::Unavailable, format!("{message}: {error}")).because(error),
        None => {
            Error::new(ErrorKind::Unavailable, format!("{message}; check that they run, and their addresses"))
        }
    })
}

#[cfg(test)]
mod tests;
