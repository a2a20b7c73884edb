//! The rules, with one execution each.

use futures::StreamExt;

use super::*;
use crate::support::soon;

/// Commands that make a key of each other type.
const OTHERS: [(&str, &[&str]); 4] = [
    ("list", &["RPUSH", KEY, "x"]),
    ("set", &["SADD", KEY, "x"]),
    ("zset", &["ZADD", KEY, "1", "x"]),
    ("stream", &["XADD", KEY, "*", "x", "y"]),
];

#[tokio::test]
async fn a_taken_lock_lies_on_the_wire_as_redisson_writes_it() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    assert_eq!(wire.acquire(OURS, 1, 30_000).await, DONE);
    assert_eq!(wire.ask::<Vec<String>>(&["KEYS", "*"]).await, [KEY]);
    assert_eq!(wire.ask::<String>(&["TYPE", KEY]).await, "hash");
    assert_eq!(wire.fields().await, held(&[(OURS, "1")]));
    let ttl: u64 = wire.ask(&["PTTL", KEY]).await;
    assert!((1..=30_000).contains(&ttl), "{ttl}");

    wire.acquire(OURS, 2, 30_000).await;
    assert_eq!(wire.fields().await, held(&[(OURS, "2")]));
    // Redisson increments the same count with HINCRBY.
    assert_eq!(wire.ask::<i64>(&["HINCRBY", KEY, OURS, "1"]).await, 3);

    wire.release(OURS, 0).await;
    assert_eq!(wire.ask::<Vec<String>>(&["KEYS", "*"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn each_way_to_free_a_lock_publishes_a_zero_once_and_nothing_else_publishes() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let mut waiter = redis::Client::open(server.url()).unwrap().get_async_pubsub().await.unwrap();
    waiter.subscribe(CHANNEL).await.unwrap();
    let mut messages = waiter.on_message();
    wire.published().await;
    for way in ["release", "settle", "force"] {
        wire.acquire(OURS, 1, LEASE).await;
        wire.acquire(OURS, 2, LEASE).await;
        wire.acquire(THEIRS, 1, LEASE).await;
        wire.release(OURS, 1).await;
        wire.release(THEIRS, 0).await;
        wire.renew(OURS, LEASE).await;
        wire.settle(OURS, 3, LEASE).await;
        wire.look().await;
        assert_eq!(wire.published().await, [0, 0]);
        // The answer to the release reports that somebody is subscribed.
        let ended = if way == "release" { Value::Int(-5) } else { DONE };
        for answer in [ended, if way == "force" { FREE } else { GONE }] {
            let reply = match way {
                "release" => wire.release(OURS, 0).await,
                "settle" => wire.settle(OURS, 0, LEASE).await,
                _ => wire.force().await,
            };
            assert_eq!(reply, answer, "{way}");
        }
        assert_eq!(wire.published().await, [1, 0], "{way}");
        let message = soon("the message", messages.next()).await.unwrap();
        assert_eq!(message.get_payload::<String>().unwrap(), "0");
        assert_eq!(wire.look().await, FREE);
    }
}

#[tokio::test]
async fn a_lock_of_a_cluster_is_freed_with_one_message_on_its_sharded_channel() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.published().await;
    for way in ["release", "settle", "force"] {
        wire.acquire(OURS, 1, LEASE).await;
        assert_eq!(wire.free_sharded(way).await, DONE, "{way}");
        assert_eq!(wire.published().await, [0, 1], "{way}");
    }
}

#[tokio::test]
async fn an_acquire_that_runs_twice_is_granted_twice_and_counts_once() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    for count in [1, 1, 2, 2, 3] {
        assert_eq!(wire.acquire(OURS, count, LEASE).await, DONE);
        assert_eq!(wire.fields().await, held(&[(OURS, &count.to_string())]));
    }
    // A late repeat of an earlier acquire does not lower the count.
    assert_eq!(wire.acquire(OURS, 1, LEASE).await, DONE);
    assert_eq!(wire.fields().await, held(&[(OURS, "3")]));
}

