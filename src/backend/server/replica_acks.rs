//! Acquires that count only once replicas have acknowledged them.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::backend::connection::{Line, Link, ask_all, redis_error};
use crate::backend::server::reconnect::Reconnector;
use crate::base::{Failure, Outcome, after, lock};
use crate::config::Replicas;
use crate::wire::{Call, Count, Reply};

/// So many acquires share one `WAIT`.
const MOST: usize = 500;

/// A `WAIT` ends after this at the latest: the server refuses what its clock can't count.
const LONGEST: u64 = u32::MAX as u64;

/// A connection for acquires alone, since `WAIT` holds up all that is behind it, and the task that asks over it.
pub(crate) struct ReplicaAcks {
    desk: Arc<Desk>,
    task: AbortHandle,
}

/// Where acquires are brought to.
struct Desk {
    line: Arc<Line>,
    replicas: Replicas,
    node_timeout: Duration,
    /// Whether they wait for a connection, where there is none.
    patient: bool,
    counter: Mutex<AckQueue>,
    brought: Notify,
    answered: Notify,
}

#[derive(Default)]
struct AckQueue {
    /// Not sent yet: nothing of them will run if they are taken away.
    waiting: Vec<Wanted>,
    /// The fields of those that were sent and not answered.
    asked: Vec<Arc<str>>,
    last: u64,
    /// Nobody serves here any more.
    closed: bool,
}

struct Wanted {
    id: u64,
    call: Call,
    /// Behind an `ASKING`: the slot is only on the way to this node.
    asking: bool,
    answer: oneshot::Sender<Result<Reply, Failure>>,
}

/// What is to be told to its caller once replicas have it.
struct PendingGrant {
    call: Call,
    reply: Reply,
    caller: oneshot::Sender<Result<Reply, Failure>>,
}

impl ReplicaAcks {
    pub(crate) fn start(
        keeper: Reconnector,
        replicas: Replicas,
        node_timeout: Duration,
        patient: bool,
    ) -> ReplicaAcks {
        let (counter, brought, answered) = Default::default();
        let line = keeper.line();
        tokio::spawn(keeper.run());
        let desk = Arc::new(Desk { line, replicas, node_timeout, patient, counter, brought, answered });
        let task = tokio::spawn(desk.clone().serve()).abort_handle();
        ReplicaAcks { desk, task }
    }

    /// Brings an acquire, and waits for what becomes of it. Dropped before it was sent, it never is.
    pub(crate) async fn ask(&self, call: Call, asking: bool) -> Result<Reply, Failure> {
        let (answer, answered) = oneshot::channel();
        let unanswered = redis_error::unanswered(&call, self.desk.node_timeout, &self.desk.line.address);
        let id = self.desk.bring(call, asking, answer);
        let _taken_back = scopeguard::guard(id, |id| self.desk.take_back(id));
        // The task ends when all is closed, or with its runtime, and lets go of all that wait.
        answered.await.unwrap_or_else(|_| Err(self.desk.line.explain(unanswered)))
    }

    /// Waits until no acquire of these holds may run any more, so that its end does not come before it: they go over
    /// different connections. It is not waited for longer than for an answer, and one that was not sent is not sent any more.
    pub(crate) async fn passed(&self, calls: &[Call]) {
        self.desk.withdraw(calls);
        let until = after(Instant::now(), self.desk.node_timeout);
        loop {
            let answered = self.desk.answered.notified();
            let mut answered = std::pin::pin!(answered);
            answered.as_mut().enable();
            if !self.desk.is_asked_any(calls) || timeout_at(until, answered).await.is_err() {
                return;
            }
        }
    }

    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.desk.line
    }

    pub(crate) fn close(&self) {
        self.desk.line.close();
        self.task.abort();
    }
}

impl Desk {
    fn bring(&self, call: Call, asking: bool, answer: oneshot::Sender<Result<Reply, Failure>>) -> u64 {
        let mut counter = lock(&self.counter);
        counter.last += 1;
        let id = counter.last;
        if !counter.closed {
            counter.waiting.push(Wanted { id, call, asking, answer });
        }
        drop(counter);
        self.brought.notify_one();
        id
    }

