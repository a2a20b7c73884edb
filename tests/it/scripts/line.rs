//! The line of a lock: which fields wait for it, in which order, and which messages they get.

use futures::StreamExt;
use redis::RedisResult;

use super::*;
use crate::support::scripts::fenced_body;
use crate::support::soon;

const LINE: &str = "nestlock_line:{order:1}";
const WAKES: &str = "nestlock_wake:";
/// The arguments for the line: how many ms the lock is kept for a field that it is handed to, how many ms the line stays, and the prefix of
/// the channels of hints.
const TOLD: &str = "40000 90000 nestlock_wake:";

/// The fields of three processes besides that of `OURS`.
const FIRST: &str = THEIRS;
const SECOND: &str = "web@one:5be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a:7";
/// The field of a process that may not subscribe, so it polls.
const POLLS: &str = "7ce5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a:-4";
const THIRD: &str = "6ce5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a:18446744073709551615";

/// A channel whose message shows that no other message is under way.
const LAST: &str = "last";

impl Wire {
    async fn run_with_line(&mut self, script: &str, args: &[&str]) -> RedisResult<Value> {
        file(script).key(KEY).key(LINE).arg(args).invoke_async(&mut self.redis).await
    }

    async fn try_wait(&mut self, field: &str, mode: &str) -> RedisResult<Value> {
        let lease = LEASE.to_string();
        let args = [field, "1", &lease, TOLD, "again"];
        self.run_with_line("acquire", &args[..args.len() - usize::from(mode == "enter")]).await
    }

    /// Asks for the first time.
    async fn enter(&mut self, field: &str) -> Value {
        self.try_wait(field, "enter").await.unwrap()
    }

    /// Asks for a field that may already be in the line.
    async fn again(&mut self, field: &str) -> Value {
        self.try_wait(field, "again").await.unwrap()
    }

    /// Ends a hold or a request.
    async fn leave(&mut self, field: &str) -> Value {
        self.run_with_line("release", &[field, "0", CHANNEL, TOLD]).await.unwrap()
    }

    async fn force_on(&mut self) -> Value {
        self.run_with_line("force", &[CHANNEL, TOLD]).await.unwrap()
    }

    /// Returns the fields in the line, in order.
    async fn line(&mut self) -> Vec<String> {
        let members: Vec<String> = self.ask(&["ZRANGE", LINE, "0", "-1"]).await;
        members.iter().map(|member| member.strip_prefix(WAKES).unwrap().to_owned()).collect()
    }

    /// Makes `OURS` hold the lock while these fields wait in the line.
    async fn held_before(&mut self, waiting: &[&str]) {
        self.clear().await;
        assert_eq!(self.enter(OURS).await, DONE);
        for field in waiting {
            assert_eq!(in_line(&self.enter(field).await), (OURS, "1"));
        }
        assert_eq!(self.line().await, waiting);
    }

    async fn ttl(&mut self, key: &str) -> i64 {
        self.ask(&["PTTL", key]).await
    }
}

/// Returns the holder that the answer to a field in the line names: its field and its count.
fn in_line(answer: &Value) -> (&str, &str) {
    let Value::Array(parts) = answer else { panic!("not busy: {answer:?}") };
    let [Value::Int(1..), Value::BulkString(field), Value::BulkString(count), Value::Int(1..)] = &parts[..]
    else {
        panic!("not in the line: {answer:?}")
    };
    (str::from_utf8(field).unwrap(), str::from_utf8(count).unwrap())
}

/// The subscriptions of processes, and of clients that wait for messages of releases.
struct Ears {
    messages: redis::aio::PubSub,
}

impl Ears {
    /// Subscribes to the channels of these fields' processes.
    async fn of(server: &Server, fields: &[&str]) -> Ears {
        let mut messages = redis::Client::open(server.url()).unwrap().get_async_pubsub().await.unwrap();
        for field in fields {
            let (session, _) = field.rsplit_once(':').unwrap();
            messages.subscribe([WAKES, session].concat()).await.unwrap();
        }
        messages.subscribe(LAST).await.unwrap();
        Ears { messages }
    }

    /// Subscribes to the lock's own channel too, as a client that knows lines does.
    async fn and_releases(mut self) -> Ears {
        self.messages.subscribe([WAKES, CHANNEL].concat()).await.unwrap();
        self.messages.subscribe(CHANNEL).await.unwrap();
        self
    }

    /// Subscribes to the lock's own channel too, as a client that does not know lines does.
    async fn who_know_no_line(mut self) -> Ears {
        self.messages.subscribe(CHANNEL).await.unwrap();
        self
    }

