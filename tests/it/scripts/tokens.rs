//! Fencing tokens: what the scripts of a fenced lock do with its counter.

mod counters;

use redis::RedisResult;

use super::*;
use crate::support::scripts::{count_body, fenced_body};

pub(super) const COUNTER: &str = "redisson_lock_token:{order:1}";

pub(super) const DAY: &str = "86400000";

/// The highest number that a counter can have.
const LAST: &str = "9223372036854775807";

impl Wire {
    pub(super) async fn fenced(&mut self, script: &str, around: &str, args: &[&str]) -> RedisResult<Value> {
        redis::Script::new(&fenced_body(script, around))
            .key(KEY)
            .key(COUNTER)
            .arg(args)
            .invoke_async(&mut self.redis)
            .await
    }

    /// Runs an acquire whose token is at least `least`. The counter is kept for the time `stays`.
    pub(super) async fn try_take(
        &mut self,
        field: &str,
        count: &str,
        least: &str,
        stays: &str,
    ) -> RedisResult<Value> {
        self.fenced("acquire", "token", &[field, count, &LEASE.to_string(), least, stays]).await
    }

    async fn take(&mut self, field: &str, least: &str) -> Value {
        self.try_take(field, "1", least, DAY).await.unwrap()
    }

    /// Runs only the commands for the counter, as is done while the lock is on another node.
    async fn count(&mut self, ask: &str, least: &str) -> Value {
        redis::Script::new(&count_body())
            .key(COUNTER)
            .key(COUNTER)
            .arg(&[ask, least, DAY])
            .invoke_async(&mut self.redis)
            .await
            .unwrap()
    }

    /// Runs a renewal of a hold with this token.
    async fn try_raise(&mut self, field: &str, token: &str, stays: &str) -> RedisResult<Value> {
        self.fenced("renew", "raise", &[field, &LEASE.to_string(), token, stays]).await
    }

    async fn raise(&mut self, field: &str, token: &str) -> Value {
        self.try_raise(field, token, DAY).await.unwrap()
    }

    /// Runs a settle of a hold with this token. With `create` it is a repair.
    async fn mend(&mut self, field: &str, count: &str, create: &str, token: &str, stays: &str) -> Value {
        let args = [field, count, CHANNEL, "PUBLISH", &LEASE.to_string(), create, token, stays];
        self.fenced("settle", "raise", &args).await.unwrap()
    }

    async fn count_from(&mut self, counter: &str) {
        self.ask::<()>(&["SET", COUNTER, counter]).await;
    }

    async fn counter(&mut self) -> Option<String> {
        self.ask(&["GET", COUNTER]).await
    }

    /// Returns the counter's remaining time in seconds; -1 means for ever.
    async fn stays(&mut self) -> i64 {
        self.ask(&["TTL", COUNTER]).await
    }

    /// Returns everything about the counter's key.
    async fn counter_state(&mut self) -> (Value, i64) {
        (self.ask(&["DUMP", COUNTER]).await, self.ask(&["PEXPIRETIME", COUNTER]).await)
    }

    /// Returns the server's time in microseconds.
    async fn time(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = self.ask(&["TIME"]).await;
        seconds * 1_000_000 + micros
    }
}

fn token(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn number(answer: Value) -> u64 {
    redis::from_redis_value(answer).unwrap()
}

/// Returns why the raise was deferred.
fn deferred(answer: Value) -> String {
    let Value::BulkString(why) = answer else { panic!("not deferred: {answer:?}") };
    String::from_utf8(why).unwrap()
}

#[tokio::test]
async fn a_token_is_the_counter_plus_one_or_the_least_that_is_asked_for() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    for (counter, least, expected) in [
        (None, "1700000000000000", "1700000000000000"),
        (Some("0"), "1", "1"),
        (Some("1"), "1", "2"),
        (Some("5"), "9", "9"),
        (Some("8"), "9", "9"),
        (Some("9"), "9", "10"),
        // Numbers are compared by length, then as text: neither "10" < "9" nor 2^53 = 2^53 + 1.
        (Some("10"), "9", "11"),
        (Some("99"), "9", "100"),
        (Some("9007199254740992"), "9007199254740993", "9007199254740993"),
        (Some("9007199254740993"), "9007199254740993", "9007199254740994"),
        (Some("9007199254740993"), "9007199254740992", "9007199254740994"),
        (Some("9223372036854775805"), "1700000000000000", "9223372036854775806"),
        (Some("9223372036854775806"), "9223372036854775806", LAST),
        (Some("9223372036854775806"), LAST, LAST),
        (Some("-3"), "2", "2"),
        (Some("-100"), "2", "2"),
    ] {
        wire.clear().await;
        if let Some(counter) = counter {
            wire.count_from(counter).await;
        }
        assert_eq!(wire.take(OURS, least).await, token(expected), "{counter:?} {least}");
        assert_eq!(wire.counter().await.as_deref(), Some(expected));
        assert_eq!(wire.fields().await, held(&[(OURS, "1")]));
    }
}

#[tokio::test]
async fn without_a_least_it_is_the_servers_time_or_more() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let (mut before, mut begun) = (0, false);
    // Waits until a second has just begun: then its microseconds are short numbers.
    while !begun {
        let from = wire.time().await;
        let given = number(wire.take(OURS, "").await);
        assert!((from..=wire.time().await).contains(&given), "{given} is not the time, which was {from}");
        assert!(given > before);
        begun = before > 0 && given / 1_000_000 > before / 1_000_000;
        before = given;
        wire.release(OURS, 0).await;
    }
    // A clock that is behind the counter changes nothing.
    let ahead = before + 3_600_000_000;
    wire.count_from(&ahead.to_string()).await;
    assert_eq!(number(wire.take(OURS, "").await), ahead + 1);
}