    /// Takes those back whose holds are to end. 1. One of several masters is slow, and its grant is not waited for. 2. The lock is
    /// released. 3. The acquire goes out behind that: a field that nobody holds.
    fn withdraw(&self, calls: &[Call]) {
        let withdrawn: Vec<Wanted> = {
            let mut counter = lock(&self.counter);
            if counter.waiting.is_empty() {
                return;
            }
            let ends = |call: &&Call| matches!(call, Call::Release { count: 0, .. });
            let ended: HashSet<&Arc<str>> = calls.iter().filter(ends).filter_map(field).collect();
            let is_ended =
                |wanted: &mut Wanted| field(&wanted.call).is_some_and(|field| ended.contains(field));
            counter.waiting.extract_if(.., is_ended).collect()
        };
        for wanted in withdrawn {
            let why = "not sent: it was given up before its turn came";
            let _ = wanted.answer.send(Err(redis_error::not_sent(why, &self.line.address)));
        }
    }

    fn close(&self) {
        let mut counter = lock(&self.counter);
        counter.closed = true;
        let waiting = std::mem::take(&mut counter.waiting);
        drop(counter);
        drop(waiting);
        self.heard();
    }

    fn take_back(&self, id: u64) {
        lock(&self.counter).waiting.retain(|wanted| wanted.id != id);
    }

    fn is_asked_any(&self, calls: &[Call]) -> bool {
        let counter = lock(&self.counter);
        let is_asked = |call| field(call).is_some_and(|field| counter.asked.contains(field));
        !counter.asked.is_empty() && calls.iter().any(is_asked)
    }

    fn serve(self: Arc<Self>) -> impl Future<Output = ()> + Send {
        // Dropped with its runtime, maybe before its first poll.
        let desk = scopeguard::guard(self, |desk| desk.close());
        async move {
            loop {
                // Not behind `taken`: whoever finds one of them asked waits for no less than until then.
                let deadline = after(Instant::now(), desk.node_timeout);
                let batch = desk.taken();
                if batch.is_empty() {
                    desk.brought.notified().await;
                } else {
                    desk.grant(batch, deadline).await;
                }
            }
        }
    }

    fn taken(&self) -> Vec<Wanted> {
        let mut counter = lock(&self.counter);
        let some = counter.waiting.len().min(MOST);
        let batch: Vec<Wanted> = counter.waiting.drain(..some).collect();
        counter.asked = batch.iter().filter_map(|wanted| field(&wanted.call).cloned()).collect();
        batch
    }

    /// All at once, then one `WAIT` for those that were granted.
    async fn grant(&self, batch: Vec<Wanted>, deadline: Instant) {
        match self.link(deadline).await {
            Ok(mut link) => {
                let granted = self.asked(&mut link, batch, deadline).await;
                if !granted.is_empty() {
                    let had = self.acknowledged(&mut link).await;
                    let had = if self.line.is_together(&link) { had } else { Acknowledged::Parted };
                    granted.into_iter().for_each(|granted| self.tell(granted, &had));
                }
            }
            Err(Failure { outcome, error }) => {
                self.heard();
                for wanted in batch {
                    let _ = wanted.answer.send(Err(Failure { outcome, error: error.again() }));
                }
            }
        }
    }

    /// The connection for acquires, once the one for commands stands that it goes with.
    async fn link(&self, deadline: Instant) -> Result<Link, Failure> {
        let link = async |line: &Line| if self.patient { line.link(deadline).await } else { line.link_now() };
        loop {
            // Why there is none is known to this one.
            if let Some(main) = &self.line.main {
                link(main).await?;
            }
            let link = link(&self.line).await?;
            if self.line.is_together(&link) {
                return Ok(link);
            }
            self.line.lost(&link, "the connection for commands was replaced");
            if Instant::now() >= deadline {
                return Err(self
                    .line
                    .explain(redis_error::not_sent("there was no connection in time", &self.line.address)));
            }
        }
    }