    /// Returns what was published since the last call, with `released: ` before each message on the lock's
    /// own channel.
    async fn heard(&mut self, wire: &mut Wire) -> Vec<String> {
        wire.ask::<i64>(&["PUBLISH", LAST, ""]).await;
        let (mut messages, mut heard) = (self.messages.on_message(), Vec::new());
        loop {
            let message = soon("a message", messages.next()).await.unwrap();
            let text: String = message.get_payload().unwrap();
            match message.get_channel_name() {
                LAST => return heard,
                CHANNEL => heard.push(format!("released: {text}")),
                _ => heard.push(text),
            }
        }
    }
}

/// Otherwise a waiter at a server that was replaced would be answered "busy" for as long as others have turns at the new one.
#[tokio::test]
async fn a_replica_refuses_all_that_ask() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.held_before(&[FIRST]).await;
    wire.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    for (field, mode) in [(SECOND, "enter"), (SECOND, "again"), (FIRST, "again")] {
        let text = wire.try_wait(field, mode).await.unwrap_err().to_string();
        assert!(text.contains("read only replica") && text.contains("nothing written"), "{text}");
    }
    assert_eq!(wire.line().await, [FIRST]);
    let outside = wire.try_acquire(SECOND, 1, LEASE).await.unwrap_err().to_string();
    assert!(outside.contains("read only replica") && outside.contains("nothing written"), "{outside}");
}

#[tokio::test]
async fn who_finds_the_lock_busy_stands_at_the_end_of_the_line_and_keeps_its_place() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let _ears = Ears::of(&server, &[FIRST]).await;
    wire.held_before(&[FIRST, SECOND]).await;
    let before = wire.state().await;
    for (field, mode) in [(FIRST, "again"), (FIRST, "enter"), (THIRD, "again"), (SECOND, "again")] {
        assert_eq!(in_line(&wire.try_wait(field, mode).await.unwrap()), (OURS, "1"));
    }
    assert_eq!(wire.line().await, [FIRST, SECOND, THIRD]);
    // The last field leaves the line. If it enters again, it stands at the end.
    assert_eq!(wire.leave(THIRD).await, GONE);
    wire.enter(THIRD).await;
    assert_eq!(wire.line().await, [FIRST, SECOND, THIRD]);
    assert_eq!(wire.state().await, before);
    // The line stays for the longest time that any of its fields asked for.
    assert!((1..=90_000).contains(&wire.ttl(LINE).await));
    wire.ask::<()>(&["PEXPIRE", LINE, "600000"]).await;
    wire.again(FIRST).await;
    assert!(wire.ttl(LINE).await > 500_000);
    wire.ask::<()>(&["PERSIST", LINE]).await;
    wire.again(FIRST).await;
    assert!((1..=90_000).contains(&wire.ttl(LINE).await));
}

#[tokio::test]
async fn an_end_hands_the_lock_to_the_first_and_the_next_one_learns_when_to_ask() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST, SECOND, THIRD]).await.and_releases().await;
    wire.held_before(&[FIRST, SECOND, THIRD]).await;
    assert_eq!(wire.leave(OURS).await, ENDED);
    assert_eq!(wire.fields().await, held(&[(FIRST, "0")]));
    assert!((1..=40_000).contains(&wire.ttl(KEY).await));
    assert_eq!(wire.line().await, [SECOND, THIRD]);
    assert_eq!(ears.heard(&mut wire).await, ["3 - order:1", "7 40000 order:1"]);
    // A repeated end does nothing, since the lock isn't ours any more.
    assert_eq!(wire.leave(OURS).await, GONE);
    assert_eq!(in_line(&wire.again(SECOND).await), (FIRST, "0"));
    // The field takes over the lock, and a repeat changes nothing.
    for _ in 0..2 {
        assert_eq!(wire.again(FIRST).await, DONE);
        assert_eq!(wire.fields().await, held(&[(FIRST, "1")]));
    }
    assert!(wire.ttl(KEY).await > 200_000);
    assert_eq!(wire.leave(FIRST).await, ENDED);
    assert_eq!(wire.leave(SECOND).await, ENDED);
    assert_eq!(wire.fields().await, held(&[(THIRD, "0")]));
    // The line is empty, so clients that wait for the lock's own messages get one.
    assert_eq!(wire.leave(THIRD).await, Value::Int(-5));
    let heard = ears.heard(&mut wire).await;
    let third = "18446744073709551615";
    assert_eq!(
        heard,
        ["7 - order:1", &format!("{third} 40000 order:1"), &format!("{third} - order:1"), "released: 0"]
    );
    assert!(server.all_keys().await.is_empty());
}

