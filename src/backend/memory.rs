//! A master in this process, as a backend; and what is done to it from outside.

use std::fmt;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use crate::backend::connection::redis_error;
use crate::backend::{Backend, BoxFuture};
use crate::base::{Events, Failure, Outcome, after};
use crate::error::{Error, ErrorKind};
use crate::memory::{Held, Memory, Slip};
use crate::wire::{Call, Reply};

/// What errors name as the server.
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

    /// Sends a call. It runs in its turn from then on, also where its answer is not awaited.
    fn send(&self, call: Call) -> Result<Slip, Failure> {
        let now = Instant::now();
        let slip = self.memory.visit(|store| store.is_joined(self.client).then(|| store.arrive(call, now)));
        slip.ok_or_else(|| redis_error::not_sent("not sent: this `Locks` was closed", &ADDRESS))
    }

    /// No call is answered in its first poll, as none is over a network.
    async fn first_poll(&self) {
        #[cfg(test)]
        if self.memory.visit(|store| store.prompt) {
            return;
        }
        yield_now().await;
    }

    async fn answer(&self, call: Call) -> Result<Reply, Failure> {
        let deadline = after(Instant::now(), self.node_timeout);
        let slip = self.send(call.clone())?;
        self.first_poll().await;
        self.read(&call, &slip, deadline).await
    }

    async fn answer_all(&self, calls: Vec<Call>) -> Vec<Result<Reply, Failure>> {
        let deadline = after(Instant::now(), self.node_timeout);
        let slips: Vec<_> =
            calls.into_iter().map(|call| self.send(call.clone()).map(|slip| (call, slip))).collect();
        self.first_poll().await;
        let mut replies = Vec::with_capacity(slips.len());
        for sent in slips {
            replies.push(match sent {
                Ok((call, slip)) => self.read(&call, &slip, deadline).await,
                Err(failure) => Err(failure),
            });
        }
        replies
    }

    /// Waits for the answer: till the deadline, or for ever where the answer was dropped.
    async fn read(&self, call: &Call, slip: &Slip, deadline: Instant) -> Result<Reply, Failure> {
        loop {
            // Made before the look: what comes between is not missed.
            let worked = self.memory.worked();
            match slip.get() {
                Some(Some(reply)) => return Ok(reply.clone()),
                Some(None) => return Err(broken(call)),
                None => {}
            }
            let now = Instant::now();
            if now >= deadline {
                // As over a network: a silent connection is replaced, and what is owed is sent at once.
                self.memory.visit(|store| store.returning.insert(self.client));
                self.work_soon();
                return Err(redis_error::unanswered(call, self.node_timeout, &ADDRESS));
            }
            let stalled = self.memory.visit(|store| {
                store.work(now);
                store.stalled_until
            });
            if slip.get().is_none() {
                let _ = timeout_at(stalled.unwrap_or(deadline).min(deadline), worked).await;
            }
        }
    }

    /// What a client is told unasked comes from a task of its own: whoever subscribes has other things locked.
    fn work_soon(&self) {
        // Without a runtime, or with one that ends first, the next command brings them along; waiters poll meanwhile.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let memory = self.memory.clone();
        drop(runtime.spawn(async move {
            while let Some(until) = memory.visit(|store| {
                store.work(Instant::now());
                store.stalled_until
            }) {
                tokio::time::sleep_until(until).await;
            }
        }));
    }
}

/// The store came back empty before the answer.
fn broken(call: &Call) -> Failure {
    let message = format!("the connection was lost before the answer to `{}` came; try again", call.name());
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
        self.work_soon();
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
    /// Deletes the key of a lock, as `DEL` would on a server; false: it was free.
    ///
    /// Its holder loses it ([`Loss::Gone`](crate::Loss::Gone)) and waiters go on, both at once: everybody is made to ask. `key`
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

    /// Answers no command from now on, for so long, as a server that was stopped.
    ///
    /// Commands that come meanwhile run when it is over. Leases go on passing. [`Duration::ZERO`] ends an earlier stall.
    ///
    /// Longer than the node timeout, and commands fail as [`Unavailable`](crate::ErrorKind::Unavailable); longer than a lease,
    /// and holds that could not be renewed are lost.
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
            store.worked = true;
            store.work(now);
        });
    }

    /// Lets the next `n` commands run, and their answers never come.
    ///
    /// Whoever sent them can't know whether they ran. Each is given up after the node timeout, and put right in the
    /// background. Zero ends an earlier call's effect.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Memory};
    /// let store = Memory::new();
    /// let stock = Locks::builder().memory(&store).connect().await?.mutex("stock");
    /// store.drop_replies(1);
    /// let guard = stock.lock().await?; // asks again after the node timeout
    /// assert_eq!(stock.hold_count(), 1);
    /// guard.release().await
    /// # }
    /// ```
    pub fn drop_replies(&self, n: usize) {
        self.visit(|store| store.unanswered = n);
    }

    /// Comes back without any lock and at once, as a server without persistence does when it is restarted.
    ///
    /// Holders lose their locks in moments. A stall is over, and no more answers are dropped. As one of several masters it costs
    /// them nothing: it is given what it lacks, and has no vote for a [`longest_lease`](crate::Builder::longest_lease).
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
            store.work(now);
        });
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Shown(Held, Duration);
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
        let standing: std::collections::BTreeMap<_, _> = self.visit(|store| {
            let standing = store.standing(now).into_iter();
            standing.map(|(key, held)| (key.clone(), Shown(held.clone(), held.left(now)))).collect()
        });
        f.debug_struct("Memory").field("locks", &standing).finish()
    }
}

#[cfg(test)]
mod tests;
