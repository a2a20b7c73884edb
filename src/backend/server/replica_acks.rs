//! Acquires that are granted only once replicas have acknowledged them.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::backend::connection::{ConnectionSlot, Link, ask_all, info_replication, redis_error};
use crate::backend::resp::{TOO_LATE, unsent};
use crate::backend::server::reconnect::Reconnector;
use crate::backend::server::role::Role;
use crate::base::{Failure, Outcome, after, gated, lock};
use crate::config::Replicas;
use crate::wire::{Action, Call, Count, Reply};

/// How many acquires share one `WAIT`. With one each, 64 tasks that take a lock each need 3.4 to 4.1 times as long, since a `WAIT` holds up
/// what is sent after it.
const MAX_BATCH: usize = 500;

/// The longest timeout of a `WAIT`, in milliseconds: the server refuses larger numbers.
const MAX_WAIT: u64 = u32::MAX as u64;

/// A separate connection for acquires, since `WAIT` blocks all commands sent after it, and the task that sends over it.
pub(super) struct ReplicaAcks {
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// Shared by callers and the task.
struct Shared {
    slot: Arc<ConnectionSlot>,
    replicas: Replicas,
    node_timeout: Duration,
    /// Whether acquires wait for a connection if there is none.
    waits_for_connection: bool,
    /// Whether a grant counts only if the server was not a replica in the meantime.
    checks_data: bool,
    queue: Mutex<AckQueue>,
    queued: Notify,
    answered: Notify,
}

#[derive(Default)]
struct AckQueue {
    /// Acquires that are not sent yet. One that is removed never runs.
    waiting: Vec<QueuedAcquire>,
    /// The fields of the acquires that were sent and not answered.
    in_flight: Vec<Arc<str>>,
    last_id: u64,
    /// Whether the task has ended.
    closed: bool,
}

struct QueuedAcquire {
    id: u64,
    call: Call,
    /// Whether it is sent after an `ASKING`, because the slot is still migrating to this node.
    asking: bool,
    answer: oneshot::Sender<Result<Reply, Failure>>,
}

/// A grant that is reported to its caller once enough replicas have it.
struct PendingGrant {
    call: Call,
    reply: Reply,
    caller: oneshot::Sender<Result<Reply, Failure>>,
}

impl ReplicaAcks {
    pub(super) fn start(
        reconnector: Reconnector,
        replicas: Replicas,
        node_timeout: Duration,
        role: &Role,
    ) -> ReplicaAcks {
        let (queue, queued, answered) = Default::default();
        let (waits_for_connection, checks_data) = (role.alone, role.needs_age);
        let slot = reconnector.slot();
        tokio::spawn(gated(reconnector.run(false)));
        let shared = Arc::new(Shared {
            slot,
            replicas,
            node_timeout,
            waits_for_connection,
            checks_data,
            queue,
            queued,
            answered,
        });
        let task = tokio::spawn(gated(shared.clone().run())).abort_handle();
        ReplicaAcks { shared, task }
    }

    /// Queues an acquire, and waits for its answer. If the future is dropped before the acquire was sent, it is never sent.
    pub(super) async fn ask(&self, call: Call, asking: bool, deadline: Instant) -> Result<Reply, Failure> {
        // The future may be polled late, after another call of the same request, when its hold was given up.
        if Instant::now() >= deadline {
            return Err(redis_error::failed(unsent(TOO_LATE), &call, &self.shared.slot.address));
        }
        let (answer, answered) = oneshot::channel();
        let unanswered =
            redis_error::unanswered(&call, self.shared.node_timeout, None, &self.shared.slot.address);
        let id = self.shared.enqueue(call, asking, answer);
        let _cancel = scopeguard::guard(id, |id| self.shared.cancel(id));
        // The task ends on close, or with its runtime, and drops all senders.
        answered.await.unwrap_or_else(|_| Err(self.shared.slot.explain(unanswered)))
    }