#[tokio::test]
async fn a_lock_of_another_is_busy_with_its_ttl_and_stays_as_it_was() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(THEIRS, 1, LEASE).await;
    let before = wire.state().await;
    let Value::Int(ttl @ 1..) = wire.acquire(OURS, 1, 2 * LEASE).await else { panic!("not busy") };
    assert!(ttl <= LEASE as i64 && ttl > LEASE as i64 / 2, "{ttl}");
    let Value::Int(1..) = wire.look().await else { panic!("not busy") };
    for answer in [
        wire.acquire(OURS, 2, 2 * LEASE).await,
        wire.release(OURS, 1).await,
        wire.release(OURS, 0).await,
        wire.renew(OURS, 2 * LEASE).await,
        wire.settle(OURS, 1, 2 * LEASE).await,
        wire.settle(OURS, 0, 2 * LEASE).await,
    ] {
        assert_eq!(answer, GONE);
    }
    assert_eq!(wire.state().await, before);
}

#[tokio::test]
async fn who_holds_a_lock_is_answered_to_who_asks_and_changes_nothing() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    assert_eq!(wire.who().await.unwrap(), FREE);
    assert_eq!(wire.acquire_naming(THEIRS, LEASE).await, DONE);
    assert_eq!(wire.acquire_naming(THEIRS, LEASE).await, DONE);
    wire.acquire(THEIRS, 2, LEASE).await;
    let before = wire.state().await;
    assert_eq!(whose(&wire.acquire_naming(OURS, 2 * LEASE).await), (THEIRS, "2"));
    assert_eq!(whose(&wire.who().await.unwrap()), (THEIRS, "2"));
    assert!(is_busy(&wire.acquire(OURS, 1, 2 * LEASE).await));
    assert_eq!(wire.state().await, before);
    // Two holds of Redisson, one of them with a random thread number, and one hold with a label.
    let (random, labelled) = (THEIRS.replace(":3", ":-9223372036854775808"), format!("web@one:{THEIRS}"));
    for (field, count) in [(THEIRS, "3"), (&random, "1"), (&labelled, "9223372036854775807")] {
        wire.plant(field, count).await;
        assert_eq!(whose(&wire.acquire_naming(OURS, LEASE).await), (field, count));
        assert_eq!(whose(&wire.look_naming().await), (field, count));
        assert_eq!(whose(&wire.who().await.unwrap()), (field, count));
    }
    // Another program made two holds side by side.
    wire.ask::<()>(&["HSET", KEY, THEIRS, "1"]).await;
    assert_eq!(wire.force().await, DONE);
}

