//! Acquires that are granted only once replicas have acknowledged them.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex};

use redis::Value;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::backend::connection::{ConnectionSlot, Link, info_replication, redis_error};
use crate::backend::resp::{TOO_LATE, unsent};
use crate::base::{Failure, after, gated, lock};
use crate::config::Replicas;
use crate::wire::{Action, Call, CallResult, Count, Reply};

/// How many acquires share one `WAIT`. With one each, 64 tasks that take a lock each need 3.4 to 4.1 times as long, since a `WAIT` holds up
/// what is sent after it. And while a replica is away, each acquire would wait for the timeouts of all `WAIT`s before its own.
const MAX_BATCH: usize = 500;

/// The longest timeout of a `WAIT`, in milliseconds: the server refuses larger numbers.
const MAX_WAIT: u64 = u32::MAX as u64;

/// Why an acquire has no answer although the task observes the limits of each.
const NOT_TAKEN: &str = "too many acquires wait for replicas, or the runtime that `connect` was awaited on is not driven: keep it running";

/// A separate connection for acquires, since `WAIT` blocks all commands sent after it, and the task that sends over it.
pub(super) struct ReplicaAcks {
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// Shared by callers and the task.
struct Shared {
    slot: Arc<ConnectionSlot>,
    replicas: Replicas,
    /// Whether a grant counts only if the server was not a replica in the meantime.
    checks_data: bool,
    queue: Mutex<AckQueue>,
    queued: Notify,
    answered: Notify,
}

#[derive(Default)]
struct AckQueue {
    /// Acquires that are not sent yet. An acquire that is removed, or that nobody waits for any more, never runs.
    waiting: Vec<QueuedAcquire>,
    /// The fields of the acquires that were sent and not answered.
    in_flight: Vec<Arc<str>>,
    /// Whether the task has ended.
    closed: bool,
}

struct QueuedAcquire {
    call: Call,
    /// Whether it is sent after an `ASKING`, because the slot is still migrating to this node.
    asking: bool,
    caller: Caller,
}

type Caller = oneshot::Sender<CallResult>;

impl ReplicaAcks {
    pub(super) fn start(slot: Arc<ConnectionSlot>, replicas: Replicas, checks_data: bool) -> ReplicaAcks {
        let (queue, queued, answered) = Default::default();
        let shared = Arc::new(Shared { slot, replicas, checks_data, queue, queued, answered });
        let task = tokio::spawn(gated(Box::pin(shared.clone().run()))).abort_handle();
        ReplicaAcks { shared, task }
    }

    /// Queues an acquire, and waits for its answer. If the future is dropped before the acquire was sent, it is never sent.
    pub(super) async fn ask(&self, call: Call, asking: bool, deadline: Instant) -> CallResult {
        let Shared { slot, replicas, queue, queued, .. } = &*self.shared;
        // The future may be polled late, after another call of the same request, when its hold was given up.
        if Instant::now() >= deadline {
            return Err(redis_error::failed(unsent(TOO_LATE), &call, &slot.address));
        }
        let (caller, answer) = oneshot::channel();
        let unanswered = redis_error::unanswered(&call, slot.node_timeout, Some(NOT_TAKEN), &slot.address);
        // Twice `Config::attempt_limit`. The task keeps all limits itself, unless it does not run.
        let limit = slot.node_timeout.saturating_mul(2).saturating_add(replicas.wait).saturating_mul(3);
        {
            // Dropped here if the queue is closed, which ends the wait below.
            let acquire = QueuedAcquire { call, asking, caller };
            let mut queue = lock(queue);
            if !queue.closed {
                queue.waiting.push(acquire);
            }
        }
        queued.notify_one();
        // The task ends on close, or with its runtime, and drops all senders.
        let answer = timeout(limit, answer).await.ok().and_then(Result::ok);
        answer.unwrap_or_else(|| Err(slot.explain(unanswered)))
    }