    /// Waits until no acquire of these holds can run any more, for the node timeout at most, and removes those that were not sent.
    /// Otherwise the end of a hold could run before its acquire, because they are sent over different connections.
    pub(super) async fn wait_for_acquires(&self, calls: &[Call]) {
        self.shared.cancel_ended(calls);
        let until = after(Instant::now(), self.shared.node_timeout);
        loop {
            let answered = self.shared.answered.notified();
            let mut answered = std::pin::pin!(answered);
            answered.as_mut().enable();
            if !self.shared.any_in_flight(calls) || timeout_at(until, answered).await.is_err() {
                return;
            }
        }
    }

    /// Returns whether no acquire is under way.
    pub(super) fn is_unused(&self) -> bool {
        let queue = lock(&self.shared.queue);
        queue.waiting.is_empty() && queue.in_flight.is_empty()
    }

    pub(super) fn slot(&self) -> &Arc<ConnectionSlot> {
        &self.shared.slot
    }

    pub(super) fn close(&self) {
        self.shared.slot.close();
        self.task.abort();
    }
}

impl Shared {
    fn enqueue(&self, call: Call, asking: bool, answer: oneshot::Sender<Result<Reply, Failure>>) -> u64 {
        let mut queue = lock(&self.queue);
        queue.last_id += 1;
        let id = queue.last_id;
        if !queue.closed {
            queue.waiting.push(QueuedAcquire { id, call, asking, answer });
        }
        drop(queue);
        self.queued.notify_one();
        id
    }

    /// Removes the acquires of holds that end. Otherwise: 1. One of several masters is slow, and its grant is not awaited. 2. The
    /// lock is released. 3. The acquire is sent after that, and sets a field that nobody holds.
    fn cancel_ended(&self, calls: &[Call]) {
        let cancelled: Vec<QueuedAcquire> = {
            let mut queue = lock(&self.queue);
            if queue.waiting.is_empty() {
                return;
            }
            let ends = |call: &&Call| call.action.is_end();
            let ended: HashSet<&Arc<str>> = calls.iter().filter(ends).filter_map(field).collect();
            let is_ended = |queued_acquire: &mut QueuedAcquire| {
                field(&queued_acquire.call).is_some_and(|field| ended.contains(field))
            };
            queue.waiting.extract_if(.., is_ended).collect()
        };
        for queued_acquire in cancelled {
            let why = "not sent: its hold was released first";
            let _ = queued_acquire.answer.send(Err(redis_error::not_sent(why, &self.slot.address)));
        }
    }

    fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        drop(waiting);
        self.clear_in_flight();
    }

    fn cancel(&self, id: u64) {
        lock(&self.queue).waiting.retain(|queued_acquire| queued_acquire.id != id);
    }

    fn any_in_flight(&self, calls: &[Call]) -> bool {
        let queue = lock(&self.queue);
        let is_in_flight = |call| field(call).is_some_and(|field| queue.in_flight.contains(field));
        !queue.in_flight.is_empty() && calls.iter().any(is_in_flight)
    }

    fn run(self: Arc<Self>) -> impl Future<Output = ()> + Send {
        // Created outside the future, which may be dropped with its runtime before its first poll.
        let shared = scopeguard::guard(self, |shared| shared.close());
        async move {
            loop {
                // Read before `next_batch`: a caller that finds one of the batch in flight waits at least until this deadline.
                let deadline = after(Instant::now(), shared.node_timeout);
                let batch = shared.next_batch();
                if batch.is_empty() {
                    shared.queued.notified().await;
                } else {
                    shared.run_batch(batch, deadline).await;
                }
            }
        }
    }

    fn next_batch(&self) -> Vec<QueuedAcquire> {
        let mut queue = lock(&self.queue);
        let size = queue.waiting.len().min(MAX_BATCH);
        let batch: Vec<QueuedAcquire> = queue.waiting.drain(..size).collect();
        queue.in_flight =
            batch.iter().filter_map(|queued_acquire| field(&queued_acquire.call).cloned()).collect();
        batch
    }