/// These hashes have a TTL like a lock: a session, a cart, a cache entry, counters.
#[tokio::test]
async fn a_hash_that_is_no_lock_is_nobodys_and_is_not_freed() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let (long, many) = ("f".repeat(100_000), "1".repeat(20));
    let (labelled, glued) = (format!("{}:{THEIRS}", "l".repeat(500)), format!("x{THEIRS}"));
    let (upper, reader) = (THEIRS.replace('-', "_"), format!("{THEIRS}:write"));
    for (fields, kind) in [
        (&["user", "bob", "cart", "3"][..], "fields"),
        (&["product:17", "3"], "fields"),
        (&["3", "1"], "fields"),
        (&["", ""], "fields"),
        (&[&long, "1"], "fields"),
        (&[&labelled, "1"], "fields"),
        (&[&glued, "1"], "fields"),
        (&[&upper, "1"], "fields"),
        (&[THEIRS, "no number"], "fields"),
        (&[THEIRS, ""], "fields"),
        (&[THEIRS, "1.5"], "fields"),
        (&[THEIRS, "-1"], "fields"),
        (&[THEIRS, &many], "fields"),
        (&[THEIRS, &long], "fields"),
        // The script checks all fields, not only the first.
        (&[THEIRS, "1", "user", "bob"], "fields"),
        (&[THEIRS, "1", "mode", "dark"], "fields"),
        // These are the fields of Redisson's read-write lock.
        (&["mode", "read", THEIRS, "1"], "rwlock"),
        (&["mode", "write", &reader, "1"], "rwlock"),
        (&[THEIRS, "1", "mode", "write", &reader, "1"], "rwlock"),
    ] {
        wire.clear().await;
        wire.ask::<()>(&[&["HSET", KEY][..], fields].concat()).await;
        wire.ask::<()>(&["PEXPIRE", KEY, &LEASE.to_string()]).await;
        let before = wire.state().await;
        assert_eq!(wire.force().await, status(kind), "{fields:?}");
        assert_eq!(wire.who().await.unwrap(), status(kind), "{fields:?}");
        assert_eq!(wire.look_naming().await, status(kind), "{fields:?}");
        assert_eq!(wire.acquire_naming(OURS, LEASE).await, status(kind), "{fields:?}");
        assert!(is_busy(&wire.acquire(OURS, 1, LEASE).await) && is_busy(&wire.look().await), "{fields:?}");
        assert_eq!(wire.state().await, before, "{fields:?}");
    }
}

#[tokio::test]
async fn a_key_that_is_no_lock_of_this_kind_is_nobodys() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    for (put, kind) in [
        (&["SET", KEY, "theirs", "PX", "600000"][..], "string"),
        (&["SET", KEY, "theirs"], "string"),
        (&["HSET", KEY, THEIRS, "1"], "hash"),
        (&["RPUSH", KEY, "mine"], "list"),
    ] {
        wire.clear().await;
        wire.ask::<Value>(put).await;
        let before = wire.state().await;
        assert_eq!(wire.who().await.unwrap(), status(kind));
        let answer = wire.acquire_naming(OURS, LEASE).await;
        assert_eq!(is_busy(&answer), put.contains(&"PX"), "{answer:?}");
        assert_eq!(wire.state().await, before);
    }
}

/// A large hash is no lock, even under a lock's name, and reading all of it would block the server.
#[tokio::test]
async fn of_a_large_hash_a_part_is_read() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.plant(THEIRS, "1").await;
    for part in 0..20 {
        let fields: Vec<String> =
            (1..1000).flat_map(|at| [format!("{THEIRS}{part:02}{at:03}"), "1".to_owned()]).collect();
        let command: Vec<&str> = ["HSET", KEY].into_iter().chain(fields.iter().map(String::as_str)).collect();
        wire.ask::<i64>(&command).await;
    }
    assert_eq!(wire.who().await.unwrap(), status("fields"));
    assert_eq!(wire.look_naming().await, status("fields"));
    assert_eq!(wire.acquire_naming(OURS, LEASE).await, status("fields"));
    assert_eq!(wire.force().await, status("fields"));
    let stats: String = wire.ask(&["INFO", "commandstats"]).await;
    let ran = |command: &str| stats.contains(&format!("cmdstat_{command}:"));
    assert!(ran("hscan") && !ran("hgetall") && !ran("hkeys"), "{stats}");
}

