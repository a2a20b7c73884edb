//! One Redis server.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use crate::backend::connection::{
    Endpoint, Line, Link, Purpose, ServerClock, Subscriber, ask, ask_all, redis_error, tuned,
};
use crate::backend::sentinel::Sentinels;
use crate::backend::server::reconnect::Reconnector;
use crate::backend::server::replica_acks::{self, ReplicaAcks};
use crate::backend::server::source::Source;
use crate::backend::{Backend, BoxFuture, runtime};
use crate::base::{Events, Failure, after};
use crate::config::{Replicas, Server, Watched};
use crate::error::{Error, Result};
use crate::wire::{Call, Reply};

/// So many commands are sent in one go: enough to save round trips, few enough that a caller's command in between does
/// not wait for long.
const CHUNK: usize = 500;

/// An attempt to connect may take at least this long, be the node timeout ever so short.
pub(crate) const SHORTEST_CONNECT: Duration = Duration::from_secs(1);

/// What a server is to its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role {
    /// The only master. One of several does without a connection rather than wait for it: 1. an acquire waits for one, and so
    /// does the release behind it, 2. it comes, and they go out in any order, 3. a field stands that nobody holds.
    pub(crate) alone: bool,
    /// Its age has to be known.
    pub(crate) ages: bool,
    /// What else makes a grant count.
    pub(crate) replicas: Option<Replicas>,
}

/// A backend over one Redis server: a connection for commands, and one for messages.
pub(crate) struct RedisServer {
    line: Arc<Line>,
    /// Where replicas have to acknowledge grants.
    grants: Option<ReplicaAcks>,
    /// A node of a cluster has none of its own.
    subscriber: Option<Subscriber>,
    node_timeout: Duration,
    /// Whether a command waits for a connection, where there is none.
    patient: bool,
}

impl RedisServer {
    /// Connects, on the runtime that runs this future: the tasks that keep the connections live there from then on. With the
    /// error of a server that can't be reached now: it joins when it comes.
    pub(crate) async fn connect(
        server: &Server,
        role: Role,
        node_timeout: Duration,
        events: Weak<dyn Events>,
    ) -> Result<(Arc<RedisServer>, Option<Error>)> {
        let (client, address) = (server.client()?, server.address());
        let client = tuned(&client, node_timeout).map_err(|e| redis_error::unreachable(e, &address))?;
        let source = Source::Fixed(Box::new(Endpoint { client, address: address.clone(), gate: None }));
        RedisServer::over(source, address, role, node_timeout, events).await
    }

    /// The same for whichever server the sentinels name, now and after each failover.
    pub(crate) async fn watched(
        watched: &Watched,
        role: Role,
        node_timeout: Duration,
        events: Weak<dyn Events>,
    ) -> Result<(Arc<RedisServer>, Option<Error>)> {
        let sentinels = Sentinels::new(watched, node_timeout, node_timeout.max(SHORTEST_CONNECT))?;
        let address = watched.to_string().into();
        RedisServer::over(Source::Sentinel(sentinels), address, role, node_timeout, events).await
    }

    async fn over(
        source: Source,
        address: Arc<str>,
        role: Role,
        node_timeout: Duration,
        events: Weak<dyn Events>,
    ) -> Result<(Arc<RedisServer>, Option<Error>)> {
        // Tasks are spawned below.
        runtime()?;
        let limit = node_timeout.max(SHORTEST_CONNECT);
        let purpose = Purpose {
            ages: role.ages,
            several: !role.alone,
            paired: role.replicas.is_some(),
            ..Purpose::default()
        };
        let keeper = Reconnector::new(source, address.clone(), purpose, events.clone(), limit);
        let (line, target, mut away) = (keeper.line(), keeper.target(), keeper.connect().await?);
        let mut grants = None;
        if let Some(replicas) = role.replicas {
            let beside = keeper.beside(Purpose { waits: true, ..purpose });
            let beside_away = beside.connect().await?;
            // Where the first one is away, so is this one, and only the first one knows why.
            away = away.or(beside_away);
            grants = Some(ReplicaAcks::start(beside, replicas, node_timeout, role.alone));
        }
        tokio::spawn(keeper.run());
        let subscriber = Some(Subscriber::start(target, address, events, limit));
        Ok((Arc::new(RedisServer { line, grants, subscriber, node_timeout, patient: role.alone }), away))
    }

    /// One that runs calls and hears nothing. Returns before it is connected; its tasks live on that runtime.
    pub(crate) fn begin(
        site: Endpoint,
        role: Role,
        node_timeout: Duration,
        events: Weak<dyn Events>,
        runtime: &tokio::runtime::Handle,
    ) -> Arc<RedisServer> {
        // What is spawned below, by whomever, lives there too.
        let _entered = runtime.enter();
        let address = site.address.clone();
        let purpose = Purpose { ages: role.ages, paired: role.replicas.is_some(), ..Purpose::default() };
        let limit = node_timeout.max(SHORTEST_CONNECT);
        let keeper = Reconnector::new(Source::Fixed(Box::new(site)), address, purpose, events, limit);
        let line = keeper.line();
        let grants = role.replicas.map(|replicas| {
            let beside = keeper.beside(Purpose { waits: true, ..purpose });
            ReplicaAcks::start(beside, replicas, node_timeout, role.alone)
        });
        tokio::spawn(keeper.run());
        Arc::new(RedisServer { line, grants, subscriber: None, node_timeout, patient: role.alone })
    }

