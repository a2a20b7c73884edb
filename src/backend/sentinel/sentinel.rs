//! The sentinels of a master: where it is now, and when that changes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::Stream;
use redis::aio::PubSub;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisConnectionInfo, RedisResult, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::backend::connection::{Backoff, Endpoint, dial, for_messages, redis_error, tuned};
use crate::backend::sentinel::reports::{MasterReport, Named, Report, ReportHistory, judged};
use crate::base::{lock, telemetry};
use crate::config::{Server, Watched};
use crate::error::{Error, ErrorKind, Result, shown};

/// How long the other sentinels are waited for, once one has named a master: of two that disagree the newer account counts.
const GRACE: Duration = Duration::from_millis(250);

/// A sentinel is not waited for longer than that, be the node timeout ever so long: the others may know.
const LONGEST: Duration = Duration::from_secs(2);

/// How often they are asked though none of them has told of a change: their word may have been lost.
const AGAIN: Duration = Duration::from_secs(5);

/// After so long without a word a sentinel is asked for a sign of life.
const QUIET: Duration = Duration::from_secs(5);

/// What sentinels publish on the way to a new master: one is about to be promoted, was promoted, is known to be the master.
const NEWS: [&str; 3] = ["+failover-state-send-slaveof-noone", "+promoted-slave", "+switch-master"];

const STALE: &str = "the sentinels that answer know less than others did before, which named another master later; check that most \
     of them run";

/// The sentinels of one master.
pub(crate) struct Sentinels {
    sentinels: Box<[Sentinel]>,
    name: Arc<str>,
    /// How to get into the master, but for its address.
    entry: Box<ConnectionInfo>,
    node_timeout: Duration,
    limit: Duration,
    heard: Mutex<ReportHistory>,
}

/// One of them.
#[derive(Clone)]
struct Sentinel {
    address: Arc<str>,
    /// With its credentials and, should it refuse them, without: many sentinels have no password where their master has one.
    doors: Arc<[redis::Client]>,
}

impl Sentinels {
    pub(crate) fn new(watched: &Watched, node_timeout: Duration, limit: Duration) -> Result<Sentinels> {
        let sentinel = |server: &Server| Sentinel::new(server, node_timeout);
        let sentinels = watched.sentinels.iter().map(sentinel).collect::<Result<Vec<_>>>()?;
        let first = watched.sentinels.first().map(Server::client);
        let first = first.unwrap_or_else(|| Err(Error::new(ErrorKind::Config, "no sentinel was given")))?;
        let entry = Box::new(first.get_connection_info().clone());
        let name = watched.name.clone();
        Ok(Sentinels {
            sentinels: sentinels.into(),
            name,
            entry,
            node_timeout,
            limit: limit.min(LONGEST),
            heard: Mutex::default(),
        })
    }

    /// Where the master is.
    pub(crate) async fn site(&self, first: bool) -> Result<Endpoint> {
        let said = self.said().await;
        let named = {
            let mut heard = lock(&self.heard);
            let opinion = judged(said, self.sentinels.len(), &self.name, first, &mut heard)?;
            if heard.is_stale(&opinion) {
                let address = opinion.named.address().into();
                return Err(Error::new(ErrorKind::Unavailable, STALE).at(&address));
            }
            heard.current = Some(opinion.named.clone());
            opinion.named
        };
        if named.leaves {
            let told = format!(
                "a failover of the master `{}` is under way; try again when it is through",
                self.shown()
            );
            return Err(Error::new(ErrorKind::Unavailable, told).at(&named.address().into()));
        }
        let address = format!("{}, master `{}`", named.address(), self.shown()).into();
        let info = self.entry.as_ref().clone().set_addr(at(self.entry.addr(), &named));
        let client = redis::Client::open(info).and_then(|client| tuned(&client, self.node_timeout));
        let client = client.map_err(|error| redis_error::unreachable(error, &address))?;
        Ok(Endpoint { client, address, gate: None })
    }

    fn shown(&self) -> String {
        shown(&self.name)
    }

    /// Asks all of them at once.
    async fn said(&self) -> Vec<(usize, Report)> {
        let mut asking = JoinSet::new();
        for (place, sentinel) in self.sentinels.iter().enumerate() {
            let asked = sentinel.clone().asked(self.name.clone(), self.limit);
            asking.spawn(async move { (place, asked.await) });
        }
        gathered(asking, |named| lock(&self.heard).is_decided_by(named)).await
    }

    /// Tells whenever another master was named than to whoever connected last.
    pub(crate) async fn watch(&self, moved: impl Fn()) {
        let hint = Arc::new(Notify::new());
        let mut listeners = JoinSet::new();
        for sentinel in &self.sentinels {
            listeners.spawn(sentinel.clone().listened_to(self.name.clone(), hint.clone(), self.limit));
        }
        loop {
            // It is time to look in either case.
            let _ = timeout(AGAIN, hint.notified()).await;
            let said = self.said().await;
            let news = {
                let mut heard = lock(&self.heard);
                let opinion = judged(said, self.sentinels.len(), &self.name, false, &mut heard);
                opinion.ok().filter(|opinion| heard.is_news(opinion))
            };
            if let Some(MasterReport { named, .. }) = news {
                telemetry::master_moved(&self.name, &named.address(), named.leaves);
                moved();
            }
        }
    }
}