#[tokio::test]
async fn what_comes_late_to_a_lock_that_is_gone_creates_nothing() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(OURS, 1, LEASE).await;
    // The release ends a hold at any count. If it only counted down by one, the late re-entry would leave a hold without a holder.
    wire.acquire(OURS, 2, LEASE).await;
    assert_eq!(wire.release(OURS, 0).await, ENDED);
    for answer in [
        wire.acquire(OURS, 2, LEASE).await,
        wire.release(OURS, 1).await,
        wire.release(OURS, 0).await,
        wire.renew(OURS, LEASE).await,
        wire.settle(OURS, 1, LEASE).await,
        wire.settle(OURS, 0, LEASE).await,
    ] {
        assert_eq!(answer, GONE);
    }
    assert_eq!(wire.force().await, FREE);
    assert_eq!(wire.look().await, FREE);
    assert_eq!(wire.ask::<Vec<String>>(&["KEYS", "*"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_nested_release_that_runs_twice_lowers_once() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(OURS, 1, LEASE).await;
    wire.acquire(OURS, 2, LEASE).await;
    let end = wire.end().await;
    // If each release counted down by one, the second would free the lock under a live guard.
    for _ in 0..2 {
        assert_eq!(wire.release(OURS, 1).await, DONE);
        assert_eq!(wire.fields().await, held(&[(OURS, "1")]));
    }
    assert_eq!(wire.release(OURS, 4).await, DONE);
    assert_eq!(wire.fields().await, held(&[(OURS, "1")]), "a release raises nothing");
    assert_eq!(wire.end().await, end, "a release leaves the TTL alone");
}

#[tokio::test]
async fn a_late_nested_release_leaves_the_ttl_of_a_later_re_entry_alone() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(OURS, 1, 100_000).await;
    wire.acquire(OURS, 2, 100_000).await;
    // 1. The inner hold's release gets no answer. 2. It is settled. 3. A longer re-entry is granted. 4. The release runs after all.
    assert_eq!(wire.settle(OURS, 1, 100_000).await, DONE);
    assert_eq!(wire.acquire(OURS, 2, 600_000).await, DONE);
    let end = wire.end().await;
    assert_eq!(wire.release(OURS, 1).await, DONE);
    assert_eq!(wire.end().await, end);
    // A late renewal comes after the hold was extended.
    assert!(is_longer(&wire.renew(OURS, 100_000).await));
    assert_eq!(wire.end().await, end);
    // The next command of the hold corrects the count.
    assert_eq!(wire.acquire(OURS, 3, 100_000).await, DONE);
    assert_eq!((wire.fields().await, wire.end().await), (held(&[(OURS, "3")]), end));
}

#[tokio::test]
async fn a_ttl_that_is_lower_is_raised_to_the_lease() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(OURS, 1, LEASE).await;
    let mut end = wire.end().await;
    for step in 0..4 {
        let lease = LEASE + 100_000 * (step + 1);
        let answer = match step {
            0 => wire.acquire(OURS, 1, lease).await,
            1 => wire.acquire(OURS, 2, lease).await,
            2 => wire.renew(OURS, lease).await,
            _ => wire.settle(OURS, 2, lease).await,
        };
        assert_eq!(answer, DONE);
        let raised = wire.end().await;
        assert!(raised >= end + 100_000, "step {step}: {raised} after {end}");
        end = raised;
    }
}