    /// That of its commands.
    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// That of acquires, where replicas have to acknowledge them.
    pub(crate) fn line_of_grants(&self) -> Option<&Arc<Line>> {
        self.grants.as_ref().map(ReplicaAcks::line)
    }

    #[cfg(test)]
    pub(crate) fn grants(&self) -> &ReplicaAcks {
        self.grants.as_ref().unwrap()
    }

    async fn link(&self, deadline: Instant) -> Result<Link, Failure> {
        if self.patient { self.line.link(deadline).await } else { self.line.link_now() }
    }

    /// Runs one call, until then. `asking`: though its slot may only be on the way to this node.
    pub(crate) async fn answer(
        &self,
        call: &Call,
        asking: bool,
        mut deadline: Instant,
    ) -> Result<Reply, Failure> {
        match &self.grants {
            Some(grants) if replica_acks::counts(call) => {
                // Polled late, behind another call of the same request, it would be sent when its hold was given up.
                if Instant::now() >= deadline {
                    return Err(redis_error::failed(redis_error::unsent(), call, &self.line.address));
                }
                return grants.ask(call.clone(), asking).await;
            }
            Some(grants) => {
                let before = Instant::now();
                grants.passed(std::slice::from_ref(call)).await;
                // What goes before it takes nothing of its time. It takes a node timeout at most: where that is over by more, this
                // future was not polled, and the call may have been given up.
                deadline += before.elapsed().min(self.node_timeout);
            }
            None => {}
        }
        let mut link = self.link(deadline).await?;
        let before = link.answers();
        match timeout_at(deadline, ask(&mut link, call, asking, deadline)).await {
            Ok(answer) => self.line.decoded(&link, call, answer),
            Err(_) => {
                self.line.silent(&link, before);
                Err(self.line.explain(redis_error::unanswered(call, self.node_timeout, &self.line.address)))
            }
        }
    }

    pub(crate) async fn answer_all(&self, calls: &[Call]) -> Vec<Result<Reply, Failure>> {
        if let Some(grants) = &self.grants {
            grants.passed(calls).await;
        }
        let mut replies = Vec::with_capacity(calls.len());
        let mut late = false;
        for chunk in calls.chunks(CHUNK) {
            if late {
                // The rest is not sent into the silence, one node timeout after the other: who asks can do better. Nor where the
                // answers were there in time and were looked at too late: then the rest may have been given up.
                let why = "not sent: the commands before it were not answered within the node timeout";
                replies.extend(chunk.iter().map(|_| Err(redis_error::not_sent(why, &self.line.address))));
            } else {
                late = !self.answer_chunk(chunk, &mut replies).await;
            }
        }
        replies
    }

    /// Whether the answers were there in time.
    async fn answer_chunk(&self, calls: &[Call], replies: &mut Vec<Result<Reply, Failure>>) -> bool {
        let deadline = after(Instant::now(), self.node_timeout);
        let mut link = match self.link(deadline).await {
            Ok(link) => link,
            Err(Failure { outcome, error }) => {
                replies.extend(calls.iter().map(|_| Err(Failure { outcome, error: error.again() })));
                return false;
            }
        };
        let before = link.answers();
        let mut answers: Vec<Option<RedisResult<Value>>> = calls.iter().map(|_| None).collect();
        let in_time =
            timeout_at(deadline, ask_all(&mut link, calls, |_| false, &mut answers, deadline)).await.is_ok();
        if !in_time {
            self.line.silent(&link, before);
        }
        for (call, answer) in calls.iter().zip(answers) {
            replies.push(match answer {
                Some(answer) => self.line.decoded(&link, call, answer),
                None => Err(self.line.explain(redis_error::unanswered(
                    call,
                    self.node_timeout,
                    &self.line.address,
                ))),
            });
        }
        in_time && Instant::now() < deadline
    }
}

impl Backend for RedisServer {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<Result<Reply, Failure>> {
        Box::pin(async move { self.answer(&call, false, after(Instant::now(), self.node_timeout)).await })
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        Box::pin(async move { self.answer_all(&calls).await })
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        self.line.vitals.is_younger_than(age, Instant::now())
    }

    fn is_away(&self) -> bool {
        !self.patient && !self.line.is_up()
    }

    fn clock(&self) -> Option<ServerClock> {
        self.line.vitals.clock()
    }

    fn subscribe(&self, channel: &str) {
        self.subscriber.iter().for_each(|subscriber| subscriber.subscribe(channel));
    }

    fn unsubscribe(&self, channel: &str) {
        self.subscriber.iter().for_each(|subscriber| subscriber.unsubscribe(channel));
    }

    fn is_portable(&self) -> bool {
        false
    }

    fn close(&self) {
        self.line.close();
        if let Some(grants) = &self.grants {
            grants.close();
        }
        self.subscriber.iter().for_each(Subscriber::close);
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisServer").field(&self.line.address).finish()
    }
}

#[cfg(test)]
mod tests;