/// The process that polls can't be notified that the lock was handed to it, so it asks by itself.
#[tokio::test]
async fn the_lock_is_handed_to_one_that_polls_and_the_next_one_asks_after_it() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST, SECOND]).await;
    wire.held_before(&[POLLS, FIRST, SECOND]).await;
    assert_eq!(wire.leave(OURS).await, ENDED);
    assert_eq!(wire.fields().await, held(&[(POLLS, "0")]));
    assert_eq!(wire.line().await, [FIRST, SECOND]);
    // The hint has the next field ask at once: it then learns that the holder is a process that may not publish.
    assert_eq!(ears.heard(&mut wire).await, ["3 0 order:1"]);
    assert_eq!(in_line(&wire.again(FIRST).await), (POLLS, "0"));
    assert_eq!(wire.again(POLLS).await, DONE);
    // A field that polls need not be notified when to ask. Its process may be gone, so the field after it is notified.
    wire.held_before(&[FIRST, POLLS, SECOND]).await;
    assert_eq!(wire.leave(OURS).await, ENDED);
    assert_eq!(ears.heard(&mut wire).await, ["3 - order:1", "7 40000 order:1"]);
    assert_eq!(wire.line().await, [POLLS, SECOND]);
}

/// A process that may not subscribe usually may not publish either. The processes that see such a field as the holder ask by themselves, so
/// the lock is handed to them without a message.
#[tokio::test]
async fn one_that_may_not_publish_hands_the_lock_on_if_its_field_says_that_it_polls() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    let mut wire = admin.login(&server, &["resetchannels", "+@all"]).await;
    let _ears = Ears::of(&server, &[FIRST]).await;
    // It asks for an expired lock before the first of the line does: that one is neither overtaken nor taken out of the line.
    admin.held_before(&[FIRST, POLLS]).await;
    admin.ask::<i64>(&["DEL", KEY]).await;
    assert_eq!(in_line(&wire.again(POLLS).await), (FIRST, "0"));
    for (holder, handed) in [(POLLS, held(&[(FIRST, "0")])), (OURS, held(&[]))] {
        admin.clear().await;
        assert_eq!(admin.enter(holder).await, DONE);
        assert_eq!(in_line(&admin.enter(FIRST).await), (holder, "1"));
        // It learns that nobody was told.
        let answer = if holder == POLLS { ENDED } else { Value::Array(vec![Value::Int(0)]) };
        assert_eq!(wire.leave(holder).await, answer, "{holder}");
        assert_eq!(admin.fields().await, handed, "{holder}");
    }
}

/// 1. A process that polls holds the lock. 2. The first of the line, which asks by itself, leaves. 3. The
/// next one learns when the lease ends, but no message reports the release to it.
#[tokio::test]
async fn the_next_in_line_begins_to_ask_if_the_holder_may_not_publish() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST, SECOND]).await;
    assert_eq!(wire.enter(POLLS).await, DONE);
    for field in [FIRST, SECOND] {
        assert_eq!(in_line(&wire.enter(field).await), (POLLS, "1"));
    }
    assert_eq!(wire.leave(FIRST).await, GONE);
    assert_eq!(ears.heard(&mut wire).await, ["7 0 order:1"]);
    // A process that polls finds that the lock has expired, and takes it.
    wire.held_before(&[POLLS, SECOND]).await;
    wire.ask::<i64>(&["DEL", KEY]).await;
    assert_eq!(wire.again(POLLS).await, DONE);
    assert_eq!(ears.heard(&mut wire).await, ["7 0 order:1"]);
}

/// Otherwise the lock would be kept for a process that gets no message about it.
#[tokio::test]
async fn a_forced_release_without_messages_frees_a_lock_whose_channel_looks_like_a_field_that_polls() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    let _ears = Ears::of(&server, &[FIRST]).await;
    admin.held_before(&[FIRST]).await;
    let mut wire = admin.login(&server, &["resetchannels", "+@all"]).await;
    let forced = wire.run_with_line("force", &["channel:{a}:-5", TOLD]).await.unwrap();
    assert_eq!((forced, admin.fields().await), (DONE, held(&[])));
}

#[tokio::test]
async fn those_whose_process_is_gone_are_passed_over() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[THIRD]).await;
    wire.held_before(&[FIRST, THIRD, SECOND]).await;
    assert_eq!(wire.leave(OURS).await, ENDED);
    assert_eq!((wire.fields().await, wire.line().await), (held(&[(THIRD, "0")]), vec![]));
    assert_eq!(ears.heard(&mut wire).await, ["18446744073709551615 - order:1"]);
    // Now every process is gone.
    let mut ears = Ears::of(&server, &[]).await.and_releases().await;
    wire.held_before(&[FIRST, SECOND]).await;
    assert_eq!(wire.leave(OURS).await, Value::Int(-5));
    assert_eq!(ears.heard(&mut wire).await, ["released: 0"]);
    assert!(server.all_keys().await.is_empty());
}