#[tokio::test]
async fn a_renewal_is_answered_a_longer_ttl_and_when_the_key_ends() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let renewals = async |wire: &mut Wire| {
        let lease = LEASE.to_string();
        let alone = wire.renew(OURS, LEASE).await;
        let Value::Array(all) = wire.run("renew_all", &[OURS, &lease]).await.unwrap() else {
            panic!("no list")
        };
        let fenced = wire.fenced("renew", "raise", &[OURS, &lease, "7", ""]).await.unwrap();
        [alone, all[0].clone(), fenced]
    };
    assert_eq!(wire.acquire(OURS, 1, LEASE).await, DONE);
    assert_eq!(renewals(&mut wire).await, [DONE, DONE, DONE]);
    wire.ask::<()>(&["PEXPIRE", KEY, &(2 * LEASE).to_string()]).await;
    let (end, ends): (_, i64) = (wire.end().await, wire.ask(&["PEXPIRETIME", KEY]).await);
    for answer in renewals(&mut wire).await {
        assert!(is_longer(&answer), "{answer:?}");
        let Value::Array(parts) = answer else { unreachable!() };
        assert_eq!(parts[1], Value::Int(ends));
    }
    assert_eq!(wire.end().await, end);
    // Now the counter can't be raised, and the answer reports that instead.
    wire.ask::<()>(&["DEL", tokens::COUNTER]).await;
    wire.ask::<()>(&["RPUSH", tokens::COUNTER, "v"]).await;
    let deferred = wire.fenced("renew", "raise", &[OURS, "1000", "7", ""]).await.unwrap();
    assert!(matches!(deferred, Value::BulkString(_)), "{deferred:?}");
    // The user may lack the right to ask for the time, or the server may not know the command.
    wire.ask::<()>(&["DEL", tokens::COUNTER]).await;
    wire.ask::<()>(&["ACL", "SETUSER", "default", "-pexpiretime"]).await;
    assert_eq!(renewals(&mut wire).await, [DONE, DONE, DONE]);
    assert_eq!(wire.run("shorten", &[OURS, "1000", &ends.to_string()]).await.unwrap(), DONE);
    wire.ask::<()>(&["ACL", "SETUSER", "default", "+pexpiretime"]).await;
    assert_eq!(wire.end().await, end);
}

/// A command that runs late or again names an end that the key no longer has.
#[tokio::test]
async fn a_ttl_is_shortened_once_and_only_of_a_key_that_ends_as_it_was_found() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let (short, long) = (LEASE.to_string(), 3 * LEASE);
    for changed_by in ["nothing", "renew", "raise", "acquire", "pexpire"] {
        wire.plant(OURS, "1").await;
        wire.ask::<()>(&["PEXPIRE", KEY, &long.to_string()]).await;
        let ends: i64 = wire.ask(&["PEXPIRETIME", KEY]).await;
        let ends = ends.to_string();
        let end = wire.end().await;
        // The key's TTL already covers this lease, so nothing would be written without the last argument.
        let asked = (2 * LEASE).to_string();
        let answer = match changed_by {
            "renew" => wire.run("renew", &[OURS, &asked, "moves"]).await,
            "raise" => wire.fenced("renew", "raise", &[OURS, &asked, "moves", "7", ""]).await,
            "acquire" => wire.run("acquire", &[OURS, "2", &asked, "moves"]).await,
            "pexpire" => wire.run("renew", &[OURS, &(2 * long).to_string()]).await,
            _ => Ok(DONE),
        };
        assert_eq!(answer.unwrap(), DONE, "{changed_by}");
        assert!(wire.end().await >= end, "{changed_by}");
        for again in [false, true] {
            let before = wire.end().await;
            assert_eq!(wire.run("shorten", &[OURS, &short, &ends]).await.unwrap(), DONE);
            let is_shorter = wire.end().await < before;
            assert_eq!(is_shorter, changed_by == "nothing" && !again, "{changed_by} {again}");
        }
        let left: u64 = wire.ask(&["PTTL", KEY]).await;
        assert!(left <= if changed_by == "nothing" { LEASE } else { 2 * long + 1 } && left > LEASE / 2);
        wire.clear().await;
    }
    // The command changes neither another client's hold nor a key that is no lock.
    wire.plant(THEIRS, "1").await;
    let (end, ends): (_, i64) = (wire.end().await, wire.ask(&["PEXPIRETIME", KEY]).await);
    assert_eq!(wire.run("shorten", &[OURS, "1", &ends.to_string()]).await.unwrap(), GONE);
    assert_eq!(wire.end().await, end);
    wire.clear().await;
    wire.ask::<()>(&["SET", KEY, OURS, "PX", "900000"]).await;
    assert_eq!(wire.run("shorten", &[OURS, "1", &ends.to_string()]).await.unwrap(), GONE);
}

