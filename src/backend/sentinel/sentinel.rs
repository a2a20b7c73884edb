//! Queries the sentinels of a master for its address, and watches for changes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::Stream;
use redis::aio::PubSub;
use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo, RedisResult, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::backend::connection::{
    Backoff, Commands, Endpoint, Login, dial, for_messages, redis_error, tuned,
};
use crate::backend::sentinel::reports::{MasterReport, Report, ReportHistory, ReportedMaster, decide_master};
use crate::base::{lock, telemetry};
use crate::config::{AddressMap, SentinelMaster, Server};
use crate::error::{Error, ErrorKind, Result, shown};

/// How long the other sentinels are waited for once one has named a master: of two reports that differ the newer one counts.
const GRACE: Duration = Duration::from_millis(250);

/// The longest wait for one sentinel, for long node timeouts: the others may know.
const LONGEST: Duration = Duration::from_secs(2);

/// How often they are queried although none of them has published a change: the message may have been lost.
const POLL: Duration = Duration::from_secs(5);

/// After this long without a message a sentinel is pinged.
const QUIET: Duration = Duration::from_secs(5);

/// What sentinels publish during a failover: a replica is about to be promoted, was promoted, is known to be the master.
const FAILOVER_CHANNELS: [&str; 3] =
    ["+failover-state-send-slaveof-noone", "+promoted-slave", "+switch-master"];

const STALE: &str =
    "the sentinels that answer report an older state than others did before; check that most of them run";

/// The sentinels of one master.
pub(crate) struct Sentinels {
    sentinels: Box<[Sentinel]>,
    name: Arc<str>,
    /// How to connect to the master, except for its address.
    template: Box<ConnectionInfo>,
    /// The credentials of the master, if they are not those of the first URL.
    login: Option<Login>,
    /// Reports are compared as they are. Only a connection is made to where this leads.
    address_map: AddressMap,
    node_timeout: Duration,
    limit: Duration,
    history: Mutex<ReportHistory>,
}

#[derive(Clone)]
struct Sentinel {
    address: Arc<str>,
    /// With the credentials, and without, if it rejects them: many sentinels have no password although their master has one.
    clients: Arc<[redis::Client]>,
}

impl Sentinels {
    pub(crate) fn new(
        master: &SentinelMaster,
        login: Option<Login>,
        address_map: AddressMap,
        node_timeout: Duration,
        limit: Duration,
    ) -> Result<Sentinels> {
        let sentinel = |server: &Server| Sentinel::new(server, node_timeout);
        let sentinels = master.sentinels.iter().map(sentinel).collect::<Result<Vec<_>>>()?;
        let first = master.sentinels.first().map(Server::client);
        let first = first.unwrap_or_else(|| Err(Error::new(ErrorKind::Config, "no sentinel was given")))?;
        let template = Box::new(first.get_connection_info().clone());
        let name = master.name.clone();
        Ok(Sentinels {
            sentinels: sentinels.into(),
            name,
            template,
            login,
            address_map,
            node_timeout,
            limit: limit.min(LONGEST),
            history: Mutex::default(),
        })
    }

    /// Where the master is.
    pub(crate) async fn endpoint(&self, first: bool) -> Result<Endpoint> {
        let asked = Instant::now();
        let reports = self.reports().await;
        let named = {
            let mut history = lock(&self.history);
            let decision =
                decide_master(reports, asked, self.sentinels.len(), &self.name, first, &mut history)?;
            if history.is_stale(&decision) {
                let address = decision.named.address().into();
                return Err(Error::new(ErrorKind::Unavailable, STALE).at(&address));
            }
            history.current = Some(decision.named.clone());
            decision.named
        };
        if named.being_replaced {
            let message = format!(
                "a failover of the master `{}` is in progress; try again when it is complete",
                self.shown()
            );
            return Err(Error::new(ErrorKind::Unavailable, message).at(&named.address().into()));
        }
        let named = self.mapped(named);
        let address = format!("{}, master `{}`", named.address(), self.shown()).into();
        let info = self.template.as_ref().clone().set_addr(at(self.template.addr(), &named));
        let client = redis::Client::open(info).and_then(|client| tuned(&client, self.node_timeout));
        let client = client.map_err(|error| redis_error::unreachable(error, &address))?;
        Ok(Endpoint { client, address, gate: None, login: self.login.clone() })
    }

    fn mapped(&self, named: ReportedMaster) -> ReportedMaster {
        match self.address_map.get(&named.host, named.port) {
            Some((host, port)) => ReportedMaster { host, port, ..named },
            None => named,
        }
    }

    fn shown(&self) -> String {
        shown(&self.name)
    }

    /// Queries all of them at once.
    async fn reports(&self) -> Vec<(usize, Report)> {
        let mut queries = JoinSet::new();
        for (index, sentinel) in self.sentinels.iter().enumerate() {
            let report = sentinel.clone().report(self.name.clone(), self.limit);
            queries.spawn(async move { (index, report.await) });
        }
        gather(queries, |named| lock(&self.history).is_decided_by(named)).await
    }