#[tokio::test]
async fn a_free_lock_goes_to_the_first_whoever_of_the_line_asks_again() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST, SECOND, THIRD]).await.and_releases().await;
    // The first field is granted the lock in its own answer.
    wire.held_before(&[FIRST, SECOND]).await;
    wire.ask::<i64>(&["DEL", KEY]).await;
    assert_eq!(wire.again(FIRST).await, DONE);
    assert_eq!((wire.fields().await, wire.line().await), (held(&[(FIRST, "1")]), vec![SECOND.to_owned()]));
    assert_eq!(ears.heard(&mut wire).await, [format!("7 {LEASE} order:1")]);
    // Another field is not granted the lock, and neither is one that has left the line: it is handed to the first.
    wire.held_before(&[FIRST, SECOND]).await;
    wire.ask::<i64>(&["DEL", KEY]).await;
    assert_eq!(in_line(&wire.again(SECOND).await), (FIRST, "0"));
    assert_eq!(wire.line().await, [SECOND]);
    assert_eq!(ears.heard(&mut wire).await, ["3 - order:1", "7 40000 order:1"]);
    wire.held_before(&[FIRST]).await;
    wire.ask::<i64>(&["DEL", KEY]).await;
    assert_eq!(in_line(&wire.again(THIRD).await), (FIRST, "0"));
    assert_eq!(wire.line().await, [THIRD]);
    assert_eq!(ears.heard(&mut wire).await, ["3 - order:1"]);
    // The line is empty, or all its processes are gone.
    wire.clear().await;
    assert_eq!(wire.again(OURS).await, DONE);
    wire.ask::<i64>(&["DEL", KEY]).await;
    drop(ears);
    wire.held_before(&[FIRST, SECOND]).await;
    wire.ask::<i64>(&["DEL", KEY]).await;
    soon("the end of the subscriptions", async {
        while wire.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await != Vec::<String>::new() {}
    })
    .await;
    assert_eq!(wire.again(THIRD).await, DONE);
    assert_eq!((wire.fields().await, wire.line().await), (held(&[(THIRD, "1")]), vec![]));
}

#[tokio::test]
async fn who_asks_for_the_first_time_may_take_a_free_lock_and_the_line_stays() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.held_before(&[FIRST]).await;
    wire.ask::<i64>(&["DEL", KEY]).await;
    assert_eq!(wire.enter(THIRD).await, DONE);
    assert_eq!((wire.fields().await, wire.line().await), (held(&[(THIRD, "1")]), vec![FIRST.to_owned()]));
}

#[tokio::test]
async fn a_request_that_ends_leaves_the_line_and_the_first_learns_when_to_ask() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST, SECOND, THIRD]).await.and_releases().await;
    wire.held_before(&[FIRST, SECOND]).await;
    let before = wire.state().await;
    assert_eq!(wire.leave(FIRST).await, GONE);
    assert_eq!((wire.state().await, wire.line().await), (before, vec![SECOND.to_owned()]));
    let heard = ears.heard(&mut wire).await;
    let [hint] = &heard[..] else { panic!("{heard:?}") };
    let wait: u64 = hint.strip_prefix("7 ").unwrap().strip_suffix(" order:1").unwrap().parse().unwrap();
    assert!((1..=LEASE).contains(&wait), "{hint}");
    // The first one is no longer in the line, and the second one is alone in it.
    assert_eq!(wire.leave(FIRST).await, GONE);
    assert_eq!(wire.leave(SECOND).await, GONE);
    assert_eq!(ears.heard(&mut wire).await, Vec::<String>::new());
    assert_eq!(server.all_keys().await, [KEY]);
    // The lock has expired: the next field that asks or leaves hands it on.
    wire.held_before(&[FIRST, SECOND]).await;
    wire.ask::<i64>(&["DEL", KEY]).await;
    assert_eq!(wire.leave(OURS).await, GONE);
    assert_eq!(wire.fields().await, held(&[(FIRST, "0")]));
    assert_eq!(ears.heard(&mut wire).await, ["3 - order:1", "7 40000 order:1"]);
    // A field that was handed the lock has no hold yet, but its end works as that of a hold.
    assert_eq!(wire.leave(FIRST).await, ENDED);
    assert_eq!(wire.fields().await, held(&[(SECOND, "0")]));
}

#[tokio::test]
async fn a_hold_that_is_in_the_line_is_handed_nothing_when_it_ends() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[OURS, FIRST]).await;
    wire.held_before(&[FIRST]).await;
    let member = [WAKES, OURS].concat();
    wire.ask::<i64>(&["ZADD", LINE, "-5", &member]).await;
    assert_eq!(wire.leave(OURS).await, ENDED);
    assert_eq!((wire.fields().await, wire.line().await), (held(&[(FIRST, "0")]), vec![]));
    assert_eq!(ears.heard(&mut wire).await, ["3 - order:1"]);
}