#[tokio::test]
async fn settling_makes_the_count_exact_in_both_directions() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(OURS, 1, LEASE).await;
    let end = wire.end().await;
    for count in [3, 1, 1, 2] {
        assert_eq!(wire.settle(OURS, count, LEASE / 2).await, DONE);
        assert_eq!(wire.fields().await, held(&[(OURS, &count.to_string())]));
    }
    assert_eq!(wire.end().await, end, "a settle shortened the TTL");
}

#[tokio::test]
async fn a_hold_that_somebody_persisted_gets_a_ttl_again_from_its_owner() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    for script in ["acquire", "re-entry", "renew", "settle"] {
        wire.plant(OURS, "1").await;
        wire.ask::<()>(&["PERSIST", KEY]).await;
        assert_eq!(wire.acquire(THEIRS, 1, LEASE).await, status("hash"));
        assert_eq!(wire.look().await, status("hash"));
        assert_eq!(wire.force().await, status("hash"));
        assert_eq!(wire.end().await, -1);
        let answer = match script {
            "acquire" => wire.acquire(OURS, 1, LEASE).await,
            "re-entry" => wire.acquire(OURS, 2, LEASE).await,
            "renew" => wire.renew(OURS, LEASE).await,
            _ => wire.settle(OURS, 1, LEASE).await,
        };
        assert_eq!(answer, DONE);
        assert!(wire.end().await > 0, "{script}");
    }
    wire.ask::<()>(&["PERSIST", KEY]).await;
    assert_eq!(wire.release(OURS, 0).await, ENDED);
    assert_eq!(wire.look().await, FREE);
}

#[tokio::test]
async fn a_field_is_its_owners_with_any_value() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let counts =
        ["", "abc", "nan", "inf", "-inf", "-3", "00", "1.5", "1e3", "0x10", " 7", "99999999999999999999"];
    for count in counts {
        wire.plant(OURS, count).await;
        assert_eq!(wire.acquire(OURS, 2, LEASE).await, DONE, "{count:?}");
        let raised = wire.fields().await[OURS].clone();
        let high = ["inf", "1e3", "0x10", " 7", "99999999999999999999"].contains(&count);
        assert_eq!(raised, if high { count } else { "2" });
        assert_eq!(wire.release(OURS, 1).await, DONE, "{count:?}");
        assert_eq!(wire.fields().await, held(&[(OURS, "1")]), "{count:?}");

        wire.plant(OURS, count).await;
        assert_eq!(wire.release(OURS, 1).await, DONE, "{count:?}");
        let low = ["-inf", "-3", "00"].contains(&count);
        assert_eq!(wire.fields().await, held(&[(OURS, if low { count } else { "1" })]));
        assert_eq!(wire.renew(OURS, LEASE).await, DONE, "{count:?}");

        wire.plant(OURS, count).await;
        assert_eq!(wire.settle(OURS, 2, LEASE).await, DONE, "{count:?}");
        assert_eq!(wire.fields().await, held(&[(OURS, "2")]));

        wire.plant(OURS, count).await;
        assert_eq!(wire.release(OURS, 0).await, ENDED, "{count:?}");
        assert_eq!(wire.look().await, FREE, "{count:?}");
    }
}

#[tokio::test]
async fn a_field_of_another_beside_ours_outlives_our_release() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    for (way, ended) in [("release", ENDED), ("settle", DONE)] {
        wire.plant(OURS, "1").await;
        wire.ask::<()>(&["HSET", KEY, THEIRS, "1"]).await;
        assert_eq!(wire.acquire(OURS, 2, LEASE).await, DONE);
        let end = wire.end().await;
        let answer = match way {
            "release" => wire.release(OURS, 0).await,
            _ => wire.settle(OURS, 0, LEASE).await,
        };
        assert_eq!(answer, ended);
        assert_eq!((wire.fields().await, wire.end().await), (held(&[(THEIRS, "1")]), end));
    }
}