    /// Sends the whole batch at once, then one `WAIT` for the acquires that were granted.
    async fn run_batch(&self, batch: Vec<QueuedAcquire>, deadline: Instant) {
        match self.link(deadline).await {
            Ok(link) => {
                let granted = self.send_batch(&link, batch, deadline).await;
                if !granted.is_empty() {
                    let acks = self.wait_for_replicas(&link).await;
                    let acks = match acks {
                        // `wait_for_replicas` has dropped the connection.
                        Acknowledged::OtherData => acks,
                        _ if self.slot.is_current(&link) => acks,
                        _ => Acknowledged::Replaced,
                    };
                    granted.into_iter().for_each(|granted| self.answer(granted, &acks));
                }
            }
            Err(Failure { outcome, error }) => {
                self.clear_in_flight();
                for queued_acquire in batch {
                    let _ = queued_acquire.answer.send(Err(Failure { outcome, error: error.again() }));
                }
            }
        }
    }

    /// Returns the connection for acquires, once the connection for commands that it is paired with is live.
    async fn link(&self, deadline: Instant) -> Result<Link, Failure> {
        loop {
            // Only the slot for commands knows why there is no connection.
            if let Some(main) = &self.slot.main {
                main.link_for_call(self.waits_for_connection, deadline).await?;
            }
            let link = self.slot.link_for_call(self.waits_for_connection, deadline).await?;
            if self.slot.is_current(&link) {
                return Ok(link);
            }
            self.slot.discard(&link, "the connection for commands was replaced");
            if Instant::now() >= deadline {
                return Err(self
                    .slot
                    .explain(redis_error::not_sent("there was no connection in time", &self.slot.address)));
            }
        }
    }