#[tokio::test]
async fn a_field_of_another_program_beside_ours_keeps_the_lock_from_the_line() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST]).await.and_releases().await;
    wire.held_before(&[FIRST]).await;
    wire.ask::<()>(&["HSET", KEY, THIRD, "1"]).await;
    assert_eq!(wire.leave(OURS).await, Value::Int(-5));
    assert_eq!((wire.fields().await, wire.line().await), (held(&[(THIRD, "1")]), vec![FIRST.to_owned()]));
    assert_eq!(ears.heard(&mut wire).await, ["released: 0"]);
    // A field can also wait in the line for a hold of Redisson's.
    wire.plant(THIRD, "2").await;
    assert_eq!(in_line(&wire.enter(OURS).await), (THIRD, "2"));
}

#[tokio::test]
async fn a_forced_release_hands_on_and_is_published() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST, SECOND]).await.and_releases().await;
    wire.held_before(&[FIRST, SECOND]).await;
    assert_eq!(wire.force_on().await, DONE);
    assert_eq!((wire.fields().await, wire.line().await), (held(&[(FIRST, "0")]), vec![SECOND.to_owned()]));
    assert_eq!(ears.heard(&mut wire).await, ["3 - order:1", "7 40000 order:1", "released: 0"]);
    // The lock is also taken from a field that was handed it and has not entered yet.
    assert_eq!(wire.force_on().await, DONE);
    assert_eq!((wire.fields().await, wire.line().await), (held(&[(SECOND, "0")]), vec![]));
    assert_eq!(wire.force_on().await, DONE);
    assert_eq!(wire.force_on().await, FREE);
}

#[tokio::test]
async fn nobody_waits_in_line_for_what_is_no_lock() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    for (put, kind) in [
        (&["SET", KEY, "theirs", "PX", "600000"][..], None),
        (&["SET", KEY, "theirs"], Some("string")),
        (&["HSET", KEY, THEIRS, "1"], Some("hash")),
        (&["RPUSH", KEY, "mine"], Some("list")),
    ] {
        for mode in ["enter", "again"] {
            wire.clear().await;
            wire.ask::<Value>(put).await;
            let answer = wire.try_wait(OURS, mode).await.unwrap();
            match kind {
                Some(kind) => assert_eq!(answer, status(kind)),
                None => assert!(is_busy(&answer), "{answer:?}"),
            }
            assert_eq!(wire.leave(OURS).await, GONE);
            assert_eq!(server.all_keys().await, [KEY]);
        }
    }
    wire.plant("user", "bob").await;
    assert_eq!(wire.enter(OURS).await, status("fields"));
    assert_eq!(server.all_keys().await, [KEY]);
}

/// Another program uses the line's name, or has written into the line.
#[tokio::test]
async fn a_line_that_is_none_of_ours_is_left_alone_and_frees_the_lock() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST]).await.and_releases().await;
    for mode in ["enter", "again"] {
        wire.clear().await;
        wire.ask::<i64>(&["RPUSH", LINE, "x"]).await;
        assert_eq!(wire.try_wait(OURS, mode).await.unwrap(), DONE);
        assert_eq!(whose(&wire.try_wait(FIRST, mode).await.unwrap()), (OURS, "1"));
        assert_eq!(wire.leave(FIRST).await, GONE);
        assert_eq!(wire.leave(OURS).await, Value::Int(-5));
        assert_eq!(server.all_keys().await, [LINE]);
    }
    ears.heard(&mut wire).await;
    wire.held_before(&[FIRST]).await;
    let before = [["-9", "x"], ["-8", "redisson_lock__channel:{order:1}:3"], ["-7", "nestlock_wake:a:b"]];
    for [score, member] in before {
        wire.ask::<i64>(&["ZADD", LINE, score, member]).await;
    }
    assert_eq!(wire.leave(OURS).await, ENDED);
    assert_eq!((wire.fields().await, wire.ask::<i64>(&["ZCARD", LINE]).await), (held(&[(FIRST, "0")]), 0));
    assert_eq!(ears.heard(&mut wire).await, ["3 - order:1"]);
}

