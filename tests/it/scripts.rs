//! The Lua files on a real server: what each may do to a key, shown by the executions that a rule forbids.
//!
//! The files run as they are, without the crate, so that a test can send late and repeated commands at will.

mod keep;
mod line;
mod moves;
mod random;
mod rules;
mod tokens;
mod trouble;

use std::collections::BTreeMap;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult, Value};

use crate::support::scripts::plain_body;
use crate::support::server::Server;

const KEY: &str = "order:1";
const CHANNEL: &str = "redisson_lock__channel:{order:1}";
const OURS: &str = "e4a85f5e-2103-4c02-ade1-d8e0aa7691bb:12";
const THEIRS: &str = "0f3c9a44-77e0-4e0c-8d1f-2b6d7c1f5a90:3";

/// The field that takes the place of our ended hold while the lock is kept.
const KEPT: &str = "e4a85f5e-2103-4c02-ade1-d8e0aa7691bb:0";

const DONE: Value = Value::Int(-1);
/// The reply to a release that ended a hold, with nobody subscribed to the lock's channel.
const ENDED: Value = Value::Int(-4);
const GONE: Value = Value::Int(-2);
const FREE: Value = Value::Int(-3);

/// So long that no lease ends while a test runs.
const LEASE: u64 = 300_000;

/// One connection to one server, and the scripts on it.
struct Wire {
    redis: MultiplexedConnection,
}

impl Wire {
    async fn to(server: &Server) -> Wire {
        Wire { redis: server.admin().await }
    }

    async fn ask<T: FromRedisValue>(&mut self, command: &[&str]) -> T {
        self.try_ask(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    async fn try_ask<T: FromRedisValue>(&mut self, command: &[&str]) -> RedisResult<T> {
        redis::cmd(command[0]).arg(&command[1..]).query_async(&mut self.redis).await
    }

    async fn run(&mut self, script: &str, args: &[&str]) -> RedisResult<Value> {
        file(script).key(KEY).arg(args).invoke_async(&mut self.redis).await
    }

    async fn try_acquire(&mut self, field: &str, count: u32, lease: u64) -> RedisResult<Value> {
        self.run("acquire", &[field, &count.to_string(), &lease.to_string()]).await
    }

    async fn acquire(&mut self, field: &str, count: u32, lease: u64) -> Value {
        self.try_acquire(field, count, lease).await.unwrap()
    }

    /// Runs an acquire that also asks who holds a busy lock.
    async fn acquire_naming(&mut self, field: &str, lease: u64) -> Value {
        self.run("acquire", &[field, "1", &lease.to_string(), "whose"]).await.unwrap()
    }

    async fn who(&mut self) -> RedisResult<Value> {
        self.run("who", &[]).await
    }

    async fn try_release(&mut self, field: &str, count: u32) -> RedisResult<Value> {
        self.run("release", &[field, &count.to_string(), CHANNEL]).await
    }

    async fn release(&mut self, field: &str, count: u32) -> Value {
        self.try_release(field, count).await.unwrap()
    }

    async fn try_keep(&mut self, field: &str, lease: u64) -> RedisResult<Value> {
        self.run("keep", &[field, KEPT, CHANNEL, "PUBLISH", &lease.to_string()]).await
    }

    async fn keep(&mut self, field: &str, lease: u64) -> Value {
        self.try_keep(field, lease).await.unwrap()
    }

    async fn try_renew(&mut self, field: &str, lease: u64) -> RedisResult<Value> {
        self.run("renew", &[field, &lease.to_string()]).await
    }

    async fn renew(&mut self, field: &str, lease: u64) -> Value {
        self.try_renew(field, lease).await.unwrap()
    }

    async fn try_settle(&mut self, field: &str, count: u32, lease: u64) -> RedisResult<Value> {
        self.run("settle", &[field, &count.to_string(), CHANNEL, "PUBLISH", &lease.to_string()]).await
    }

    async fn settle(&mut self, field: &str, count: u32, lease: u64) -> Value {
        self.try_settle(field, count, lease).await.unwrap()
    }

    async fn force(&mut self) -> Value {
        self.run("force", &[CHANNEL]).await.unwrap()
    }

    async fn look(&mut self) -> Value {
        self.run("look", &[]).await.unwrap()
    }

    /// Runs a look that also checks whether a hash is a lock.
    async fn look_naming(&mut self) -> Value {
        self.run("look", &["whose"]).await.unwrap()
    }

    /// Returns the content of the hash.
    async fn fields(&mut self) -> BTreeMap<String, String> {
        self.ask(&["HGETALL", KEY]).await
    }

    /// Returns when the key ends, by the server's clock: -1 for never, -2 if there is no key.
    async fn end(&mut self) -> i64 {
        self.ask(&["PEXPIRETIME", KEY]).await
    }

    /// Returns everything about the key.
    async fn state(&mut self) -> (Value, i64) {
        (self.ask(&["DUMP", KEY]).await, self.end().await)
    }

    async fn clear(&mut self) {
        self.ask::<()>(&["FLUSHALL"]).await;
    }

    /// Writes a hold as another program would, with a TTL of [`LEASE`].
    async fn plant(&mut self, field: &str, count: &str) {
        self.clear().await;
        self.ask::<()>(&["HSET", KEY, field, count]).await;
        self.ask::<()>(&["PEXPIRE", KEY, &LEASE.to_string()]).await;
    }

    /// Returns how many messages were published since the last call: on plain channels, and on sharded channels.
    async fn published(&mut self) -> [u64; 2] {
        let stats: String = self.ask(&["INFO", "commandstats"]).await;
        self.ask::<()>(&["CONFIG", "RESETSTAT"]).await;
        ["cmdstat_publish:calls=", "cmdstat_spublish:calls="].map(|stat| {
            let calls = stats.lines().find_map(|line| line.strip_prefix(stat));
            calls.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
        })
    }

    /// Frees the lock that `OURS` holds, as clients of a cluster do.
    async fn free_sharded(&mut self, way: &str) -> Value {
        let args: &[&str] = match way {
            "release" => &[OURS, "0", CHANNEL, "SPUBLISH"],
            "settle" => &[OURS, "0", CHANNEL, "SPUBLISH", "1000"],
            _ => &[CHANNEL, "SPUBLISH"],
        };
        self.run(way, args).await.unwrap()
    }
}

/// Returns one of the scripts, as the file is now.
fn file(script: &str) -> redis::Script {
    redis::Script::new(&plain_body(script))
}

fn held(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(field, count)| (field.to_string(), count.to_string())).collect()
}

fn status(kind: &str) -> Value {
    Value::SimpleString(kind.to_owned())
}

/// Returns the holder of a busy lock: the field and the count in the answer.
fn whose(answer: &Value) -> (&str, &str) {
    let Value::Array(parts) = answer else { panic!("not busy: {answer:?}") };
    let [Value::Int(1..), Value::BulkString(field), Value::BulkString(count)] = &parts[..] else {
        panic!("no holder is named: {answer:?}")
    };
    (str::from_utf8(field).unwrap(), str::from_utf8(count).unwrap())
}

/// Returns whether the answer is a TTL that is longer than the requested one, together with the time when the key ends.
fn is_longer(answer: &Value) -> bool {
    matches!(answer, Value::Array(parts) if matches!(parts[..], [Value::Int(1..), Value::Int(1..)]))
}

/// Returns whether the answer is the TTL of somebody else's hold.
fn is_busy(answer: &Value) -> bool {
    matches!(answer, Value::Int(0..))
}