    /// Sends the batch. Returns the acquires that were granted, and answers the callers of the others.
    async fn send_batch(
        &self,
        link: &Link,
        batch: Vec<QueuedAcquire>,
        deadline: Instant,
    ) -> Vec<PendingGrant> {
        let before = link.connection.answers();
        let asking: Vec<bool> = batch.iter().map(|queued_acquire| queued_acquire.asking).collect();
        let (calls, callers): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|queued_acquire| (queued_acquire.call, queued_acquire.answer)).unzip();
        let mut answers: Vec<Option<RedisResult<Value>>> = calls.iter().map(|_| None).collect();
        let asked = ask_all(&link.connection, &calls, |at| asking[at], &mut answers, deadline);
        let why = match timeout_at(deadline, asked).await {
            Ok(_) => None,
            Err(_) => self.slot.timed_out(link, before, deadline),
        };
        self.clear_in_flight();
        // If it is not, all answers are those of an old master, not only the grants.
        let is_current = self.slot.is_current(link);
        let mut granted = Vec::new();
        for ((call, answer), caller) in calls.into_iter().zip(answers).zip(callers) {
            let reply = match answer {
                Some(answer) => self.slot.decode(link, &call, answer),
                None => Err(self.unanswered(&call, why.as_deref())),
            };
            match reply {
                Ok(_) if !is_current => drop(caller.send(Err(self.connection_replaced(&call)))),
                Ok(reply) if reply.is_grant() => granted.push(PendingGrant { call, reply, caller }),
                reply => drop(caller.send(reply)),
            }
        }
        granted
    }

    fn answer(&self, granted: PendingGrant, acknowledged: &Acknowledged) {
        let PendingGrant { call, reply, caller } = granted;
        let is_enough = |by: i64| u64::try_from(by).is_ok_and(|by| by >= self.replicas.count as u64);
        let reply = match acknowledged {
            Acknowledged::By(by) if is_enough(*by) => Ok(reply),
            Acknowledged::By(by) => Err(redis_error::unacknowledged(*by, self.replicas, &self.slot.address)),
            Acknowledged::Refused(error) => {
                let failed = redis_error::failed(error.clone(), &call, &self.slot.address);
                // The acquire itself has run, even if the `WAIT` was refused.
                Err(self.slot.explain(Failure { outcome: Outcome::Unknown, ..failed }))
            }
            Acknowledged::Replaced => Err(self.connection_replaced(&call)),
            Acknowledged::OtherData => Err(redis_error::other_data(&call, &self.slot.address)),
            Acknowledged::TimedOut(why) => Err(self.unanswered(&call, why.as_deref())),
        };
        let _ = caller.send(reply);
    }

    /// Forgets the acquires in flight: each was answered, or has timed out.
    fn clear_in_flight(&self) {
        lock(&self.queue).in_flight.clear();
        self.answered.notify_waiters();
    }

    fn connection_replaced(&self, call: &Call) -> Failure {
        self.slot.explain(redis_error::connection_replaced(call, &self.slot.address))
    }

    fn unanswered(&self, call: &Call, why: Option<&str>) -> Failure {
        self.slot.explain(redis_error::unanswered(call, self.node_timeout, why, &self.slot.address))
    }

    /// Waits until enough replicas have what was written over this connection.
    async fn wait_for_replicas(&self, link: &Link) -> Acknowledged {
        let Replicas { count, wait } = self.replicas;
        // Rounded up, since zero means forever.
        let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(MAX_WAIT).min(MAX_WAIT);
        let mut command = redis::cmd("WAIT");
        command.arg(u32::try_from(count).unwrap_or(u32::MAX)).arg(millis);
        let mut pipeline = redis::Pipeline::with_capacity(2);
        pipeline.add_command(command);
        if self.checks_data {
            pipeline.add_command(info_replication());
        }
        let deadline = after(Instant::now(), self.node_timeout.saturating_add(wait));
        let before = link.connection.answers();
        let answers = timeout_at(deadline, link.connection.send_all(&pipeline, Some(deadline))).await;
        let (answer, info) = match answers {
            Ok(Ok(answers)) => {
                let mut answers = answers.into_iter();
                (Ok(answers.next().map_or(Ok(Value::Nil), Value::extract_error)), answers.next())
            }
            Ok(Err(error)) => (Ok(Err(error)), None),
            Err(late) => (Err(late), None),
        };
        if info.is_some_and(|info| !self.slot.has_same_data(link, info)) {
            return Acknowledged::OtherData;
        }
        match answer {
            Ok(Ok(Value::Int(by))) => Acknowledged::By(by),
            Ok(Ok(_)) => Acknowledged::By(0),
            Ok(Err(error)) => {
                self.slot.discard_after(link, &error);
                Acknowledged::Refused(error)
            }
            Err(_) => Acknowledged::TimedOut(self.slot.timed_out(link, before, deadline)),
        }
    }
}

enum Acknowledged {
    By(i64),
    /// The connection, or the one for commands, was replaced: the acknowledgements may come from an old master's replicas.
    Replaced,
    /// The server was a replica in the meantime.
    OtherData,
    Refused(redis::RedisError),
    /// Too few replicas acknowledged in time. Has the reason, if the server and the network are not to blame.
    TimedOut(Option<String>),
}

/// Returns whether replicas have to acknowledge the call. They also have to acknowledge the next token, if it is made apart from
/// its hold, and the use of a claim: otherwise a promoted replica may hand the token out again, or let the claim be used again.
pub(super) fn needs_acks(call: &Call) -> bool {
    call.action.grants() || call.action == Action::Count(Count::Next)
}

/// Returns the hold that the call is for, if any.
fn field(call: &Call) -> Option<&Arc<str>> {
    Some(&call.field).filter(|field| !field.is_empty())
}

#[cfg(test)]
mod tests;