/// The server runs nothing else during a script, so a script passes over a limited number of fields.
#[tokio::test]
async fn a_long_line_of_those_who_are_gone_is_passed_over_in_parts() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let gone: Vec<String> =
        (1..=200).map(|number| format!("{}{number}", THIRD.replace("184", "1"))).collect();
    let mut ears = Ears::of(&server, &[FIRST]).await.and_releases().await;
    for way in ["release", "force", "again"] {
        wire.clear().await;
        wire.enter(OURS).await;
        for field in gone.iter().map(String::as_str).chain([FIRST]) {
            let (at, member) = (wire.ask::<i64>(&["ZCARD", LINE]).await, [WAKES, field].concat());
            wire.ask::<i64>(&["ZADD", LINE, &at.to_string(), &member]).await;
        }
        ears.heard(&mut wire).await;
        let answer = match way {
            "release" => wire.leave(OURS).await,
            "force" => wire.force_on().await,
            _ => {
                wire.ask::<i64>(&["DEL", KEY]).await;
                // The field that asks may stand anywhere in the line.
                wire.ask::<i64>(&["ZADD", LINE, "1000", &[WAKES, OURS].concat()]).await;
                wire.again(OURS).await
            }
        };
        let (expected, messages): (_, &[&str]) = match way {
            "release" => (Value::Int(-5), &["released: 0"]),
            "force" => (DONE, &["released: 0"]),
            _ => (DONE, &[]),
        };
        assert_eq!(answer, expected, "{way}");
        assert_eq!(ears.heard(&mut wire).await, messages, "{way}");
        assert_eq!(wire.line().await.len(), 201 - 64, "{way}");
        assert_eq!(wire.fields().await.len(), usize::from(way == "again"));
    }
}

#[tokio::test]
async fn on_a_full_server_nobody_enters_the_line_and_the_lock_is_handed_on() {
    let server = Server::with(&["--maxmemory-policy", "noeviction"]).await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST, SECOND]).await;
    wire.held_before(&[FIRST, SECOND]).await;
    wire.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for mode in ["enter", "again"] {
        assert_eq!(whose(&wire.try_wait(THIRD, mode).await.unwrap()), (OURS, "1"));
    }
    assert_eq!(wire.line().await, [FIRST, SECOND]);
    assert_eq!(wire.leave(OURS).await, ENDED);
    assert_eq!(ears.heard(&mut wire).await, ["3 - order:1", "7 40000 order:1"]);
    assert_eq!(wire.fields().await, held(&[(FIRST, "0")]));
    assert_eq!(wire.leave(FIRST).await, ENDED);
    assert_eq!(wire.leave(SECOND).await, ENDED);
    for mode in ["enter", "again"] {
        let error = wire.try_wait(FIRST, mode).await.unwrap_err().to_string();
        assert!(error.contains("OOM") && error.contains("script"), "{error}");
    }
    assert!(server.all_keys().await.is_empty());
}

#[tokio::test]
async fn a_right_that_is_missing_costs_the_line_and_not_the_lock() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST, SECOND]).await.and_releases().await;
    for (right, enters, hands_on, publishes) in [
        ("-zadd", false, true, true),
        ("-zrange", false, true, true),
        ("-time", false, true, true),
        ("-zrem", true, true, true),
        ("-zpopmin", true, false, true),
        ("-publish", true, false, false),
        ("-hscan", false, true, true),
        // The line needs no right that a lock without a line doesn't need too.
        ("-exists", true, true, true),
    ] {
        let mut wire = admin.login(&server, &["allchannels", "+@all", right]).await;
        admin.held_before(&[FIRST, SECOND]).await;
        match wire.try_wait(THIRD, "enter").await {
            Ok(Value::Array(parts)) if right == "-hscan" => assert_eq!(parts.len(), 1, "{parts:?}"),
            Ok(answer) => assert!(enters && in_line(&answer) == (OURS, "1"), "{right}"),
            // This refusal comes only once, since the process then asks without the line.
            Err(error) => {
                assert!(!enters && error.to_string().contains("nothing written"), "{right}: {error}")
            }
        }
        admin.held_before(&[FIRST, SECOND]).await;
        ears.heard(&mut admin).await;
        let answer = wire.leave(OURS).await;
        let heard = ears.heard(&mut admin).await;
        if hands_on {
            assert_eq!(answer, ENDED, "{right}");
            assert_eq!(admin.fields().await, held(&[(FIRST, "0")]), "{right}");
            assert_eq!(heard[0], "3 - order:1", "{right}");
            assert!(admin.ttl(KEY).await > 0, "{right}");
        } else {
            assert_eq!(admin.look().await, FREE, "{right}");
            // The fields after the first stay in the line.
            assert!(admin.line().await.contains(&SECOND.to_owned()), "{right}");
            // A process that may not publish learns it.
            let expected = if publishes { Value::Int(-5) } else { Value::Array(vec![Value::Int(0)]) };
            assert_eq!(answer, expected, "{right}");
            assert_eq!(heard == ["released: 0"], publishes, "{right}: {heard:?}");
        }
        for mode in ["enter", "again"] {
            admin.held_before(&[FIRST]).await;
            admin.ask::<i64>(&["DEL", KEY]).await;
            let answer = wire.try_wait(THIRD, mode).await;
            let busy = mode == "again" && hands_on;
            assert_eq!(!matches!(answer, Ok(DONE)), busy, "{right} {mode}: {answer:?}");
            assert!(admin.ttl(KEY).await > 0, "{right} {mode}");
        }
    }
}

