//! The raw commands, as if they were a lock that is always free.

use futures::StreamExt;
use redis::AsyncCommands;
use redis::aio::PubSub;

use crate::driver::{Lock, Peer, Result};
use crate::floor::{Floor, Key};
use crate::server::{client_of, url};

#[derive(Clone)]
pub(crate) struct Raw(Floor);

impl Raw {
    pub(crate) async fn connect() -> Result<Raw> {
        Ok(Raw(Floor::connect().await?))
    }
}

pub(crate) struct Pairs {
    floor: Floor,
    key: Key,
    count: u32,
    messages: Option<PubSub>,
}

impl Peer for Raw {
    type Lock = Pairs;
    type Kept = ();
    const NESTS: bool = true;
    const RENEWS: bool = false;
    const WAITS: bool = false;
    /// It also sends `publish`, but that is left out, since the release script publishes too.
    const SENDS: &'static [&'static str] = &["evalsha", "subscribe"];

    fn lock(&self, name: &str) -> Pairs {
        Pairs { floor: self.0.clone(), key: Key::new(name), count: 0, messages: None }
    }

    async fn keep(&self, _: String) -> Result<()> {
        Err("raw commands keep nothing".into())
    }

    async fn end((): ()) -> Result<()> {
        Ok(())
    }
}

impl Lock for Pairs {
    async fn acquire(&mut self) -> Result<()> {
        self.count += 1;
        self.floor.acquire(&self.key, self.count).await
    }

    async fn release(&mut self) -> Result<()> {
        self.count -= 1;
        self.floor.release(&self.key, self.count).await
    }

    async fn hold(&mut self) -> Result<()> {
        Ok(())
    }

    /// Receives a message, and makes one round trip.
    async fn wait(&mut self) -> Result<()> {
        if self.messages.is_none() {
            let mut messages = client_of(&url())?.get_async_pubsub().await?;
            messages.subscribe(&self.key.channel).await?;
            self.messages = Some(messages);
        }
        let messages = self.messages.as_mut().ok_or("nothing is subscribed to")?;
        messages.on_message().next().await.ok_or("the message connection was lost")?;
        self.acquire().await
    }

    async fn free(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(self.floor.connection.publish(&self.key.channel, 0).await?);
        }
        // Published on another channel: the next waiter must not be notified.
        self.count = 0;
        let quiet = Key { channel: "peers:nobody".to_owned(), ..self.key.clone() };
        self.floor.release(&quiet, 0).await
    }
}
