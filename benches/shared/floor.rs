//! The floor: what a lock and its release cost on the wire, by the redis crate alone.

use redis::Script;
use redis::aio::MultiplexedConnection;

use crate::server::{Result, connection_to, url};

pub(crate) const ACQUIRE: &str =
    concat!(include_str!("../../lua/serve.lua"), include_str!("../../lua/acquire.lua"));
pub(crate) const RELEASE: &str = concat!(
    include_str!("../../lua/serve.lua"),
    include_str!("../../lua/hold.lua"),
    include_str!("../../lua/release.lua")
);

/// A field of the same length as those that the crate writes.
pub(crate) const FIELD: &str = "01234567-89ab-cdef-0123-456789abcdef:1234";

/// The key and the channel of one name.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) key: String,
    pub(crate) channel: String,
}

impl Key {
    pub(crate) fn new(key: impl Into<String>) -> Key {
        let key = key.into();
        Key { channel: format!("redisson_lock__channel:{{{key}}}"), key }
    }
}

/// A connection that runs the scripts, and does nothing else: no timeout, no check of the replies.
#[derive(Clone)]
pub(crate) struct Floor {
    pub(crate) connection: MultiplexedConnection,
    acquire: String,
    release: String,
}

impl Floor {
    pub(crate) async fn connect() -> Result<Floor> {
        Floor::to(&url()).await
    }

    pub(crate) async fn to(url: &str) -> Result<Floor> {
        let mut connection = connection_to(url).await?;
        let acquire = Script::new(ACQUIRE).prepare_invoke().load_async(&mut connection).await?;
        let release = Script::new(RELEASE).prepare_invoke().load_async(&mut connection).await?;
        Ok(Floor { connection, acquire, release })
    }

    /// Takes the lock, or raises the count of its field to `count`.
    pub(crate) async fn acquire(&mut self, at: &Key, count: u32) -> Result<()> {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.acquire).arg(1).arg(&at.key).arg(FIELD).arg(count).arg(30_000);
        granted(cmd.query_async(&mut self.connection).await?)
    }

    /// Lowers the count of the field to `count`; zero ends the hold.
    pub(crate) async fn release(&mut self, at: &Key, count: u32) -> Result<()> {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.release).arg(1).arg(&at.key).arg(FIELD).arg(count).arg(&at.channel);
        granted(cmd.query_async(&mut self.connection).await?)
    }

    pub(crate) async fn pair(&mut self, at: &Key) -> Result<()> {
        self.acquire(at, 1).await?;
        self.release(at, 0).await
    }
}

/// Checks a reply: a floor that did not do the work would be too low.
fn granted(reply: i64) -> Result<()> {
    // From -4 down it means released, and how many clients are subscribed.
    if matches!(reply, -1 | ..=-4) { Ok(()) } else { Err(format!("the script answered {reply}").into()) }
}