#[tokio::test]
async fn without_the_right_to_expire_the_lock_is_handed_to_nobody_and_is_free() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    let _ears = Ears::of(&server, &[FIRST]).await;
    for right in ["-pexpire", "-hset"] {
        let mut wire = admin.login(&server, &["allchannels", "+@all", right]).await;
        admin.held_before(&[FIRST]).await;
        assert_eq!(wire.leave(OURS).await, ENDED, "{right}");
        assert_eq!(admin.look().await, FREE, "{right}");
        // A line must not stay for ever either.
        admin.held_before(&[]).await;
        let answer = wire.enter(FIRST).await;
        assert_eq!(admin.ttl(LINE).await < 0, right == "-pexpire", "{right}: {answer:?}");
        assert_eq!(admin.ask::<i64>(&["EXISTS", LINE]).await == 0, right == "-pexpire");
    }
}

#[tokio::test]
async fn whom_a_lock_is_handed_to_gets_a_token_of_its_own() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[FIRST, SECOND]).await;
    let script = redis::Script::new(&fenced_body("acquire", "token"));
    let lease = LEASE.to_string();
    let take = async |wire: &mut Wire, field: &str, mode: &str| -> RedisResult<Value> {
        let mut call = script.key(KEY);
        call.key(tokens::COUNTER);
        call.arg(&[field, "1", &lease, "5", tokens::DAY]);
        if !mode.is_empty() {
            call.key(LINE).arg(TOLD);
        }
        if mode == "again" {
            call.arg(mode);
        }
        call.invoke_async(&mut wire.redis).await
    };
    let token = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    assert_eq!(take(&mut wire, OURS, "enter").await.unwrap(), token("5"));
    assert_eq!(in_line(&take(&mut wire, FIRST, "enter").await.unwrap()), (OURS, "1"));
    assert_eq!(in_line(&take(&mut wire, SECOND, "enter").await.unwrap()), (OURS, "1"));
    assert_eq!(wire.line().await, [FIRST, SECOND]);
    assert_eq!(wire.leave(OURS).await, ENDED);
    // One field asks with the line. The other has left the line, and asks without it.
    for (field, mode, expected) in [(FIRST, "again", "6"), (SECOND, "", "7")] {
        for _ in 0..2 {
            assert_eq!(take(&mut wire, field, mode).await.unwrap(), token(expected));
        }
        assert_eq!(wire.fields().await, held(&[(field, "1")]));
        assert_eq!(wire.leave(field).await, ENDED);
    }
    ears.heard(&mut wire).await;
    // Now an answer hands the lock to the first field.
    assert_eq!(take(&mut wire, OURS, "enter").await.unwrap(), token("8"));
    take(&mut wire, FIRST, "enter").await.unwrap();
    take(&mut wire, SECOND, "enter").await.unwrap();
    wire.ask::<i64>(&["DEL", KEY]).await;
    assert_eq!(in_line(&take(&mut wire, SECOND, "again").await.unwrap()), (FIRST, "0"));
    wire.ask::<i64>(&["DEL", KEY]).await;
    assert_eq!(take(&mut wire, SECOND, "again").await.unwrap(), token("9"));
    assert_eq!(ears.heard(&mut wire).await, ["3 - order:1", "7 40000 order:1"]);
}

/// Returns the time for which the lock is left to clients that do not know lines, from the answer to the end of a hold.
fn left_for(answer: &Value) -> i64 {
    let Value::Array(parts) = answer else { panic!("not left to them: {answer:?}") };
    let [Value::Int(time @ (1 | 25))] = parts[..] else { panic!("{answer:?}") };
    time
}