    /// Those that were granted; the others are told at once.
    async fn asked(&self, link: &mut Link, batch: Vec<Wanted>, deadline: Instant) -> Vec<PendingGrant> {
        let before = link.answers();
        let asking: Vec<bool> = batch.iter().map(|wanted| wanted.asking).collect();
        let (calls, callers): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|wanted| (wanted.call, wanted.answer)).unzip();
        let mut answers: Vec<Option<RedisResult<Value>>> = calls.iter().map(|_| None).collect();
        if timeout_at(deadline, ask_all(link, &calls, |at| asking[at], &mut answers, deadline)).await.is_err()
        {
            self.line.silent(link, before);
        }
        self.heard();
        // Also what else it says is an old master's word then.
        let together = self.line.is_together(link);
        let mut granted = Vec::new();
        for ((call, answer), caller) in calls.into_iter().zip(answers).zip(callers) {
            let reply = match answer {
                Some(answer) => self.line.decoded(link, &call, answer),
                None => Err(self.unanswered(&call)),
            };
            match reply {
                Ok(_) if !together => drop(caller.send(Err(self.parted(&call)))),
                Ok(reply @ (Reply::Done | Reply::Token(_))) => {
                    granted.push(PendingGrant { call, reply, caller })
                }
                reply => drop(caller.send(reply)),
            }
        }
        granted
    }

    fn tell(&self, granted: PendingGrant, acknowledged: &Acknowledged) {
        let PendingGrant { call, reply, caller } = granted;
        let enough = |had: i64| u64::try_from(had).is_ok_and(|had| had >= self.replicas.count as u64);
        let reply = match acknowledged {
            Acknowledged::By(had) if enough(*had) => Ok(reply),
            Acknowledged::By(had) => {
                Err(redis_error::unacknowledged(*had, self.replicas, &self.line.address))
            }
            Acknowledged::Refused(error) => {
                let failed = redis_error::failed(error.clone(), &call, &self.line.address);
                // The acquire itself did run.
                Err(self.line.explain(Failure { outcome: Outcome::Unknown, ..failed }))
            }
            Acknowledged::Parted => Err(self.parted(&call)),
            Acknowledged::Silent => Err(self.unanswered(&call)),
        };
        let _ = caller.send(reply);
    }

    /// All that was sent was answered, or is not waited for any more.
    fn heard(&self) {
        lock(&self.counter).asked.clear();
        self.answered.notify_waiters();
    }

    fn parted(&self, call: &Call) -> Failure {
        self.line.explain(redis_error::parted(call, &self.line.address))
    }

    fn unanswered(&self, call: &Call) -> Failure {
        self.line.explain(redis_error::unanswered(call, self.node_timeout, &self.line.address))
    }

    /// How many replicas have what was written over this connection.
    async fn acknowledged(&self, link: &mut Link) -> Acknowledged {
        let Replicas { count, wait } = self.replicas;
        // Begun milliseconds count: none at all would be for ever.
        let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(LONGEST).min(LONGEST);
        let mut command = redis::cmd("WAIT");
        command.arg(u32::try_from(count).unwrap_or(u32::MAX)).arg(millis);
        let deadline = after(Instant::now(), self.node_timeout.saturating_add(wait));
        let before = link.answers();
        let answer = timeout_at(deadline, link.send_whenever(&command)).await;
        match answer.map(|answer| answer.and_then(Value::extract_error)) {
            Ok(Ok(Value::Int(had))) => Acknowledged::By(had),
            Ok(Ok(_)) => Acknowledged::By(0),
            Ok(Err(error)) => {
                self.line.look_at(link, &error);
                Acknowledged::Refused(error)
            }
            Err(_) => {
                self.line.silent(link, before);
                Acknowledged::Silent
            }
        }
    }
}

enum Acknowledged {
    By(i64),
    /// By whomever: the connection for commands goes elsewhere now.
    Parted,
    Refused(redis::RedisError),
    Silent,
}

/// Whether replicas have to acknowledge it. The next token as well, where it is made apart from its hold: else the replica that takes
/// over may hand it out again.
pub(crate) fn counts(call: &Call) -> bool {
    matches!(call, Call::Acquire { .. } | Call::Count { ask: Count::Next, .. })
}

fn field(call: &Call) -> Option<&Arc<str>> {
    match call {
        Call::Acquire { field, .. }
        | Call::Release { field, .. }
        | Call::Renew { field, .. }
        | Call::Settle { field, .. } => Some(field),
        Call::Force { .. } | Call::Look { .. } | Call::Count { .. } => None,
    }
}

#[cfg(test)]
mod tests;
