//! The checks of a new command connection, before a call is sent over it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use redis::{Cmd, RedisResult, Value};
use tokio::time::Instant;

use crate::backend::connection::data_watch::{self, DataWatch};
use crate::backend::connection::redis_error;
use crate::backend::connection::server_info::{field, was_replica};
use crate::backend::connection::slot::ConnectionSlot;
use crate::backend::resp::{Connection, text};
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
    /// The server may have become a replica: its role is read, and a replica is refused.
    pub(crate) checks_role: bool,
    /// Whether `WAIT` is sent over it.
    pub(crate) sends_wait: bool,
    /// The server's `run_id` has to be known: both connections of a pair have the same, and each master has another.
    pub(crate) needs_run_id: bool,
}

impl Purpose {
    /// Checks the server at the other end. Returns its `run_id` if it is needed and the user may read it.
    pub(crate) async fn check(
        self,
        connection: &Connection,
        slot: &ConnectionSlot,
        data: &DataWatch,
        address: &Arc<str>,
    ) -> Result<Option<Arc<str>>> {
        let unreachable = |error| redis_error::unreachable(error, address);
        let info = &slot.server_info;
        let needs_clock = self.one_of_several && info.clock().is_none();
        let needs_server = self.needs_age || needs_clock || self.needs_run_id;
        let questions = [
            Some(redis::cmd("PING")),
            // Unlike `ROLE` it needs no right.
            self.checks_role.then(|| redis::cmd("HELLO")),
            // Sent before the age is read, so that data replaced after that is reported. The right to this command is not required.
            self.needs_age.then(data_watch::command),
            needs_server.then(|| section("server")),
            self.needs_age.then(|| section("replication")),
            // Read only once, since a server logs what it denies.
            (self.reads_policy && !info.is_eviction_policy_read.load(Relaxed)).then(|| section("memory")),
            // It waits for zero replicas, so it returns at once.
            self.sends_wait.then(|| redis::cmd("WAIT").arg(0).arg(1).take()),
        ];
        // In one write: over a slow network, a round trip for each of them would take longer than an attempt to connect may take.
        let all: Vec<Cmd> = questions.iter().flatten().cloned().collect();
        if self.needs_age {
            data.start();
        }
        let sent = Instant::now();
        let mut answers = connection.send_all(&all, None).await.map_err(unreachable)?.into_iter();
        let now = Instant::now();
        let [serving, role, watched, server, replication, memory, waited] =
            questions.map(|question| question.and_then(|_| answers.next()));

        check_serving(serving).map_err(unreachable)?;
        if !is_master(role).map_err(unreachable)? {
            return Err(Error::new(ErrorKind::Unavailable, NO_MASTER).at(address));
        }
        let server = text_of(server).map_err(unreachable)?;
        if self.needs_age {
            let age = server.clone() + &text_of(replication).map_err(unreachable)?;
            let is_on = watched.is_some_and(|answer| answer.extract_error().is_ok());
            if !(is_on && data_watch::can_report(&age)) {
                data.stop();
            }
            if !info.update(&age, now) {
                telemetry::age_unknown(&slot.address);
            }
            // Not for a master that sentinels name: after any failover its second id stays set, and each new client would distrust
            // it for a `restart_delay`.
            if self.one_of_several && !self.checks_role && was_replica(&age) {
                info.distrust_uptime();
            }
        }
        if needs_clock {
            info.set_clock(&server, sent, now);
        }
        if let Some(memory) = memory {
            read_policy(memory, slot);
        }
        if let Some(waited) = waited {
            check_wait(waited, address)?;
        }
        Ok(field(&server, "run_id").filter(|_| self.needs_run_id).map(Arc::from))
    }
}

const NO_MASTER: &str =
    "it was named as the master, but reports that it is a replica: a failover is not complete yet";

fn section(name: &str) -> Cmd {
    redis::cmd("INFO").arg(name).take()
}

/// Fails while the server loads its data: it then accepts connections and credentials, but refuses commands.
fn check_serving(ping: Option<Value>) -> RedisResult<()> {
    match ping.map(Value::extract_error) {
        // PING is not required. A server that refuses it for lack of the right, or of the command, may still load its data: the first call
        // finds that then.
        Some(Err(error)) if !redis_error::is_withheld(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Returns whether the answer to `HELLO`, if it was sent, is that of a master.
fn is_master(hello: Option<Value>) -> RedisResult<bool> {
    let Some(Value::Map(properties)) = hello.map(Value::extract_error).transpose()? else { return Ok(true) };
    Ok(properties.iter().all(|(name, value)| text(name) != Some("role") || text(value) == Some("master")))
}

/// Checks the right to `WAIT` by its answer.
fn check_wait(answer: Value, address: &Arc<str>) -> Result<()> {
    let Err(error) = answer.extract_error() else { return Ok(()) };
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

/// Warns if the server may evict keys, by its answer to `INFO memory`. Neither the right to that command nor the field is required.
fn read_policy(memory: Value, slot: &ConnectionSlot) {
    slot.server_info.is_eviction_policy_read.store(true, Relaxed);
    let info: String = redis::from_redis_value(memory).unwrap_or_default();
    if let Some(policy) = field(&info, "maxmemory_policy").filter(|policy| *policy != "noeviction") {
        telemetry::evicts(&slot.address, policy);
    }
}

/// Returns a section of `INFO`, which is empty if it was not asked for, if the user lacks the right, or if the command was renamed.
fn text_of(info: Option<Value>) -> RedisResult<String> {
    match info.map(Value::extract_error).transpose() {
        Ok(info) => info.map_or(Ok(String::new()), |info| Ok(redis::from_redis_value::<String>(info)?)),
        Err(error) if redis_error::is_withheld(&error) => Ok(String::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