#[tokio::test]
async fn those_who_know_no_line_have_their_turns_among_those_who_wait_in_it() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let ears = Ears::of(&server, &[OURS, FIRST, SECOND, THIRD]).await;
    let mut ears = ears.who_know_no_line().await;
    // While three fields are in the line, the first one does not give way. When two are left, the second one gives way.
    wire.held_before(&[FIRST, SECOND, THIRD]).await;
    assert_eq!(wire.leave(OURS).await, ENDED);
    assert_eq!(wire.again(FIRST).await, DONE);
    ears.heard(&mut wire).await;
    let time = left_for(&wire.leave(FIRST).await);
    assert_eq!((wire.look().await, wire.line().await), (FREE, vec![SECOND.to_owned(), THIRD.to_owned()]));
    // The first field asks after those clients. The second gets the time to ask at if the first is gone.
    let third = "18446744073709551615";
    let told = [format!("7 {time} order:1"), format!("{third} 40000 order:1")];
    let heard = ears.heard(&mut wire).await;
    assert_eq!(heard, [&["released: 00".to_owned()][..], &told].concat());
    // The first field gives way only once, whichever client held the lock in between. A process that enters then stands at the end.
    assert_eq!(wire.enter(OURS).await, DONE);
    assert_eq!(in_line(&wire.again(SECOND).await), (OURS, "1"));
    wire.enter(FIRST).await;
    assert_eq!(wire.line().await, [SECOND, THIRD, FIRST]);
    assert_eq!(wire.leave(OURS).await, ENDED);
    assert_eq!(wire.fields().await, held(&[(SECOND, "0")]));
    // If none of those clients has come, the first field is granted the lock in its answer.
    wire.held_before(&[FIRST]).await;
    left_for(&wire.leave(OURS).await);
    assert_eq!(wire.again(FIRST).await, DONE);
    assert_eq!((wire.fields().await, wire.line().await), (held(&[(FIRST, "1")]), vec![]));
    // A field whose process is gone does not keep the next one waiting.
    drop(ears);
    let mut ears = Ears::of(&server, &[SECOND]).await.who_know_no_line().await;
    wire.held_before(&[FIRST, THIRD, SECOND]).await;
    wire.ask::<i64>(&["ZREM", LINE, &[WAKES, FIRST].concat()]).await;
    let time = left_for(&wire.leave(OURS).await);
    assert_eq!(wire.line().await, [SECOND]);
    assert_eq!(ears.heard(&mut wire).await, ["released: 00".to_owned(), format!("7 {time} order:1")]);
}

#[tokio::test]
async fn where_nobody_waits_in_the_line_the_lock_is_theirs_who_know_none() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut ears = Ears::of(&server, &[]).await.who_know_no_line().await;
    wire.held_before(&[]).await;
    left_for(&wire.leave(OURS).await);
    assert_eq!(ears.heard(&mut wire).await, ["released: 0"]);
    // A release that ends nothing leaves the lock to nobody.
    assert_eq!(wire.leave(OURS).await, GONE);
    wire.held_before(&[FIRST]).await;
    wire.ask::<i64>(&["DEL", KEY]).await;
    assert_eq!(wire.leave(OURS).await, GONE);
    assert_eq!(ears.heard(&mut wire).await, Vec::<String>::new());
}

/// Without this right, clients that do not know lines are not noticed.
#[tokio::test]
async fn without_the_right_to_count_who_is_subscribed_the_lock_is_handed_on() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    let _ears = Ears::of(&server, &[FIRST]).await.who_know_no_line().await;
    for right in ["-pubsub", "-zcard"] {
        let mut wire = admin.login(&server, &["allchannels", "+@all", right]).await;
        admin.held_before(&[FIRST]).await;
        let answer = wire.leave(OURS).await;
        match right {
            "-pubsub" => assert_eq!((answer, admin.fields().await), (ENDED, held(&[(FIRST, "0")]))),
            _ => assert!(left_for(&answer) > 0),
        }
    }
}

/// 1. A hold is gone, and a late acquire of its field enters the line. 2. After others had the lock, it is handed to that field. Commands
/// that were sent for the lost hold must not find it. Otherwise the loss would never be reported.
#[tokio::test]
async fn what_the_lock_is_handed_to_is_found_by_its_acquire_and_its_end_alone() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let _ears = Ears::of(&server, &[FIRST]).await;
    wire.held_before(&[FIRST]).await;
    assert_eq!(wire.leave(OURS).await, ENDED);
    let handed = wire.state().await;
    let lease = LEASE.to_string();
    for (script, args) in [
        ("renew", &[FIRST, &lease][..]),
        ("shorten", &[FIRST, &lease, "1"]),
        ("acquire", &[FIRST, "2", &lease]),
        ("release", &[FIRST, "1", CHANNEL]),
        ("settle", &[FIRST, "1", CHANNEL, "PUBLISH", &lease]),
        ("settle", &[FIRST, "1", CHANNEL, "PUBLISH", &lease, "1"]),
        ("keep", &[FIRST, SECOND, CHANNEL, "PUBLISH", "1000"]),
        ("move", &[SECOND, FIRST, &lease]),
        ("move", &[FIRST, SECOND, &lease]),
    ] {
        let reply: Value = file(script).key(KEY).arg(args).invoke_async(&mut wire.redis).await.unwrap();
        assert_eq!(reply, GONE, "{script} {args:?}");
        assert_eq!(wire.state().await, handed, "{script} {args:?}");
    }
    let reply: Value =
        file("renew_all").key(KEY).arg(&[FIRST, &lease]).invoke_async(&mut wire.redis).await.unwrap();
    assert_eq!(reply, Value::Array(vec![GONE]));
    assert_eq!(wire.again(FIRST).await, DONE);
    assert_eq!(wire.fields().await, held(&[(FIRST, "1")]));
}
