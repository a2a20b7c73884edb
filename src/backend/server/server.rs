//! One Redis server.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::backend::connection::{
    CHUNK, ChannelKind, ConnectionSlot, Endpoint, Link, OptionalRights, Purpose, ServerClock, Subscriber,
    Target, ask_about_data, begin, connect_limit, finish, redis_error, run_last, tuned,
};
use crate::backend::sentinel::Sentinels;
use crate::backend::server::reconnect::{RUNTIME_ENDED, Reconnector};
use crate::backend::server::replica_acks::{self, ReplicaAcks};
use crate::backend::server::role::Role;
use crate::backend::server::source::Source;
use crate::backend::server::spare::Spare;
use crate::backend::{Backend, BoxFuture, runtime, tokio_now};
use crate::base::{Events, after, boxed, gated};
use crate::config::{SentinelMaster, Server};
use crate::error::{Error, Result};
use crate::wire::keys::Keys;
use crate::wire::{Call, CallResult};

/// A backend over one Redis server: a connection for commands, and one for messages.
pub(crate) struct RedisServer {
    slot: Arc<ConnectionSlot>,
    /// Where the slot leads to.
    target: Target,
    /// The sentinels that name the master, for a connection beside the slot.
    sentinels: Option<Arc<Sentinels>>,
    /// Present if replicas have to acknowledge grants.
    acks: Option<ReplicaAcks>,
    /// `None` for a node of a cluster whose clients use plain channels.
    subscriber: Option<Subscriber>,
    /// Receives what a node's subscriber reports, which only references it weakly.
    _reports: Option<Arc<dyn Events>>,
    rights: OptionalRights,
    /// Whether a grant counts only if the server was not a replica in the meantime.
    checks_data: bool,
    /// Whether one script may have the keys of several locks: not on a node of a cluster, where they are in several slots.
    renews_together: bool,
}

/// Where a server is.
struct Site {
    source: Source,
    /// The sentinels that name it, for a connection beside that of `source`.
    sentinels: Option<Arc<Sentinels>>,
    /// Names it in errors and logs.
    address: Arc<str>,
    /// How long an attempt to connect may take.
    limit: Duration,
}

impl Site {
    fn fixed(endpoint: Endpoint, node_timeout: Duration) -> Site {
        let (address, limit) = (endpoint.address.clone(), connect_limit(Some(&endpoint.to), node_timeout));
        Site { source: Source::Fixed(Box::new(endpoint)), sentinels: None, address, limit }
    }
}

/// A master before its first connection.
pub(crate) struct Unconnected {
    server: Arc<RedisServer>,
    reconnector: Reconnector,
    /// The connection for acquires, if replicas have to acknowledge grants.
    paired: Option<Reconnector>,
}

impl Unconnected {
    /// Connects. If the server can't be reached now, returns the error too; the server is used once it can be reached.
    pub(crate) async fn connect(self) -> Result<(Arc<RedisServer>, Option<Error>)> {
        let mut away = self.reconnector.connect().await?;
        if let Some(paired) = &self.paired {
            let paired_away = paired.connect().await?;
            // If the first connection can't be made, neither can this one, and only the first one's error has the reason.
            away = away.or(paired_away);
        }
        Ok((self.start(false), away))
    }

    /// Begins to connect. `lazily`: nobody waits for the first attempt; its outcome is for the log and for calls.
    pub(crate) fn start(self, lazily: bool) -> Arc<RedisServer> {
        if let Some(paired) = self.paired {
            tokio::spawn(gated(Box::pin(paired.run(false))));
        }
        tokio::spawn(gated(Box::pin(self.reconnector.run(lazily))));
        self.server
    }
}

impl RedisServer {
    /// Returns an unconnected server on the current runtime, which will run the tasks that own the connections. Fails outside of a
    /// runtime, where `tokio::spawn` would panic.
    pub(crate) fn at(server: &Server, role: Role, events: Weak<dyn Events>) -> Result<Unconnected> {
        let (to, address) = (tuned(&server.destination()?, role.node_timeout), server.address());
        let endpoint = Endpoint { to, address, gate: None, login: role.login.clone() };
        runtime()?;
        let site = Site::fixed(endpoint, role.node_timeout);
        Ok(RedisServer::unconnected(site, &role, events, false, |_| None))
    }