    /// Waits until no acquire of these holds can run any more, for the node timeout at most, and removes those that were not sent.
    /// Otherwise the end of a hold could run before its acquire, because they are sent over different connections.
    pub(super) async fn wait_for_acquires(&self, calls: &[Call]) {
        self.shared.cancel_ended(calls);
        let until = after(Instant::now(), self.shared.slot.node_timeout);
        loop {
            // Created before the check, so that an answer in between is not missed.
            let answered = self.shared.answered.notified();
            if !self.shared.any_in_flight(calls) || timeout_at(until, answered).await.is_err() {
                return;
            }
        }
    }

    /// Returns whether no acquire is under way.
    pub(super) fn is_unused(&self) -> bool {
        let queue = lock(&self.shared.queue);
        queue.waiting.iter().all(|queued| queued.caller.is_closed()) && queue.in_flight.is_empty()
    }

    pub(super) fn slot(&self) -> &Arc<ConnectionSlot> {
        &self.shared.slot
    }

    pub(super) fn close(&self) {
        self.shared.slot.close();
        // The task does so too when it is dropped, but not before its runtime is driven.
        self.shared.close();
        self.task.abort();
    }
}

impl Shared {
    /// Removes the acquires of holds that end. Otherwise: 1. One of several masters is slow, and its grant is not awaited. 2. The
    /// lock is released. 3. The acquire is sent after that, and sets a field that nobody holds.
    fn cancel_ended(&self, calls: &[Call]) {
        let ends = |call: &&Call| call.action.is_end();
        let ended: HashSet<&Arc<str>> = calls.iter().filter(ends).filter_map(field).collect();
        let is_ended = |queued: &mut QueuedAcquire| field(&queued.call).is_some_and(|it| ended.contains(it));
        let cancelled: Vec<_> = lock(&self.queue).waiting.extract_if(.., is_ended).collect();
        let not_sent = || redis_error::not_sent("not sent: its hold was released first", &self.slot.address);
        cancelled.into_iter().for_each(|queued| drop(queued.caller.send(Err(not_sent()))));
    }

    fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        drop(waiting);
        self.clear_in_flight();
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
                let deadline = after(Instant::now(), shared.slot.node_timeout);
                let batch = shared.next_batch();
                if batch.is_empty() {
                    shared.queued.notified().await;
                    continue;
                }
                match shared.link(deadline).await {
                    Ok(link) => shared.run_batch(&link, batch, deadline).await,
                    Err(failure) => {
                        shared.clear_in_flight();
                        for QueuedAcquire { caller, .. } in batch {
                            let _ = caller.send(Err(failure.clone()));
                        }
                    }
                }
            }
        }
    }

    fn next_batch(&self) -> Vec<QueuedAcquire> {
        let mut queue = lock(&self.queue);
        queue.waiting.retain(|queued| !queued.caller.is_closed());
        let size = queue.waiting.len().min(MAX_BATCH);
        let batch: Vec<QueuedAcquire> = queue.waiting.drain(..size).collect();
        queue.in_flight = batch.iter().filter_map(|queued| field(&queued.call).cloned()).collect();
        batch
    }

    /// Returns the connection for acquires, once the connection for commands that it is paired with is live.
    async fn link(&self, deadline: Instant) -> Result<Link, Failure> {
        loop {
            // Only the slot for commands knows why there is no connection.
            if let Some(main) = &self.slot.main {
                main.link_for_call(deadline).await?;
            }
            let link = self.slot.link_for_call(deadline).await?;
            if self.slot.is_current(&link) {
                return Ok(link);
            }
            self.slot.discard(link.id, "the connection for commands was replaced");
            if Instant::now() >= deadline {
                let why = "there was no connection in time";
                return Err(self.slot.explain(redis_error::not_sent(why, &self.slot.address)));
            }
        }
    }

    /// Sends the whole batch at once, then one `WAIT` for the acquires that were granted.
    async fn run_batch(&self, link: &Link, batch: Vec<QueuedAcquire>, deadline: Instant) {
        let slot = &self.slot;
        let asking: Vec<bool> = batch.iter().map(|queued| queued.asking).collect();
        let (calls, callers): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|queued| (queued.call, queued.caller)).unzip();
        let (replies, _) = slot.replies(link, &calls, &asking, false, deadline).await;
        self.clear_in_flight();
        // If the link is not current, all answers are those of an old master, not only the grants: one of them may be READONLY. The
        // callers count as unanswered, and a request that may wait asks the new master after a pause, in the time that it has.
        let is_current = slot.is_current(link);
        let mut granted = Vec::new();
        for ((call, reply), caller) in calls.into_iter().zip(replies).zip(callers) {
            match reply {
                Ok(_) if !is_current => drop(caller.send(Err(self.replaced(&call)))),
                Ok(reply) if reply.is_grant() => granted.push((call, reply, caller)),
                reply => drop(caller.send(reply)),
            }
        }
        if !granted.is_empty() {
            self.acknowledge(link, granted).await;
        }
    }

    /// Answers the callers of these grants: once enough replicas have what was written over the connection, they are granted.
    async fn acknowledge(&self, link: &Link, granted: Vec<(Call, Reply, Caller)>) {
        let (slot, Replicas { count, wait }) = (&self.slot, self.replicas);
        // Rounded up, since zero means forever.
        let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(MAX_WAIT).min(MAX_WAIT);
        let least = u32::try_from(count).unwrap_or(u32::MAX);
        let mut commands = vec![redis::cmd("WAIT").arg(least).arg(millis).take()];
        commands.extend(self.checks_data.then(info_replication));
        let deadline = after(Instant::now(), slot.node_timeout.saturating_add(wait));
        let before = link.connection.answers();
        let (by, info) = match timeout_at(deadline, link.connection.send_all(&commands, Some(deadline))).await
        {
            Ok(Ok(answers)) => {
                let mut answers = answers.into_iter();
                (Ok(answers.next().unwrap_or(Value::Nil).extract_error()), answers.next())
            }
            Ok(Err(error)) => (Ok(Err(error)), None),
            // `timed_out` returns the reason, if the server and the network are not to blame.
            Err(_) => (Err(slot.timed_out(link, before, deadline)), None),
        };
        if let Ok(Err(error)) = &by {
            slot.discard_after(link, error);
        }
        // If it was a replica in the meantime, the connection is dropped.
        let is_other = info.is_some_and(|info| !slot.has_same_data(link, info));
        // Otherwise the acknowledgements may come from an old master's replicas.
        let is_current = slot.is_current(link);
        for (call, reply, caller) in granted {
            let failure = match &by {
                _ if is_other => redis_error::other_data(&call, &slot.address),
                _ if !is_current => self.replaced(&call),
                Ok(Ok(Value::Int(by))) if u64::try_from(*by).is_ok_and(|by| by >= count as u64) => {
                    let _ = caller.send(Ok(reply));
                    continue;
                }
                Ok(Ok(by)) => {
                    let by = if let Value::Int(by) = by { *by } else { 0 };
                    redis_error::unacknowledged(by, self.replicas, &slot.address)
                }
                // The acquire itself has run, even if the `WAIT` was refused.
                Ok(Err(error)) => {
                    let failed = redis_error::failed(error.clone(), &call, &slot.address);
                    slot.explain(Failure::unknown(failed.error))
                }
                Err(why) => slot.unanswered(&call, why.as_deref()),
            };
            let _ = caller.send(Err(failure));
        }
    }

    /// Forgets the acquires in flight: each was answered, or has timed out.
    fn clear_in_flight(&self) {
        lock(&self.queue).in_flight.clear();
        self.answered.notify_waiters();
    }

    fn replaced(&self, call: &Call) -> Failure {
        self.slot.explain(redis_error::connection_replaced(call, &self.slot.address))
    }
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
