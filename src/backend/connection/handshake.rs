//! What a new command connection has to show before anything is asked over it.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tokio::time::Instant;

use crate::backend::connection::connection::Line;
use crate::backend::connection::redis_error;
use crate::backend::connection::server_info::field;
use crate::base::telemetry;
use crate::error::{Error, ErrorKind, Result};

/// What a connection is made for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Purpose {
    /// It is one of several masters: what may let two of them hold a lock is warned of.
    pub(crate) several: bool,
    /// The server's age has to be known, before any of its answers can count as a vote.
    pub(crate) ages: bool,
    /// Whoever named the server may be wrong about its being a master.
    pub(crate) doubts: bool,
    /// Replicas are waited for over it.
    pub(crate) waits: bool,
    /// It has another one beside it, or is that one: both have to be to the same server.
    pub(crate) paired: bool,
}

impl Purpose {
    /// Looks at the server at the other end. Tells by what it is known from others, where that is asked and told.
    pub(crate) async fn examine(
        self,
        connection: &mut MultiplexedConnection,
        line: &Line,
        address: &Arc<str>,
    ) -> Result<Option<Arc<str>>> {
        let unreachable = |error| redis_error::unreachable(error, address);
        serves(connection).await.map_err(unreachable)?;
        if self.doubts && !is_master(connection).await.map_err(unreachable)? {
            return Err(Error::new(ErrorKind::Unavailable, NO_MASTER).at(address));
        }
        if self.ages {
            learn_age(connection, line).await.map_err(unreachable)?;
        }
        if self.several && line.vitals.clock().is_none() {
            warn_of(connection, line).await.map_err(unreachable)?;
        }
        if self.waits {
            can_wait(connection, address).await?;
        }
        if !self.paired {
            return Ok(None);
        }
        let told = info(connection, "server").await.map_err(unreachable)?;
        Ok(field(&told, "run_id").map(Arc::from))
    }
}

const NO_MASTER: &str =
    "it was named as the master, and says that it is a replica: a failover is not through yet";

/// A server that loads its data takes connections and credentials, and refuses all else.
async fn serves(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    let answer = connection.send_packed_command(&redis::cmd("PING")).await?;
    match answer.extract_error() {
        // A user need not have the right to PING; what matters is that commands are served.
        Err(error) if error.code() != Some("NOPERM") => Err(error),
        _ => Ok(()),
    }
}

/// By `HELLO`, which needs no right, unlike `ROLE`.
async fn is_master(connection: &mut MultiplexedConnection) -> RedisResult<bool> {
    let answer = connection.send_packed_command(&redis::cmd("HELLO")).await?.extract_error()?;
    let Value::Map(told) = answer else { return Ok(true) };
    let text = |value: &Value| redis::from_redis_value_ref::<String>(value).unwrap_or_default();
    Ok(told.iter().all(|(name, value)| text(name) != "role" || text(value) == "master"))
}

/// For no replica, which is over at once.
async fn can_wait(connection: &mut MultiplexedConnection, address: &Arc<str>) -> Result<()> {
    let answer = connection.send_packed_command(redis::cmd("WAIT").arg(0).arg(1)).await;
    let Err(error) = answer.and_then(Value::extract_error) else { return Ok(()) };
    Err(match redis_error::answer(&error) {
        Some(text) => {
            let told = format!(
                "`replicas` needs the command WAIT, which the server refuses: {text}; grant the right `+wait`, or do \
                 without `replicas`"
            );
            Error::new(ErrorKind::Config, told).at(address).because(error)
        }
        None => redis_error::unreachable(error, address),
    })
}

async fn learn_age(connection: &mut MultiplexedConnection, line: &Line) -> RedisResult<()> {
    let told = info(connection, "server").await? + &info(connection, "replication").await?;
    if !line.vitals.learn(&told, Instant::now()) {
        telemetry::age_unknown(&line.address);
    }
    Ok(())
}

/// At the first connection: what the server's clock says, and whether it removes keys to make room for others.
async fn warn_of(connection: &mut MultiplexedConnection, line: &Line) -> RedisResult<()> {
    let asked = Instant::now();
    let told = info(connection, "server").await?;
    line.vitals.learn_clock(&told, asked, Instant::now());
    if let Some(policy) = field(&info(connection, "memory").await?, "maxmemory_policy")
        && policy != "noeviction"
    {
        telemetry::evicts(&line.address, policy);
    }
    Ok(())
}

/// Empty where the user has not the right.
async fn info(connection: &mut MultiplexedConnection, section: &str) -> RedisResult<String> {
    let answer = connection.send_packed_command(redis::cmd("INFO").arg(section)).await?.extract_error();
    match answer {
        Ok(info) => Ok(redis::from_redis_value::<String>(info)?),
        Err(error) if redis_error::is_denied(&error) => Ok(String::new()),
        Err(error) => Err(error),
    }
}