    /// Like [`at`](RedisServer::at), for the server that the sentinels name, now and after each failover.
    pub(crate) fn by_sentinels(
        master: &SentinelMaster,
        role: Role,
        events: Weak<dyn Events>,
    ) -> Result<Unconnected> {
        let (login, map, node_timeout) = (&role.login, &role.address_map, role.node_timeout);
        let sentinels = || Sentinels::new(master, login.clone(), map.clone(), node_timeout);
        let (source, sentinels) = (Source::Sentinel(sentinels()?), Some(Arc::new(sentinels()?)));
        runtime()?;
        let limit = connect_limit(master.sentinels.first().and_then(Server::usable), node_timeout);
        let site = Site { source, sentinels, address: master.to_string().into(), limit };
        Ok(RedisServer::unconnected(site, &role, events, false, |_| None))
    }

    /// Starts a node of a cluster, which is not connected yet. Its tasks run on `runtime`. It has a subscriber for sharded channels if
    /// `reports` returns a receiver for the subscriber's events.
    pub(crate) fn start_node(
        endpoint: Endpoint,
        role: &Role,
        events: Weak<dyn Events>,
        reports: impl FnOnce(&Weak<RedisServer>) -> Option<Arc<dyn Events>>,
        runtime: &tokio::runtime::Handle,
    ) -> Arc<RedisServer> {
        // So that the functions called below spawn on `runtime` too.
        let _entered = runtime.enter();
        let site = Site::fixed(endpoint, role.node_timeout);
        RedisServer::unconnected(site, role, events, true, reports).start(false)
    }

    /// Returns a server before its first connection. `is_node`: it is a node of a cluster. Then channels are sharded, and `reports` returns
    /// what receives the events of the subscriber, or `None` if the node needs no subscriber.
    fn unconnected(
        site: Site,
        role: &Role,
        events: Weak<dyn Events>,
        is_node: bool,
        reports: impl FnOnce(&Weak<RedisServer>) -> Option<Arc<dyn Events>>,
    ) -> Unconnected {
        let Site { source, sentinels, address, limit } = site;
        let purpose = Purpose {
            one_of_several: !role.alone && !is_node,
            reads_policy: !is_node,
            needs_age: role.needs_age,
            needs_run_id: role.replicas.is_some() || role.one_vote.is_some() || role.uses_backup_thread,
            ..Purpose::default()
        };
        let slot = ConnectionSlot::new(address.clone(), role.node_timeout, role.alone, None);
        let reconnector =
            Reconnector::new(slot.clone(), source, purpose, events.clone(), role.one_vote.clone());
        let for_acquires = Purpose { sends_wait: true, reads_policy: false, ..purpose };
        let paired = role.replicas.map(|_| reconnector.paired(for_acquires));
        let start = |(paired, replicas): (&Reconnector, _)| {
            ReplicaAcks::start(paired.slot(), replicas, role.needs_age)
        };
        let acks = paired.as_ref().zip(role.replicas).map(start);
        let server = Arc::new_cyclic(|server| {
            let (reports, target) = (reports(server), reconnector.target());
            let (channels, receiver) = match is_node {
                true => (ChannelKind::Sharded, reports.as_ref().map(Arc::downgrade)),
                false => (ChannelKind::Plain, Some(events)),
            };
            // Another task chooses the node of each sharded channel, by the failures of the last one.
            let commands = (!is_node).then(|| slot.clone());
            let subscribe =
                |receiver| Subscriber::start(channels, target.clone(), address, receiver, limit, commands);
            RedisServer {
                slot,
                sentinels,
                acks,
                subscriber: receiver.map(subscribe),
                target,
                _reports: reports,
                rights: OptionalRights::default(),
                checks_data: role.needs_age,
                renews_together: !is_node,
            }
        });
        Unconnected { server, reconnector, paired }
    }

    /// Returns the slot for commands.
    pub(crate) fn slot(&self) -> &Arc<ConnectionSlot> {
        &self.slot
    }

    /// Returns the slot for acquires, if replicas have to acknowledge them.
    pub(super) fn acquire_slot(&self) -> Option<&Arc<ConnectionSlot>> {
        self.acks.as_ref().map(ReplicaAcks::slot)
    }

