//! Queries the sentinels of a master for its address, and watches for changes.

use std::iter;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{RedisConnectionInfo, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::backend::connection::dial::too_long;
use crate::backend::connection::{
    Backoff, ChannelKind, ChannelRequest, Connection, Endpoint, Listener, Login, Requester, connect_limit,
    listen, redis_error, tuned,
};
use crate::backend::resp::text;
use crate::backend::sentinel::reports::{Report, ReportHistory, ReportedMaster, decide_master};
use crate::backend::tasks::Tasks;
use crate::base::{lock, telemetry};
use crate::config::{AddressMap, Destination, SentinelMaster, Server};
use crate::error::{Error, ErrorKind, Result, shown};

/// How long to wait for the other sentinels once one has named a master: of two reports that differ, the newer one counts.
const GRACE: Duration = Duration::from_millis(250);

/// The longest wait for one sentinel, if the node timeout is longer: the others may know.
const LONGEST: Duration = Duration::from_secs(2);

/// How often the sentinels are queried although none of them has published a change: the message may have been lost.
const POLL: Duration = Duration::from_secs(5);

/// After this long without a message a sentinel is pinged.
const QUIET: Duration = Duration::from_secs(5);

/// What sentinels publish during a failover: a replica is about to be promoted, was promoted, is known to be the master.
const FAILOVER_CHANNELS: [&str; 3] =
    ["+failover-state-send-slaveof-noone", "+promoted-slave", "+switch-master"];

/// The sentinels of one master.
pub(crate) struct Sentinels {
    sentinels: Box<[Arc<Sentinel>]>,
    name: Arc<str>,
    /// How to connect to the master, except for its address.
    template: Box<Destination>,
    /// The credentials of the master, if they are not those of the first URL.
    login: Option<Login>,
    /// Where to connect to, by reported address. Reports are compared unmapped.
    address_map: AddressMap,
    limit: Duration,
    history: Mutex<ReportHistory>,
}

struct Sentinel {
    address: Arc<str>,
    /// With the credentials, if there are any.
    to: Destination,
    /// Without them, in case the sentinel rejects them: many sentinels have no password although their master has one.
    without_login: Option<Destination>,
}

impl Sentinels {
    pub(crate) fn new(
        master: &SentinelMaster,
        login: Option<Login>,
        address_map: AddressMap,
        node_timeout: Duration,
    ) -> Result<Sentinels> {
        let sentinel = |server: &Server| Ok(Arc::new(Sentinel::new(server, node_timeout)?));
        let sentinels = master.sentinels.iter().map(sentinel).collect::<Result<Vec<_>>>()?;
        let first = master.sentinels.first().map(Server::destination);
        let first = first.unwrap_or_else(|| Err(Error::new(ErrorKind::Config, "no sentinel was given")))?;
        let template = Box::new(tuned(&first, node_timeout));
        let name = master.name.clone();
        Ok(Sentinels {
            sentinels: sentinels.into(),
            name,
            template,
            login,
            address_map,
            limit: connect_limit(Some(&first), node_timeout.min(LONGEST)),
            history: Mutex::default(),
        })
    }

    /// Queries the sentinels and returns where the master is. Calls `moved` if they name another one than before: [`watch`](Sentinels::watch)
    /// will not find that out any more.
    pub(crate) async fn endpoint(&self, first: bool, moved: impl Fn()) -> Result<Endpoint> {
        let decided = self.decide(first, |history, named| {
            let is_change = history.is_change(&named);
            (history.current.insert(named).clone(), is_change)
        });
        let (mut named, is_change) = decided.await?;
        if is_change {
            moved();
        }
        let name = shown(&self.name);
        if named.being_replaced {
            let message =
                format!("a failover of the master `{name}` is in progress; try again when it is complete");
            return Err(Error::new(ErrorKind::Unavailable, message).at(&named.address().into()));
        }
        if let Some((host, port)) = self.address_map.get(&named.host, named.port) {
            (named.host, named.port) = (host, port);
        }
        let address = format!("{}, master `{name}`", named.address()).into();
        let to = self.template.at(&named.host, named.port);
        Ok(Endpoint { to, address, gate: None, login: self.login.clone() })
    }

    /// Queries all sentinels at once, and decides which server is the master. Returns what `then` makes of that.
    async fn decide<T>(
        &self,
        first: bool,
        then: impl FnOnce(&mut ReportHistory, ReportedMaster) -> T,
    ) -> Result<T> {
        let asked = Instant::now();
        let mut queries = Tasks::new();
        for (index, sentinel) in self.sentinels.iter().enumerate() {
            let report = sentinel.clone().report(self.name.clone(), self.limit);
            queries.spawn(async move { (index, report.await) });
        }
        let reports = gather(queries, |named| lock(&self.history).is_decided_by(named)).await;
        let mut history = lock(&self.history);
        let named = decide_master(reports, asked, self.sentinels.len(), &self.name, first, &mut history)?;
        Ok(then(&mut history, named))
    }

    /// Calls `moved` whenever the sentinels name another master than that of the last connection.
    pub(crate) async fn watch(&self, moved: impl Fn()) {
        let hint = Arc::new(Notify::new());
        let mut listeners = Tasks::new();
        for sentinel in &self.sentinels {
            listeners.spawn(sentinel.clone().listen(self.name.clone(), hint.clone(), self.limit));
        }
        loop {
            // Query in either case, and without a pause: what the old master grants during a failover may be lost.
            let _ = timeout(POLL, hint.notified()).await;
            let change = self.decide(false, |history, named| history.is_change(&named).then_some(named));
            if let Ok(Some(named)) = change.await {
                telemetry::master_moved(&self.name, &named.address(), named.being_replaced);
                moved();
            }
        }
    }
}

/// Collects reports until one of them decides, or [`GRACE`] after the first one that names a master.
async fn gather(
    mut queries: Tasks<(usize, Report)>,
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

impl Sentinel {
    fn new(server: &Server, node_timeout: Duration) -> Result<Sentinel> {
        let (to, address) = (server.destination()?, server.address());
        // A sentinel has no databases: the database number in its URL is for the master.
        let with = to.redis_settings().clone().set_db(0);
        let has_credentials = with.username().or(with.password()).is_some();
        let without = has_credentials.then(RedisConnectionInfo::default);
        let destination = |settings| tuned(&to.with_redis_settings(settings), node_timeout);
        Ok(Sentinel { address, without_login: without.map(destination), to: destination(with) })
    }

    async fn report(self: Arc<Sentinel>, name: Arc<str>, limit: Duration) -> Report {
        let query = async {
            let report = self.ask(&self.to, &name).await;
            match &self.without_login {
                // Whatever the error is: a sentinel that expects no password may have an error of its own for clients that send one.
                Some(to) if report.is_refusal() => match self.ask(to, &name).await {
                    Report::Denied(_) => report,
                    without_login => without_login,
                },
                _ => report,
            }
        };
        timeout(limit, query).await.unwrap_or_else(|_| {
            Report::Unreachable(redis_error::not_sent(&too_long(limit, &self.to), &self.address).error)
        })
    }

    async fn ask(&self, to: &Destination, name: &str) -> Report {
        let query = async {
            let connection = Connection::connect(to, Box::new(drop)).await?;
            let questions = ["GET-MASTER-ADDR-BY-NAME", "MASTER"];
            let questions = questions.map(|about| redis::cmd("SENTINEL").arg(about).arg(name).take());
            connection.send_all(&questions, None).await
        };
        match query.await {
            Ok(answers) => {
                let [address, details] = answers.try_into().unwrap_or([Value::Nil, Value::Nil]);
                Report::read(address, &details, &self.address)
            }
            Err(error) => Report::refused(error, &self.address),
        }
    }

    /// Notifies `hint` of each message about this master. Never ends.
    async fn listen(self: Arc<Sentinel>, name: Arc<str>, hint: Arc<Notify>, limit: Duration) {
        let mut backoff = Backoff::default();
        loop {
            sleep(backoff.pause()).await;
            let since = Instant::now();
            for to in iter::once(&self.to).chain(&self.without_login) {
                if let Ok(Ok(connection)) = timeout(limit, subscribe(to)).await {
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

async fn subscribe(to: &Destination) -> RedisResult<(Requester, Listener)> {
    let (requester, listener) = listen(to, ChannelKind::Plain).await?;
    for channel in FAILOVER_CHANNELS {
        requester.request(ChannelRequest::Subscribe, channel).await?;
    }
    Ok((requester, listener))
}

/// Forwards messages as hints until the connection ends.
async fn forward(
    (requester, mut listener): (Requester, Listener),
    name: &str,
    hint: &Notify,
    limit: Duration,
) {
    loop {
        match timeout(QUIET, listener.next()).await {
            Ok(Some(push)) => {
                // The text of a message comes last. A confirmation has a number there.
                let text = push.data.last().and_then(text).unwrap_or_default();
                if text.split(' ').any(|part| part == name) {
                    hint.notify_one();
                }
            }
            Ok(None) => return,
            Err(_) if matches!(timeout(limit, requester.ping()).await, Ok(Ok(()))) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests;
