//! The time from a release until a waiter in another `Locks` holds the lock.

use std::time::{Duration, Instant};

use futures::StreamExt;
use nestlock::{Locks, Mutex};
use redis::AsyncCommands;
use redis::aio::PubSub;
use tokio::sync::oneshot;

use crate::floor::{Floor, Key};
use crate::rounds::Ways;
use crate::server::{Result, client_of, url};

/// After this time a waiter has asked, got "busy", and sleeps.
const ASLEEP: Duration = Duration::from_millis(4);

pub(crate) struct Handoffs {
    here: Floor,
    there: Floor,
    key: Key,
    messages: Option<PubSub>,
    holder: Mutex,
    waiter: Mutex,
}

impl Handoffs {
    /// Each `Locks` has connections of its own, like a process of its own.
    pub(crate) async fn new(ours: &Locks, others: &Locks) -> Result<Handoffs> {
        let key = Key::new("bench:raw-handoff");
        let mut messages = client_of(&url())?.get_async_pubsub().await?;
        messages.subscribe(&key.channel).await?;
        Ok(Handoffs {
            here: Floor::connect().await?,
            there: Floor::connect().await?,
            key,
            messages: Some(messages),
            holder: ours.mutex("bench:handoff"),
            waiter: others.mutex("bench:handoff"),
        })
    }

    /// Publishes a message, whose receiver makes one round trip.
    async fn raw(&mut self) -> Result<Duration> {
        let mut messages = self.messages.take().ok_or("an earlier hand-off failed")?;
        let (mut there, key) = (self.there.clone(), self.key.clone());
        let waiter = tokio::spawn(async move {
            messages.on_message().next().await.ok_or("the message connection was lost")?;
            there.acquire(&key, 1).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((Instant::now(), messages))
        });
        tokio::time::sleep(ASLEEP).await;
        let sent = Instant::now();
        let () = self.here.connection.publish(&self.key.channel, 0).await?;
        let (held, messages) = waiter.await??;
        self.messages = Some(messages);
        // Published on another channel: the next waiter must not be notified.
        let quiet = Key { channel: "bench:nobody".to_owned(), ..self.key.clone() };
        self.there.release(&quiet, 0).await?;
        Ok(held - sent)
    }

    async fn ours(&self) -> Result<Duration> {
        let guard = self.holder.lock().await?;
        let (sender, granted) = oneshot::channel();
        let waiting = self.waiter.clone();
        let waiter = tokio::spawn(async move {
            let guard = waiting.lock().await?;
            // No receiver is left if the release failed.
            let _ = sender.send(Instant::now());
            guard.release().await
        });
        tokio::time::sleep(ASLEEP).await;
        let sent = Instant::now();
        guard.release().await?;
        let held = granted.await?;
        waiter.await??;
        Ok(held - sent)
    }
}

impl Ways for Handoffs {
    const NAMES: &'static [&'static str] =
        &["a message and one round trip, raw", "a release, and a waiter elsewhere holds"];

    async fn once(&mut self, way: usize) -> Result<Duration> {
        match way {
            0 => self.raw().await,
            _ => self.ours().await,
        }
    }
}