#[tokio::test]
async fn a_string_with_a_ttl_is_another_programs_lock_and_never_touched() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.ask::<()>(&["SET", KEY, OURS, "NX", "PX", &LEASE.to_string()]).await;
    let before = wire.state().await;
    assert!(is_busy(&wire.acquire(OURS, 1, 2 * LEASE).await));
    assert!(is_busy(&wire.look().await));
    for answer in [
        wire.acquire(OURS, 2, 2 * LEASE).await,
        wire.release(OURS, 1).await,
        wire.release(OURS, 0).await,
        wire.renew(OURS, 2 * LEASE).await,
        wire.settle(OURS, 1, 2 * LEASE).await,
        wire.settle(OURS, 0, 2 * LEASE).await,
    ] {
        assert_eq!(answer, GONE);
    }
    assert_eq!(wire.force().await, status("string"));
    assert_eq!(wire.state().await, before);
    // The other program in turn sees our key as taken.
    wire.clear().await;
    wire.acquire(OURS, 1, LEASE).await;
    let set: Option<String> = wire.ask(&["SET", KEY, "x", "NX", "PX", "1000"]).await;
    assert_eq!(set, None);
}

#[tokio::test]
async fn a_key_that_is_no_lock_is_reported_with_its_type_and_never_touched() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let plain: [(&str, &[&str]); 2] =
        [("string", &["SET", KEY, OURS]), ("hash", &["HSET", KEY, THEIRS, "1"])];
    let cases = OTHERS.iter().flat_map(|&(kind, make)| [(kind, make, true), (kind, make, false)]);
    for (kind, make, ends) in cases.chain(plain.map(|(kind, make)| (kind, make, false))) {
        wire.clear().await;
        wire.ask::<Value>(make).await;
        if ends {
            wire.ask::<()>(&["PEXPIRE", KEY, &LEASE.to_string()]).await;
        }
        let before = wire.state().await;
        assert_eq!(wire.acquire(OURS, 1, LEASE).await, status(kind));
        assert_eq!(wire.force().await, status(kind));
        assert_eq!(wire.look().await, status(kind));
        for answer in [
            wire.acquire(OURS, 2, LEASE).await,
            wire.release(OURS, 1).await,
            wire.release(OURS, 0).await,
            wire.renew(OURS, LEASE).await,
            wire.settle(OURS, 1, LEASE).await,
            wire.settle(OURS, 0, LEASE).await,
        ] {
            assert_eq!(answer, GONE, "{kind}");
        }
        assert_eq!(wire.state().await, before, "{kind}");
    }
}

#[tokio::test]
async fn force_releases_the_lock_of_any_holder() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(THEIRS, 1, LEASE).await;
    wire.acquire(THEIRS, 2, LEASE).await;
    assert_eq!(wire.force().await, DONE);
    assert_eq!(wire.acquire(OURS, 1, LEASE).await, DONE);
    assert_eq!(wire.release(THEIRS, 1).await, GONE);
    assert_eq!(wire.fields().await, held(&[(OURS, "1")]));
}

/// The count changes by `HINCRBY`, as readers of Redisson's hash expect. Only a field that is not a whole
/// number is replaced, by `HSET`.
#[tokio::test]
async fn a_count_changes_by_the_difference() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(OURS, 1, LEASE).await;
    wire.ask::<()>(&["CONFIG", "RESETSTAT"]).await;
    for _ in 0..2 {
        assert_eq!(wire.acquire(OURS, 3, LEASE).await, DONE);
        assert_eq!(wire.release(OURS, 2).await, DONE);
        assert_eq!(wire.settle(OURS, 5, LEASE).await, DONE);
        assert_eq!(wire.fields().await, held(&[(OURS, "5")]));
        assert_eq!(wire.release(OURS, 1).await, DONE);
    }
    let stats = server.info("commandstats").await;
    assert!(stats.contains_key("cmdstat_hincrby"), "{stats:?}");
    assert!(!stats.contains_key("cmdstat_hset"), "{stats:?}");
}
