//! The checks of a new command connection, before a call is sent over it.

use std::sync::Arc;

use redis::{RedisResult, Value};
use tokio::time::Instant;

use crate::backend::connection::commands::Commands;
use crate::backend::connection::connection::Line;
use crate::backend::connection::data_watch::{self, DataWatch};
use crate::backend::connection::redis_error;
use crate::backend::connection::server_info::{field, was_replica};
use crate::base::telemetry;
use crate::error::{Error, ErrorKind, Result};

/// What a connection is made for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Purpose {
    /// The server is one of several masters: settings that may let two owners hold a lock are logged as warnings.
    pub(crate) one_of_several: bool,
    /// The first connection reads whether the server may evict keys.
    pub(crate) reads_policy: bool,
    /// The server's age has to be known before any of its answers can count as a vote.
    pub(crate) needs_age: bool,
    /// The server may turn out to be a replica.
    pub(crate) may_be_replica: bool,
    /// Whether `WAIT` is sent over it.
    pub(crate) sends_wait: bool,
    /// The server's `run_id` has to be known: both connections of a pair have the same, and each master has another.
    pub(crate) needs_run_id: bool,
}

impl Purpose {
    /// Checks the server at the other end. Returns its `run_id` if it is needed and the user may read it.
    pub(crate) async fn check(
        self,
        connection: &Commands,
        line: &Line,
        data: &DataWatch,
        address: &Arc<str>,
    ) -> Result<Option<Arc<str>>> {
        let unreachable = |error| redis_error::unreachable(error, address);
        check_serving(connection).await.map_err(unreachable)?;
        if self.may_be_replica && !is_master(connection).await.map_err(unreachable)? {
            return Err(Error::new(ErrorKind::Unavailable, NO_MASTER).at(address));
        }
        if self.needs_age {
            let info = read_age(connection, line, data).await.map_err(unreachable)?;
            // A failover is ordinary for a master that sentinels name, and its second id stays: each new client would wait.
            if self.one_of_several && !self.may_be_replica && was_replica(&info) {
                line.server_info.distrust_uptime();
            }
        }
        if self.one_of_several && line.server_info.clock().is_none() {
            read_clock(connection, line).await.map_err(unreachable)?;
        }
        if self.reads_policy && !line.server_info.is_policy_read() {
            read_policy(connection, line).await.map_err(unreachable)?;
        }
        if self.sends_wait {
            check_wait(connection, address).await?;
        }
        if !self.needs_run_id {
            return Ok(None);
        }
        let info = info(connection, "server").await.map_err(unreachable)?;
        Ok(field(&info, "run_id").map(Arc::from))
    }
}

const NO_MASTER: &str =
    "it was named as the master, but reports that it is a replica: a failover is not complete yet";

/// Fails while the server loads its data: it then accepts connections and credentials, but refuses commands.
async fn check_serving(connection: &Commands) -> RedisResult<()> {
    let answer = connection.send(&redis::cmd("PING"), None).await?;
    match answer.extract_error() {
        // The right to PING is not required: the server refuses for lack of it only once it serves commands.
        Err(error) if error.code() != Some("NOPERM") => Err(error),
        _ => Ok(()),
    }
}

/// Returns whether the server is a master. Uses `HELLO`, which unlike `ROLE` needs no right.
async fn is_master(connection: &Commands) -> RedisResult<bool> {
    let answer = connection.send(&redis::cmd("HELLO"), None).await?.extract_error()?;
    let Value::Map(properties) = answer else { return Ok(true) };
    let text = |value: &Value| redis::from_redis_value_ref::<String>(value).unwrap_or_default();
    Ok(properties.iter().all(|(name, value)| text(name) != "role" || text(value) == "master"))
}

/// Checks the right to `WAIT`, with zero replicas, so that it returns at once.
async fn check_wait(connection: &Commands, address: &Arc<str>) -> Result<()> {
    let answer = connection.send(redis::cmd("WAIT").arg(0).arg(1), None).await;
    let Err(error) = answer.and_then(Value::extract_error) else { return Ok(()) };
    Err(match redis_error::answer(&error) {
        Some(text) => {
            let message = format!(
                "`replicas` needs the command WAIT, which the server refuses: {text}; grant the right `+wait`, or remove the \
                 option `replicas`"
            );
            Error::new(ErrorKind::Config, message).at(address).because(error)
        }
        None => redis_error::unreachable(error, address),
    })
}

/// Reads the server's age, and returns the answers to `INFO`.
async fn read_age(connection: &Commands, line: &Line, data: &DataWatch) -> RedisResult<String> {
    // Sent before the age is read, so that data replaced after that is reported. The right to it is not required.
    data.start();
    let is_on = connection.send(&data_watch::command(), None).await?.extract_error().is_ok();
    let info = info(connection, "server").await? + &info(connection, "replication").await?;
    if !(is_on && data_watch::can_report(&info)) {
        data.stop();
    }
    if !line.server_info.update(&info, Instant::now()) {
        telemetry::age_unknown(&line.address);
    }
    Ok(info)
}

/// Reads the server's clock, at the first connection.
async fn read_clock(connection: &Commands, line: &Line) -> RedisResult<()> {
    let sent = Instant::now();
    let server = info(connection, "server").await?;
    line.server_info.set_clock(&server, sent, Instant::now());
    Ok(())
}

/// Warns at the first connection if the server may evict keys. Neither the right to `INFO memory` nor the field is required. It is
/// queried only once, since a server logs what it denies.
async fn read_policy(connection: &Commands, line: &Line) -> RedisResult<()> {
    let answer = connection.send(redis::cmd("INFO").arg("memory"), None).await?;
    line.server_info.set_policy_read();
    let info: String = redis::from_redis_value(answer).unwrap_or_default();
    match field(&info, "maxmemory_policy") {
        Some(policy) if policy != "noeviction" => telemetry::evicts(&line.address, policy),
        _ => {}
    }
    Ok(())
}

/// Returns a section of `INFO`, which is empty if the user lacks the right.
async fn info(connection: &Commands, section: &str) -> RedisResult<String> {
    let answer = connection.send(redis::cmd("INFO").arg(section), None).await?.extract_error();
    match answer {
        Ok(info) => Ok(redis::from_redis_value::<String>(info)?),
        Err(error) if redis_error::is_denied(&error) => Ok(String::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