    /// Calls `moved` whenever another master is named than that of the last connection.
    pub(crate) async fn watch(&self, moved: impl Fn()) {
        let hint = Arc::new(Notify::new());
        let mut listeners = JoinSet::new();
        for sentinel in &self.sentinels {
            listeners.spawn(sentinel.clone().listen(self.name.clone(), hint.clone(), self.limit));
        }
        loop {
            // Queries in either case.
            let _ = timeout(POLL, hint.notified()).await;
            let asked = Instant::now();
            let reports = self.reports().await;
            let change = {
                let mut history = lock(&self.history);
                let decision =
                    decide_master(reports, asked, self.sentinels.len(), &self.name, false, &mut history);
                decision.ok().filter(|decision| history.is_change(decision))
            };
            if let Some(MasterReport { named, .. }) = change {
                telemetry::master_moved(&self.name, &named.address(), named.being_replaced);
                moved();
            }
        }
    }
}

/// Collects reports until one of them decides, or [`GRACE`] after the first one that names a master.
async fn gather(
    mut queries: JoinSet<(usize, Report)>,
    decides: impl Fn(&ReportedMaster) -> bool,
) -> Vec<(usize, Report)> {
    let (mut reports, mut until) = (Vec::new(), None);
    loop {
        let next = match until {
            Some(until) => timeout_at(until, queries.join_next()).await.unwrap_or_default(),
            None => queries.join_next().await,
        };
        let Some(next) = next else { return reports };
        reports.extend(next);
        if let Some((_, Report::Master(named))) = reports.last() {
            if decides(named) {
                return reports;
            }
            until = until.or(Some(Instant::now() + GRACE));
        }
    }
}

/// The address of a master, of the same kind as that of the sentinels.
fn at(address: &ConnectionAddr, named: &ReportedMaster) -> ConnectionAddr {
    let (host, port) = (named.host.clone(), named.port);
    match address {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}

impl Sentinel {
    fn new(server: &Server, node_timeout: Duration) -> Result<Sentinel> {
        let (client, address) = (server.client()?, server.address());
        let info = client.get_connection_info();
        // A sentinel has no databases: the number in its URL is for the master.
        let with = info.redis_settings().clone().set_db(0);
        let has_credentials = with.username().or(with.password()).is_some();
        let without = has_credentials.then(RedisConnectionInfo::default);
        let client = |redis| {
            let client = redis::Client::open(info.clone().set_redis_settings(redis));
            client.and_then(|client| for_messages(&tuned(&client, node_timeout)?))
        };
        let clients =
            [Some(with), without].into_iter().flatten().map(client).collect::<RedisResult<Vec<_>>>();
        let clients = clients.map_err(|error| redis_error::unreachable(error, &address))?.into();
        Ok(Sentinel { address, clients })
    }

    async fn report(self, name: Arc<str>, limit: Duration) -> Report {
        let mut report = None;
        let query = async {
            for client in &*self.clients {
                let answer = match ask(client, &name).await {
                    Ok((address, details)) => Report::read(address, &details, &self.address),
                    Err(error) => Report::refused(error, &self.address),
                };
                let denied = matches!(answer, Report::Denied(_));
                // If both are denied, the error with the credentials is reported, not the one without.
                if report.is_none() || !denied {
                    report = Some(answer);
                }
                if !denied {
                    break;
                }
            }
        };
        let in_time = timeout(limit, query).await.is_ok();
        let timed_out = || {
            let why = format!("the sentinel does not answer within {limit:?}");
            Report::Unreachable(redis_error::not_sent(&why, &self.address).error)
        };
        report.filter(|_| in_time).unwrap_or_else(timed_out)
    }

    /// Notifies `hint` of each message about this master. Never ends.
    async fn listen(self, name: Arc<str>, hint: Arc<Notify>, limit: Duration) {
        let mut backoff = Backoff::default();
        loop {
            sleep(backoff.pause()).await;
            let since = Instant::now();
            for client in &*self.clients {
                if let Ok(Ok(connection)) = timeout(limit, subscribe(client)).await {
                    // Messages before the subscription were missed.
                    hint.notify_one();
                    forward(connection, &name, &hint, limit).await;
                    break;
                }
            }
            backoff.lost(since);
        }
    }
}

async fn ask(client: &redis::Client, name: &str) -> RedisResult<(Value, Value)> {
    let connection = Commands::connect(client, Box::new(drop)).await?;
    let mut pipeline = redis::Pipeline::with_capacity(2);
    pipeline.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    pipeline.cmd("SENTINEL").arg("MASTER").arg(name);
    let mut answers = connection.send_all(&pipeline, None).await?.into_iter();
    let address = answers.next().unwrap_or(Value::Nil);
    Ok((address, answers.next().unwrap_or(Value::Nil)))
}

async fn subscribe(client: &redis::Client) -> RedisResult<PubSub> {
    let mut connection = dial::listen(client).await?;
    for channel in FAILOVER_CHANNELS {
        connection.subscribe(channel).await?;
    }
    Ok(connection)
}

/// Forwards messages as hints until the connection ends.
async fn forward(connection: PubSub, name: &str, hint: &Notify, limit: Duration) {
    let (mut sink, mut stream) = connection.split();
    loop {
        let message = poll_fn(|context| Pin::new(&mut stream).poll_next(context));
        match timeout(QUIET, message).await {
            Ok(Some(message)) => {
                let text = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
                if text.split(' ').any(|part| part == name) {
                    hint.notify_one();
                }
            }
            Ok(None) => return,
            Err(_) if matches!(timeout(limit, sink.ping::<Value>()).await, Ok(Ok(_))) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests;