    /// Returns the slots of all its connections for commands.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Arc<ConnectionSlot>> {
        std::iter::once(&self.slot).chain(self.acquire_slot())
    }

    /// Like [`answer`](RedisServer::answer), without the parts of the call that this user was denied. `deadline`: if there is none, the node
    /// timeout is counted from the first poll.
    pub(crate) fn answer_as_allowed(
        self: Arc<Self>,
        mut call: Call,
        asking: bool,
        deadline: Option<Instant>,
    ) -> impl Future<Output = CallResult> + Send {
        self.rights.apply(&mut call, || self.slot.id());
        // An async block, since an `async fn` would copy the call once more.
        async move {
            let deadline = deadline.unwrap_or_else(|| after(Instant::now(), self.slot.node_timeout));
            let mut answer = self.answer(&call, asking, deadline).await;
            if OptionalRights::may_lack_lines(&call, &answer) {
                answer = boxed(self.without_line(&call, asking, deadline)).await;
            }
            self.rights.learn(&answer, || self.slot.id());
            answer
        }
    }

    /// Runs a call once more, without its line, after it was denied, maybe because of the line. This is rare, so callers box the future.
    async fn without_line(&self, call: &Call, asking: bool, deadline: Instant) -> CallResult {
        let call = Call { line: None, ..call.clone() };
        let answer = self.answer(&call, asking, deadline).await;
        self.rights.learn_of_lines(&answer, self.slot.id(), &self.slot.address);
        answer
    }

    /// Runs one call, until the deadline. `asking` means that its slot may still be migrating to this node.
    pub(crate) async fn answer(&self, call: &Call, asking: bool, mut deadline: Instant) -> CallResult {
        // Rare cases are boxed: otherwise the future of each call would be as large as all cases together.
        match &self.acks {
            Some(acks) if replica_acks::needs_acks(call) => {
                return boxed(acks.ask(call.clone(), asking, deadline)).await;
            }
            Some(acks) => {
                let before = Instant::now();
                boxed(acks.wait_for_acquires(std::slice::from_ref(call))).await;
                // The wait for acquires does not count. It takes a node timeout at most. If more has passed, this future was not
                // polled, and the call may have been given up.
                deadline += before.elapsed().min(self.slot.node_timeout);
            }
            None => {}
        }
        // There usually is a connection, which takes no future.
        let link = match self.slot.link_now() {
            Err(_) => self.slot.link_for_call(deadline).await?,
            Ok(link) => link,
        };
        if self.checks_data && call.action.grants() {
            return boxed(self.acquire_checked(link, call, asking, deadline)).await;
        }
        if asking {
            let asked = self.slot.replies(&link, std::slice::from_ref(call), &[true], false, deadline);
            return boxed(asked).await.0.remove(0);
        }
        let before = link.connection.answers();
        let begun = begin(&link.connection, call, deadline);
        let answer = timeout_at(deadline, finish(&link.connection, call, begun, deadline)).await;
        self.slot.reply(&link, call, before, deadline, answer)
    }

    /// Runs an acquire. Its grant counts only if the server was not a replica in the meantime.
    async fn acquire_checked(&self, link: Link, call: &Call, asking: bool, deadline: Instant) -> CallResult {
        let (before, sent) = (link.connection.answers(), Instant::now());
        let mut info = None;
        let asked = async {
            let answer;
            (answer, info) = ask_about_data(&link, call, asking, deadline).await?;
            Ok(answer)
        };
        let answer = timeout_at(deadline, asked).await;
        let reply = self.slot.reply(&link, call, before, deadline, answer)?;
        if let Some(info) = info
            && reply.is_grant()
        {
            if !self.slot.has_same_data(&link, info) {
                return Err(redis_error::other_data(call, &self.slot.address));
            }
            link.status.data.confirm(sent);
        }
        Ok(reply)
    }

    /// Runs many calls, a chunk of them in one write, and leaves out the parts that this user was denied.
    pub(crate) async fn answer_all_as_allowed(&self, mut calls: Vec<Call>) -> Vec<CallResult> {
        calls.iter_mut().for_each(|call| self.rights.apply(call, || self.slot.id()));
        if let Some(acks) = &self.acks {
            acks.wait_for_acquires(&calls).await;
        }
        let (slot, mut answers, mut away) = (&self.slot, Vec::with_capacity(calls.len()), None);
        for chunk in calls.chunks(CHUNK) {
            let deadline = after(Instant::now(), slot.node_timeout);
            let link = match slot.link_for_call(deadline).await {
                Ok(link) => link,
                Err(failure) => {
                    away = Some(failure);
                    break;
                }
            };
            let ask = |calls| slot.replies(&link, calls, &[], self.renews_together, deadline);
            let (mut replies, mut in_time) = ask(chunk).await;
            let denied = |at: &usize| OptionalRights::may_lack_lines(&chunk[*at], &replies[*at]);
            let denied: Vec<usize> = (0..chunk.len()).filter(denied).collect();
            let again: Vec<_> = denied.iter().map(|at| Call { line: None, ..chunk[*at].clone() }).collect();
            if !again.is_empty() {
                // These are not sent after the deadline either, since they may have been given up by then.
                let (answered, by_then) = ask(&again).await;
                in_time &= by_then;
                for (at, answer) in denied.into_iter().zip(answered) {
                    self.rights.learn_of_lines(&answer, Some(link.id), &slot.address);
                    replies[at] = answer;
                }
            }
            answers.extend(replies);
            // The rest is not sent, to spare the caller one node timeout per chunk. Nor is it sent if the answers arrived in time but were
            // read too late: the rest may have been given up.
            if !in_time || Instant::now() >= deadline {
                break;
            }
        }
        let why = "not sent: the commands before it were not answered within the node timeout";
        answers.resize_with(calls.len(), || match &away {
            Some(failure) => Err(failure.clone()),
            None => Err(redis_error::not_sent(why, &slot.address)),
        });
        answers.iter().for_each(|answer| self.rights.learn(answer, || slot.id()));
        answers
    }
}

