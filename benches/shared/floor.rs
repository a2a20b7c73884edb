//! The floor: what a lock and its release cost on the wire, by the redis crate alone.

use redis::Script;
use redis::aio::MultiplexedConnection;

use crate::server::{Result, connection_to, url};

pub(crate) const ACQUIRE: &str = include_str!("../../lua/acquire.lua");
pub(crate) const RELEASE: &str =
    concat!(include_str!("../../lua/hold.lua"), include_str!("../../lua/release.lua"));

/// As long as the fields that the crate writes.
pub(crate) const FIELD: &str = "01234567-89ab-cdef-0123-456789abcdef:1234";

/// One name on the wire.
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

    pub(crate) async fn acquire(&mut self, at: &Key) -> Result<()> {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.acquire).arg(1).arg(&at.key).arg(FIELD).arg(1).arg(30_000);
        granted(cmd.query_async(&mut self.connection).await?)
    }

    pub(crate) async fn release(&mut self, at: &Key) -> Result<()> {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.release).arg(1).arg(&at.key).arg(FIELD).arg(0).arg(&at.channel);
        granted(cmd.query_async(&mut self.connection).await?)
    }

    pub(crate) async fn pair(&mut self, at: &Key) -> Result<()> {
        self.acquire(at).await?;
        self.release(at).await
    }
}

/// A floor that did not do the work would be too low.
fn granted(reply: i64) -> Result<()> {
    if reply == -1 { Ok(()) } else { Err(format!("the script answered {reply}").into()) }
}