/// The answers, until one decides or the others have had their time.
async fn gathered(
    mut asking: JoinSet<(usize, Report)>,
    decides: impl Fn(&Named) -> bool,
) -> Vec<(usize, Report)> {
    let (mut said, mut until) = (Vec::new(), None);
    loop {
        let next = match until {
            Some(until) => timeout_at(until, asking.join_next()).await.unwrap_or_default(),
            None => asking.join_next().await,
        };
        let Some(next) = next else { return said };
        said.extend(next);
        if let Some((_, Report::Named(named))) = said.last() {
            if decides(named) {
                return said;
            }
            until = until.or(Some(Instant::now() + GRACE));
        }
    }
}

/// The same kind of address, elsewhere.
fn at(address: &ConnectionAddr, named: &Named) -> ConnectionAddr {
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
        // A sentinel has no databases: the one in its URL is the master's.
        let with = info.redis_settings().clone().set_db(0);
        let has_credentials = with.username().or(with.password()).is_some();
        let without = has_credentials.then(RedisConnectionInfo::default);
        let door = |redis| {
            let client = redis::Client::open(info.clone().set_redis_settings(redis));
            client.and_then(|client| for_messages(&tuned(&client, node_timeout)?))
        };
        let doors = [Some(with), without].into_iter().flatten().map(door).collect::<RedisResult<Vec<_>>>();
        let doors = doors.map_err(|error| redis_error::unreachable(error, &address))?.into();
        Ok(Sentinel { address, doors })
    }

    async fn asked(self, name: Arc<str>, limit: Duration) -> Report {
        let mut said = None;
        let asking = async {
            for door in &*self.doors {
                let answer = match ask(door, &name).await {
                    Ok((address, details)) => Report::read(address, &details, &self.address),
                    Err(error) => Report::refused(error, &self.address),
                };
                let denied = matches!(answer, Report::Denied(_));
                // What is wrong with the credentials is told, rather than that none are not enough.
                if said.is_none() || !denied {
                    said = Some(answer);
                }
                if !denied {
                    break;
                }
            }
        };
        let in_time = timeout(limit, asking).await.is_ok();
        let silent = || {
            let why = format!("the sentinel does not answer within {limit:?}");
            Report::Away(redis_error::not_sent(&why, &self.address).error)
        };
        said.filter(|_| in_time).unwrap_or_else(silent)
    }

    /// Hints at each word that it speaks of this master. Never ends.
    async fn listened_to(self, name: Arc<str>, hint: Arc<Notify>, limit: Duration) {
        let mut backoff = Backoff::default();
        loop {
            sleep(backoff.pause()).await;
            let since = Instant::now();
            for door in &*self.doors {
                if let Ok(Ok(connection)) = timeout(limit, subscribed(door)).await {
                    // Whatever it said before was not heard.
                    hint.notify_one();
                    listen(connection, &name, &hint, limit).await;
                    break;
                }
            }
            backoff.lost(since);
        }
    }
}

async fn ask(door: &redis::Client, name: &str) -> RedisResult<(Value, Value)> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = dial::connect(door, &config).await?;
    let mut pipeline = redis::Pipeline::with_capacity(2);
    pipeline.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    pipeline.cmd("SENTINEL").arg("MASTER").arg(name);
    let mut answers = connection.send_packed_commands(&pipeline, 0, 2).await?.into_iter();
    let address = answers.next().unwrap_or(Value::Nil);
    Ok((address, answers.next().unwrap_or(Value::Nil)))
}

async fn subscribed(door: &redis::Client) -> RedisResult<PubSub> {
    let mut connection = dial::listen(door).await?;
    for channel in NEWS {
        connection.subscribe(channel).await?;
    }
    Ok(connection)
}

/// Until the connection ends.
async fn listen(connection: PubSub, name: &str, hint: &Notify, limit: Duration) {
    let (mut sink, mut stream) = connection.split();
    loop {
        let message = poll_fn(|context| Pin::new(&mut stream).poll_next(context));
        match timeout(QUIET, message).await {
            Ok(Some(message)) => {
                let told = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
                if told.split(' ').any(|word| word == name) {
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
mod tests {
    use std::future::pending;

    use super::*;

    fn account(epoch: u64, leaves: bool) -> Report {
        Report::Named(Named { host: "host".into(), port: 1, epoch, leaves })
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_that_decides_does_not_wait_for_a_sentinel_that_hangs() {
        let mut asking = JoinSet::new();
        asking.spawn(async { (0, account(2, false)) });
        asking.spawn(pending());
        asking.spawn(async {
            sleep(GRACE / 10).await;
            (2, account(2, true))
        });
        let since = Instant::now();
        let said = gathered(asking, |named| named.leaves).await;
        assert_eq!(said.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0, 2]);
        assert!(since.elapsed() < GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_is_waited_for_as_long_as_the_grace() {
        let mut asking = JoinSet::new();
        asking.spawn(async { (0, account(2, false)) });
        asking.spawn(pending());
        let since = Instant::now();
        assert_eq!(gathered(asking, |named| named.leaves).await.len(), 1);
        assert!((GRACE..GRACE * 2).contains(&since.elapsed()));
    }
}