impl Backend for RedisServer {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<CallResult> {
        Box::pin(self.answer_as_allowed(call, false, None))
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<CallResult>> {
        Box::pin(async move { self.answer_all_as_allowed(calls).await })
    }

    /// Returns whether nothing is under way: if replicas acknowledge grants, no acquire either, since it is on another connection.
    fn is_unused(&self, _: &Keys) -> bool {
        self.slot.is_unused() && self.acks.as_ref().is_none_or(ReplicaAcks::is_unused)
    }

    fn begin(self: Arc<Self>, call: &Call) -> Option<BoxFuture<CallResult>> {
        let mut call = call.clone();
        let link = self.slot.link_now().ok()?;
        self.rights.apply(&mut call, || Some(link.id));
        let (deadline, before) = (after(tokio_now(), self.slot.node_timeout), link.connection.answers());
        let begun = begin(&link.connection, &call, deadline);
        Some(Box::pin(async move {
            let answer = timeout_at(deadline, finish(&link.connection, &call, begun, deadline)).await;
            let answer = self.slot.reply(&link, &call, before, deadline, answer);
            if OptionalRights::may_lack_lines(&call, &answer) {
                return boxed(self.without_line(&call, false, deadline)).await;
            }
            self.rights.learn(&answer, || Some(link.id));
            answer
        }))
    }

    fn is_unread(&self) -> bool {
        self.slot.is_unread()
    }

    fn spare(&self, _: &Keys) -> Option<Spare> {
        let endpoint = self.target.borrow().clone();
        Spare::new(&self.slot, endpoint, self.sentinels.clone())
    }

    /// Sends them over the connection for acquires, so that an end does not overtake an acquire that has had no answer.
    fn run_last(&self, mut calls: Vec<Call>) {
        if let Some(link) = self.acquire_slot().unwrap_or(&self.slot).last_link() {
            // Denied rights are noted for the connection for commands, which a connection for acquires is paired with.
            let id = link.paired_with.unwrap_or(link.id);
            calls.iter_mut().for_each(|call| self.rights.apply(call, || Some(id)));
            run_last(&link.connection, &calls);
        }
    }

    fn end_with_runtime(&self) {
        self.slots().for_each(|slot| slot.end_with_runtime(RUNTIME_ENDED, false));
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        self.slot.server_info.is_younger_than(age, Instant::now())
    }

    fn is_away(&self) -> bool {
        !self.slot.waits_for_connection && !self.slot.is_up()
    }

    fn first_attempt(self: Arc<Self>) -> BoxFuture<bool> {
        Box::pin(async move {
            for slot in self.slots() {
                if !slot.first_attempt().await {
                    return false;
                }
            }
            true
        })
    }

    fn is_connected(&self, _: &Keys) -> bool {
        self.slot.is_connected()
    }

    fn clock(&self) -> Option<ServerClock> {
        self.slot.server_info.clock()
    }

    fn subscribe(&self, channel: &str) {
        self.subscriber.iter().for_each(|subscriber| subscriber.subscribe(channel));
    }

    fn unsubscribe(&self, channel: &str) {
        self.subscriber.iter().for_each(|subscriber| subscriber.unsubscribe(channel));
    }

    fn close(&self) {
        self.slot.close();
        if let Some(acks) = &self.acks {
            acks.close();
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
        f.debug_tuple("RedisServer").field(&self.slot.address).finish()
    }
}

#[cfg(test)]
mod tests;
