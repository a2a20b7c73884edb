//! A `Memory` as a backend, and the methods by which tests make it fail.

use std::fmt;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use crate::backend::connection::redis_error;
use crate::backend::{Backend, BoxFuture};
use crate::base::{Events, Failure, Outcome, after};
use crate::error::{Error, ErrorKind};
use crate::memory::{Memory, PendingReply, StoredLock};
use crate::wire::{Call, Reply};

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
        let now = Instant::now();
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

    async fn answer(&self, call: Call) -> Result<Reply, Failure> {
        let deadline = after(Instant::now(), self.node_timeout);
        let reply = self.send(call.clone())?;
        self.first_poll().await;
        self.wait_for(&reply, &call, deadline).await
    }

    async fn answer_all(&self, calls: Vec<Call>) -> Vec<Result<Reply, Failure>> {
        let deadline = after(Instant::now(), self.node_timeout);
        let pending: Vec<_> =
            calls.into_iter().map(|call| self.send(call.clone()).map(|reply| (call, reply))).collect();
        self.first_poll().await;
        let mut replies = Vec::with_capacity(pending.len());
        for sent in pending {
            replies.push(match sent {
                Ok((call, reply)) => self.wait_for(&reply, &call, deadline).await,
                Err(failure) => Err(failure),
            });
        }
        replies
    }

    /// Waits for the reply until the deadline.
    async fn wait_for(
        &self,
        pending: &PendingReply,
        call: &Call,
        deadline: Instant,
    ) -> Result<Reply, Failure> {
        loop {
            // Created before the check, so that a reply in between is not missed.
            let progress = self.memory.progress();
            match pending.get() {
                Some(Some(reply)) => return Ok(reply.clone()),
                Some(None) => return Err(broken(call)),
                None => {}
            }
            let now = Instant::now();
            if now >= deadline {
                // As over a network, a connection without answers is replaced, and pending events are sent at once.
                self.memory.visit(|store| store.reconnecting.insert(self.client));
                self.run_backlog_soon();
                return Err(redis_error::unanswered(call, self.node_timeout, None, &ADDRESS));
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
        drop(runtime.spawn(async move {
            while let Some(until) = memory.visit(|store| {
                store.run_backlog(Instant::now());
                store.stalled_until
            }) {
                tokio::time::sleep_until(until).await;
            }
        }));
    }
}

/// The failure of a call if the store was restarted before the answer.
fn broken(call: &Call) -> Failure {
    let message =
        format!("the connection was lost before the answer to `{}` arrived; try again", call.name());
    Failure { outcome: Outcome::Unknown, error: Error::new(ErrorKind::Unavailable, message).at(&ADDRESS) }
}

impl Backend for InMemory {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<Result<Reply, Failure>> {
        Box::pin(async move { self.answer(call).await })
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        Box::pin(async move { self.answer_all(calls).await })
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

impl Memory {
    /// Deletes the key of a lock, as `DEL` would on a server. Returns false if it was free.
    ///
    /// The holder is notified of the loss ([`Loss::Gone`](crate::Loss::Gone)) at once, and waiters try again at once. `key`
    /// is the prefix, if there is one, followed by the lock's name: those that share a store may have different prefixes. Unlike
    /// [`force_release`](crate::Mutex::force_release) it needs no `Locks`, and no await.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Memory};
    /// let store = Memory::new();
    /// let locks = Locks::builder().memory(&store).prefix("app:").connect().await?;
    /// let guard = locks.mutex("stock").lock().await?;
    /// assert!(!store.lose("stock")); // no such key
    /// assert!(store.lose("app:stock"));
    /// assert_eq!(guard.lost().await, nestlock::Loss::Gone);
    /// # Ok(()) }
    /// ```
    pub fn lose(&self, key: impl AsRef<str>) -> bool {
        self.visit(|store| store.lose(key.as_ref(), Instant::now()))
    }

    /// Runs no command for `duration` from now on, like a server that was stopped.
    ///
    /// Commands that arrive in that time run at its end. Leases continue to run out. [`Duration::ZERO`] ends an earlier stall.
    ///
    /// In a stall longer than the node timeout, commands fail with [`Unavailable`](crate::ErrorKind::Unavailable). In one longer
    /// than a lease, holds are lost, since they can't be renewed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
    /// use std::time::Duration;
    /// use nestlock::{ErrorKind, Locks, Loss, Memory};
    /// let store = Memory::new();
    /// let stock = Locks::builder().memory(&store).connect().await?.mutex("stock");
    /// let guard = stock.lock().await?;
    /// store.stall(Duration::from_secs(60));
    /// assert_eq!(stock.is_locked().await.unwrap_err().kind(), ErrorKind::Unavailable);
    /// assert_eq!(guard.lost().await, Loss::Expired);
    /// # Ok(()) }
    /// ```
    pub fn stall(&self, duration: Duration) {
        let now = Instant::now();
        self.visit(|store| {
            store.stalled_until = (!duration.is_zero()).then(|| after(now, duration));
            store.progressed = true;
            store.run_backlog(now);
        });
    }

    /// Runs the next `n` commands and drops their replies.
    ///
    /// Their sender can't know whether they ran. Each of them times out after the node timeout, and what it left is corrected
    /// in the background. Zero ends the effect of an earlier call.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Memory};
    /// let store = Memory::new();
    /// let stock = Locks::builder().memory(&store).connect().await?.mutex("stock");
    /// store.drop_replies(1);
    /// let guard = stock.lock().await?; // tries again after the node timeout
    /// assert_eq!(stock.hold_count(), 1);
    /// guard.release().await
    /// # }
    /// ```
    pub fn drop_replies(&self, n: usize) {
        self.visit(|store| store.unanswered = n);
    }

    /// Drops all locks at once, like a restart of a server without persistence.
    ///
    /// Holders are notified of the loss shortly after. A stall ends, and no more replies are dropped. If the store is one of several
    /// masters, their holds stay: they are written to it again, and it has no vote for a
    /// [`longest_lease`](crate::Builder::longest_lease).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Loss, Memory};
    /// let store = Memory::new();
    /// let guard = Locks::builder().memory(&store).connect().await?.mutex("stock").lock().await?;
    /// store.restart_empty();
    /// assert_eq!(guard.lost().await, Loss::Gone);
    /// # Ok(()) }
    /// ```
    pub fn restart_empty(&self) {
        let now = Instant::now();
        self.visit(|store| {
            store.restart(now);
            store.run_backlog(now);
        });
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Shown(StoredLock, Duration);
        impl fmt::Debug for Shown {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut out = f.debug_struct("Held");
                out.field("field", &self.0.field)
                    .field("count", &self.0.count)
                    .field("left", &self.1)
                    .finish()
            }
        }
        let now = Instant::now();
        let live: std::collections::BTreeMap<_, _> = self.visit(|store| {
            let live = store.live(now).into_iter();
            live.map(|(key, held)| (key.clone(), Shown(held.clone(), held.left(now)))).collect()
        });
        f.debug_struct("Memory").field("locks", &live).finish()
    }
}

#[cfg(test)]
mod tests;