#[tokio::test]
async fn a_repeated_acquire_of_the_holder_returns_the_same_token() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.count_from("41").await;
    assert_eq!(wire.take(OURS, "7").await, token("42"));
    // These are a repeat, a late repeat with a higher least, and a re-entry.
    assert_eq!(wire.take(OURS, "7").await, token("42"));
    assert_eq!(wire.take(OURS, "1700000000000000").await, token("42"));
    assert_eq!(wire.try_take(OURS, "2", "1700000000000000", DAY).await.unwrap(), token("42"));
    assert_eq!(wire.counter().await.as_deref(), Some("42"));
    assert_eq!(wire.fields().await, held(&[(OURS, "2")]));
    wire.release(OURS, 0).await;
    assert_eq!(wire.take(THEIRS, "7").await, token("43"));
    // If the counter is deleted under a holder, it starts again.
    wire.ask::<()>(&["DEL", COUNTER]).await;
    assert_eq!(wire.take(THEIRS, "1700000000000000").await, token("1700000000000000"));
}

#[tokio::test]
async fn a_refused_acquire_leaves_the_counter_alone() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.take(THEIRS, "7").await;
    let before = wire.counter_state().await;
    assert!(is_busy(&wire.take(OURS, "1700000000000000").await));
    assert_eq!(wire.try_take(OURS, "2", "1700000000000000", "").await.unwrap(), GONE);
    assert_eq!(wire.counter_state().await, before);
    wire.release(THEIRS, 0).await;
    assert_eq!(wire.try_take(OURS, "2", "1700000000000000", "").await.unwrap(), GONE);
    assert_eq!(wire.counter_state().await, before);
    wire.ask::<()>(&["SET", KEY, "x"]).await;
    assert_eq!(wire.take(OURS, "1700000000000000").await, status("string"));
    assert_eq!(wire.counter_state().await, before);
}

#[tokio::test]
async fn what_deals_with_no_token_leaves_the_counter_alone() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.count_from("41").await;
    let before = wire.counter_state().await;
    wire.acquire(OURS, 1, LEASE).await;
    wire.acquire(OURS, 2, LEASE).await;
    wire.renew(OURS, LEASE).await;
    wire.settle(OURS, 1, LEASE).await;
    wire.release(OURS, 0).await;
    wire.acquire(OURS, 1, LEASE).await;
    wire.look().await;
    wire.force().await;
    assert_eq!(wire.counter_state().await, before);
}

#[tokio::test]
async fn what_comes_late_lets_no_token_fall() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    // 1. An acquire gets no answer. 2. It is settled to its end. 3. It runs after all: its hold has no holder, and its token is not used
    // again.
    assert_eq!(wire.settle(OURS, 0, LEASE).await, GONE);
    assert_eq!(wire.take(OURS, "7").await, token("7"));
    wire.force().await;
    assert_eq!(wire.take(THEIRS, "3").await, token("8"));
    // The raise of a holder that is gone arrives under the next holder.
    assert_eq!(wire.raise(OURS, "70").await, GONE);
    assert_eq!(wire.fields().await, held(&[(THEIRS, "1")]));
    wire.release(THEIRS, 0).await;
    assert_eq!(wire.take("c:1", "9").await, token("71"));
}

#[tokio::test]
async fn a_counter_alone_counts_as_it_does_beside_its_lock() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let status = |text: &str| Value::SimpleString(text.to_owned());
    assert_eq!(wire.count("look", "").await, bulk("0"));
    assert!(server.keys().await.is_empty(), "a look wrote something");
    assert_eq!(wire.count("next", "5").await, bulk("5"));
    assert_eq!(wire.count("next", "5").await, bulk("6"));
    assert_eq!(wire.count("next", "90").await, bulk("90"));
    assert_eq!(wire.count("raise", "7").await, bulk("90"));
    assert_eq!(wire.count("raise", "91").await, bulk("91"));
    assert_eq!(wire.count("look", "").await, bulk("0"));
    assert_eq!(wire.ask::<String>(&["GET", COUNTER]).await, "91");
    assert!(wire.ask::<i64>(&["PTTL", COUNTER]).await > 80_000_000);
    let Value::BulkString(token) = wire.count("next", "").await else { panic!("no token") };
    assert!(
        String::from_utf8(token).unwrap().parse::<u64>().unwrap() > 1_600_000_000_000_000,
        "not the time"
    );
    // Redisson's counter has no TTL, and gets none here.
    wire.ask::<()>(&["SET", COUNTER, "3"]).await;
    assert_eq!(wire.count("next", "").await.clone(), bulk(&wire.ask::<String>(&["GET", COUNTER]).await));
    assert_eq!(wire.ask::<i64>(&["PTTL", COUNTER]).await, -1);
    wire.ask::<()>(&["SET", COUNTER, LAST]).await;
    for ask in ["look", "next"] {
        assert_eq!(wire.count(ask, "").await, status("counter end"), "{ask}");
    }
    assert_eq!(wire.count("raise", "7").await, bulk(LAST));
    wire.ask::<()>(&["SET", COUNTER, "x"]).await;
    assert_eq!(wire.count("next", "").await, status("counter string"));
    wire.ask::<()>(&["DEL", COUNTER]).await;
    wire.ask::<()>(&["RPUSH", COUNTER, "x"]).await;
    for ask in ["look", "next", "raise"] {
        assert_eq!(wire.count(ask, "7").await, status("counter list"), "{ask}");
    }
}
