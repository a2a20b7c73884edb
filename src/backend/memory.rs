//! A `Memory` as a backend.

mod faults;

use std::fmt;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use crate::backend::connection::redis_error;
use crate::backend::{Backend, BoxFuture, tokio_now};
use crate::base::{Events, Failure, after, boxed, join_all};
use crate::error::{Error, ErrorKind};
use crate::memory::{Memory, PendingReply};
use crate::wire::{Call, CallResult};

pub use faults::Faults;

/// The server's address in errors.
static ADDRESS: LazyLock<Arc<str>> = LazyLock::new(|| "an in-memory store".into());

/// One client of a store.
pub(crate) struct InMemory {
    memory: Memory,
    client: u64,
    node_timeout: Duration,
}

impl InMemory {
    pub(crate) fn join(memory: &Memory, node_timeout: Duration, events: Weak<dyn Events>) -> Arc<InMemory> {
        let client = memory.visit(|store| store.join(events));
        Arc::new(InMemory { memory: memory.clone(), client, node_timeout })
    }

    /// Sends a call, which then runs even if its reply is not awaited.
    fn send(&self, call: Call) -> Result<PendingReply, Failure> {
        let now = tokio_now();
        let reply = self.memory.visit(|store| store.is_joined(self.client).then(|| store.receive(call, now)));
        reply.ok_or_else(|| redis_error::not_sent("not sent: this `Locks` was closed", &ADDRESS))
    }

    /// Yields once: as over a network, no call is answered in its first poll.
    async fn first_poll(&self) {
        #[cfg(test)]
        if self.memory.visit(|store| store.prompt) {
            return;
        }
        yield_now().await;
    }

    /// Runs a call, until the node timeout.
    async fn answer(&self, call: Call) -> CallResult {
        let deadline = after(Instant::now(), self.node_timeout);
        let pending = self.send(call.clone())?;
        self.first_poll().await;
        loop {
            // Created before the check, so that a reply in between is not missed.
            let progress = self.memory.progress();
            match pending.get() {
                Some(Some(reply)) => return Ok(reply.clone()),
                Some(None) => return Err(broken(&call)),
                None => {}
            }
            let now = Instant::now();
            if now >= deadline {
                // As over a network, a connection without answers is replaced, and pending events are sent at once.
                self.memory.visit(|store| store.reconnecting.insert(self.client));
                self.run_backlog_soon();
                return Err(redis_error::unanswered(&call, self.node_timeout, None, &ADDRESS));
            }
            let stalled = self.memory.visit(|store| {
                store.run_backlog(now);
                store.stalled_until
            });
            if pending.get().is_none() {
                let _ = timeout_at(stalled.unwrap_or(deadline).min(deadline), progress).await;
            }
        }
    }

    /// Delivers events from a task of their own: the caller of `subscribe` may hold other locks.
    fn run_backlog_soon(&self) {
        // Without a runtime, or with one that ends first, the next command delivers them; until then waiters poll.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let memory = self.memory.clone();
        drop(runtime.spawn(boxed(async move {
            while let Some(until) = memory.visit(|store| {
                store.run_backlog(Instant::now());
                store.stalled_until
            }) {
                tokio::time::sleep_until(until).await;
            }
        })));
    }
}

/// The failure of a call if the store was restarted before the answer.
fn broken(call: &Call) -> Failure {
    let message =
        format!("the connection was lost before the answer to `{}` arrived; try again", call.name());
    Failure::unknown(Error::new(ErrorKind::Unavailable, message).at(&ADDRESS))
}

impl Backend for InMemory {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<CallResult> {
        Box::pin(async move { self.answer(call).await })
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<CallResult>> {
        // All are sent before the first is answered, since each is polled at once.
        Box::pin(async move { join_all(calls.into_iter().map(|call| self.answer(call))).await })
    }

    /// Runs them at once, unless the store is stalled.
    fn run_last(&self, calls: Vec<Call>) {
        calls.into_iter().for_each(|call| drop(self.send(call)));
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        let now = Instant::now();
        self.memory.visit(|store| store.restarted.is_some_and(|at| now < after(at, age)))
    }

    fn subscribe(&self, channel: &str) {
        self.memory.visit(|store| store.subscribe(self.client, channel));
        self.run_backlog_soon();
    }

    fn unsubscribe(&self, channel: &str) {
        self.memory.visit(|store| store.unsubscribe(self.client, channel));
    }

    fn is_portable(&self) -> bool {
        true
    }

    fn close(&self) {
        self.memory.visit(|store| store.leave(self.client));
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InMemory").field(&self.client).finish()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = Instant::now();
        let live: std::collections::BTreeMap<_, _> = self.visit(|store| {
            store.live(now).into_iter().map(|(key, held)| (key.clone(), held.holder(now))).collect()
        });
        f.debug_struct("Memory").field("locks", &live).finish()
    }
}

#[cfg(test)]
mod tests;
