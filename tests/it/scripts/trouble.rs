//! What the scripts do when the server refuses a command, or when a key is just ending.

use super::*;
use crate::support::soon;

impl Wire {
    /// Connects to the same server as a user with these rules.
    pub(super) async fn login(&mut self, server: &Server, rules: &[&str]) -> Wire {
        let setting = ["ACL", "SETUSER", "worker", "reset", "on", "nopass", "~*"];
        self.ask::<()>(&[&setting[..], rules].concat()).await;
        let client = redis::Client::open(server.url().replace("redis://", "redis://worker:any@")).unwrap();
        Wire { redis: client.get_multiplexed_async_connection().await.unwrap() }
    }
}

/// Returns the text of a refusal: on some versions, an error inside a script has no code of its own.
fn refusal(answer: RedisResult<Value>) -> String {
    answer.expect_err("refused").to_string()
}

/// Distinguishes an error inside a script from a refusal before the script's start. After such a refusal the script certainly did not run.
const MARK: &str = " script: ";

/// Returns whether a right is missing: versions before 7.0 report that by the code, later ones by the text.
fn is_denied(answer: RedisResult<Value>) -> bool {
    let text = refusal(answer);
    assert!(text.contains(MARK) && text.contains("user_script"), "{text}");
    ["NOPERM", "The user executing the script can't run this command", "ACL failure in script"]
        .iter()
        .any(|refusal| text.contains(refusal))
}

#[tokio::test]
async fn without_the_right_to_publish_a_release_frees_all_the_same() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    for rules in [&["resetchannels", "+@all"][..], &["allchannels", "+@all", "-publish"]] {
        let mut wire = admin.login(&server, rules).await;
        for way in ["release", "settle", "force"] {
            assert_eq!(wire.acquire(OURS, 1, LEASE).await, DONE);
            let answer = match way {
                "release" => wire.release(OURS, 0).await,
                "settle" => wire.settle(OURS, 0, LEASE).await,
                _ => wire.force().await,
            };
            assert_eq!(answer, DONE, "{way}");
            assert_eq!(admin.look().await, FREE, "{way}");
        }
    }
}

#[tokio::test]
async fn without_the_right_to_sharded_channels_a_release_publishes_on_the_plain_one() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    for (rules, published) in [
        (&["allchannels", "+@all", "-spublish"][..], 1),
        (&["allchannels", "+@all", "-spublish", "-publish"], 0),
    ] {
        let mut wire = admin.login(&server, rules).await;
        for way in ["release", "settle", "force"] {
            assert_eq!(wire.acquire(OURS, 1, LEASE).await, DONE);
            admin.published().await;
            assert_eq!(wire.free_sharded(way).await, DONE, "{way}");
            assert_eq!(admin.published().await, [published, 0], "{way}");
            assert_eq!(admin.look().await, FREE, "{way}");
        }
    }
}

/// If the first write is refused, the script has written nothing and reports that. If a later write is refused, it doesn't.
#[tokio::test]
async fn only_the_refusal_of_a_first_write_is_marked_as_one_before_any_write() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    let is_marked = |answer| refusal(answer).contains("nothing written");
    for (rights, marked) in [(&["+@all", "-hset"][..], true), (&["+@all", "-pexpire"], false)] {
        let mut wire = admin.login(&server, &[&["allchannels"], rights].concat()).await;
        assert_eq!(is_marked(wire.try_acquire(OURS, 1, LEASE).await), marked, "{rights:?}");
        assert_eq!(is_marked(wire.try_take(OURS, "1", "5", tokens::DAY).await), marked, "{rights:?}");
        assert_eq!(admin.look().await, FREE);
    }
    // A renewal has only this one write. A settle raises the lease before it writes the count, and its client would gain nothing from the
    // mark.
    let mut wire = admin.login(&server, &["allchannels", "+@all", "-pexpire"]).await;
    assert_eq!(admin.acquire(OURS, 1, LEASE).await, DONE);
    assert!(
        is_marked(wire.try_renew(OURS, 2 * LEASE).await)
            && !is_marked(wire.try_settle(OURS, 1, 2 * LEASE).await)
    );
    let together = wire.run("renew_all", &[OURS, &(2 * LEASE).to_string()]).await;
    assert!(format!("{together:?}").contains("nothing written"), "{together:?}");
    admin.clear().await;
    for (option, code) in [("maxmemory", "OOM"), ("min-replicas-to-write", "NOREPLICAS")] {
        server.set(option, 1).await;
        for answer in
            [admin.try_acquire(OURS, 1, LEASE).await, admin.try_take(OURS, "1", "5", tokens::DAY).await]
        {
            let text = refusal(answer);
            assert!(text.contains(code) && text.contains("nothing written"), "{text}");
        }
        server.set(option, 0).await;
        assert_eq!(admin.look().await, FREE);
        // A re-entry and a move are refused too: they change a hold that exists.
        assert_eq!(admin.acquire(OURS, 1, LEASE).await, DONE);
        let before = admin.state().await;
        server.set(option, 1).await;
        assert!(is_marked(admin.try_acquire(OURS, 2, LEASE).await), "{code}");
        assert!(is_marked(admin.run("move", &[THEIRS, OURS, &LEASE.to_string()]).await), "{code}");
        server.set(option, 0).await;
        assert_eq!(admin.state().await, before);
        admin.clear().await;
    }
}

#[tokio::test]
async fn without_the_right_to_expire_no_lock_is_left_behind() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    let mut wire = admin.login(&server, &["allchannels", "+@all", "-pexpire"]).await;
    assert!(is_denied(wire.try_acquire(OURS, 1, LEASE).await));
    assert_eq!(admin.look().await, FREE);
}

#[tokio::test]
async fn without_a_right_to_the_counter_no_lock_is_left_behind() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    for (right, least) in [("-set", "5"), ("-set", "1"), ("-incr", "1"), ("-time", ""), ("-get", "5")] {
        let mut wire = admin.login(&server, &["allchannels", "+@all", right]).await;
        admin.clear().await;
        admin.ask::<()>(&["SET", tokens::COUNTER, "3"]).await;
        assert!(is_denied(wire.try_take(OURS, "1", least, tokens::DAY).await), "{right}");
        assert_eq!(admin.look().await, FREE, "{right}");
        // A hold that existed before is not touched.
        assert_eq!(admin.acquire(OURS, 1, LEASE).await, DONE);
        admin.ask::<()>(&["DEL", tokens::COUNTER]).await;
        let refused = wire.try_take(OURS, "1", least, tokens::DAY).await;
        assert!(refused.is_ok() || is_denied(refused), "{right}");
        assert!(is_busy(&admin.look().await), "{right}");
    }
}

#[tokio::test]
async fn a_missing_right_is_an_error_and_not_a_lost_hold() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    admin.acquire(OURS, 1, LEASE).await;
    let before = admin.state().await;
    let mut wire = admin.login(&server, &["allchannels", "+@all", "-hget", "-hdel"]).await;
    for answer in [
        wire.try_acquire(OURS, 1, LEASE).await,
        wire.try_acquire(OURS, 2, LEASE).await,
        wire.try_release(OURS, 1).await,
        wire.try_release(OURS, 0).await,
        wire.try_renew(OURS, LEASE).await,
        wire.try_settle(OURS, 2, LEASE).await,
        wire.try_settle(OURS, 0, LEASE).await,
    ] {
        assert!(is_denied(answer));
    }
    assert_eq!(admin.state().await, before);
}

#[tokio::test]
async fn the_rights_that_the_scripts_need_are_these() {
    let server = Server::start().await;
    let mut admin = Wire::to(&server).await;
    let rights = "&redisson_lock__channel:* +eval +evalsha +script|load +hset +hincrby +hget +hdel +pttl +pexpire +type +del +publish +client";
    let mut wire = admin.login(&server, &rights.split(' ').collect::<Vec<_>>()).await;
    assert_eq!(wire.acquire(OURS, 1, LEASE).await, DONE);
    assert_eq!(wire.acquire(OURS, 2, LEASE).await, DONE);
    assert!(is_busy(&wire.acquire(THEIRS, 1, LEASE).await));
    assert_eq!(wire.release(OURS, 1).await, DONE);
    assert_eq!(wire.renew(OURS, LEASE).await, DONE);
    assert_eq!(wire.settle(OURS, 2, LEASE).await, DONE);
    assert!(is_busy(&wire.look().await));
    assert_eq!(wire.release(OURS, 0).await, ENDED);
    let log: Vec<Value> = admin.ask(&["ACL", "LOG"]).await;
    assert_eq!(log, []);
    // The lock is taken again, to ask for its holder.
    wire.acquire(OURS, 1, LEASE).await;
    for answer in [wire.acquire_naming(THEIRS, LEASE).await, wire.look_naming().await] {
        let Value::Array(parts) = answer else { panic!("no list") };
        assert!(matches!(parts[..], [Value::Int(1..)]), "the TTL alone: {parts:?}");
    }
    assert!(is_denied(wire.who().await));
    // A key that the user may not read is not deleted.
    assert!(is_denied(wire.run("force", &[CHANNEL]).await));
    assert!(is_busy(&wire.look().await));
    admin.ask::<()>(&["ACL", "SETUSER", "worker", "+hscan"]).await;
    assert_eq!(whose(&wire.acquire_naming(THEIRS, LEASE).await), (OURS, "1"));
    assert_eq!(whose(&wire.look_naming().await), (OURS, "1"));
    assert_eq!(whose(&wire.who().await.unwrap()), (OURS, "1"));
    assert_eq!(wire.force().await, DONE);
}

#[tokio::test]
async fn a_full_server_refuses_grants_and_still_takes_releases() {
    let server = Server::with(&["--maxmemory-policy", "noeviction"]).await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(OURS, 1, LEASE).await;
    wire.acquire(OURS, 2, LEASE).await;
    wire.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let before = wire.state().await;

    let text = refusal(wire.try_acquire(OURS, 3, 2 * LEASE).await);
    assert!(text.contains("OOM"), "{text}");
    let Value::BulkString(why) = wire.release(OURS, 1).await else { panic!("not deferred") };
    assert!(why.starts_with(b"OOM"), "{why:?}");
    let Value::BulkString(why) = wire.settle(OURS, 1, LEASE / 2).await else { panic!("not deferred") };
    assert!(why.starts_with(b"OOM"), "{why:?}");
    assert_eq!(wire.state().await, before, "what was refused changed nothing");

    assert_eq!(wire.release(OURS, 2).await, DONE, "the count is already lower");
    assert_eq!(wire.renew(OURS, 2 * LEASE).await, DONE);
    assert!(wire.end().await > before.1);
    assert!(is_busy(&wire.acquire(THEIRS, 1, LEASE).await));
    assert_eq!(wire.release(OURS, 0).await, ENDED);
    assert_eq!(wire.look().await, FREE);
    let text = refusal(wire.try_acquire(OURS, 1, LEASE).await);
    assert!(text.contains("OOM"), "{text}");
    assert_eq!(wire.look().await, FREE);
}

/// The client counts on that lease even if the count is deferred: otherwise others would get the lock while its guard is valid.
#[tokio::test]
async fn on_a_full_server_a_settle_raises_the_lease_whatever_becomes_of_the_count() {
    let server = Server::with(&["--maxmemory-policy", "noeviction"]).await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(OURS, 1, LEASE).await;
    wire.acquire(OURS, 2, LEASE).await;
    let end = wire.end().await;
    wire.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let answer = wire.settle(OURS, 1, LEASE + 100_000).await;
    let raised = wire.end().await;
    assert!(raised >= end + 100_000, "{raised} after {end}: {answer:?}");
}

#[tokio::test]
async fn a_full_server_frees_by_settle_and_by_force() {
    let server = Server::with(&["--maxmemory-policy", "noeviction"]).await;
    let mut wire = Wire::to(&server).await;
    for way in ["settle", "force"] {
        wire.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
        wire.acquire(OURS, 1, LEASE).await;
        wire.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
        let answer = match way {
            "settle" => wire.settle(OURS, 0, LEASE).await,
            _ => wire.force().await,
        };
        assert_eq!(answer, DONE, "{way}");
        assert_eq!(wire.look().await, FREE, "{way}");
    }
}

#[tokio::test]
async fn a_read_only_replica_refuses_and_changes_nothing() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(OURS, 1, LEASE).await;
    wire.acquire(OURS, 2, LEASE).await;
    // No server listens at port 1, so this one stays a replica with its data.
    wire.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let before = wire.state().await;
    for answer in [
        wire.try_acquire(OURS, 3, LEASE).await,
        wire.try_release(OURS, 0).await,
        wire.try_renew(OURS, 2 * LEASE).await,
        wire.try_settle(OURS, 1, 2 * LEASE).await,
        wire.try_settle(OURS, 0, LEASE).await,
        wire.run("force", &[CHANNEL]).await,
    ] {
        let text = refusal(answer);
        assert!(text.contains("READONLY") || text.contains("read only replica"), "{text}");
    }
    // As far as the client knows, the hold is live. So an inner release is deferred and doesn't fail.
    let Value::BulkString(why) = wire.release(OURS, 1).await else { panic!("not deferred") };
    assert!(why.starts_with(b"READONLY"), "{why:?}");
    assert!(is_busy(&wire.look().await));
    assert_eq!(wire.state().await, before);
}

/// Otherwise a server that was replaced would confirm a hold that is over at the new one.
#[tokio::test]
async fn a_replica_confirms_no_hold_whose_key_stays_for_longer() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.acquire(OURS, 1, LEASE).await;
    let before = wire.state().await;
    let shorter = (LEASE / 2).to_string();
    assert!(is_longer(&wire.renew(OURS, LEASE / 2).await));
    assert!(
        matches!(&wire.run("renew_all", &[OURS, &shorter]).await, Ok(Value::Array(all)) if is_longer(&all[0]))
    );
    assert_eq!(wire.state().await, before, "the renewals change nothing");
    assert_eq!(wire.settle(OURS, 1, LEASE / 2).await, DONE);
    assert_eq!(wire.acquire(OURS, 1, LEASE / 2).await, DONE);
    assert_eq!(wire.run("move", &[OURS, THEIRS, &shorter]).await.unwrap(), DONE);
    assert_eq!(wire.state().await, before, "nor does what finds that nothing has to be changed");
    wire.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    for answer in [
        wire.try_settle(OURS, 1, LEASE / 2).await,
        wire.try_settle(OURS, 2, LEASE / 2).await,
        wire.try_acquire(OURS, 1, LEASE / 2).await,
        wire.run("move", &[OURS, THEIRS, &shorter]).await,
    ] {
        let text = refusal(answer);
        assert!(text.contains("READONLY") || text.contains("read only replica"), "{text}");
    }
    let alone = format!("{:?}", wire.try_renew(OURS, LEASE / 2).await);
    let together = format!("{:?}", wire.run("renew_all", &[OURS, &shorter]).await);
    for text in [alone, together] {
        assert!(text.contains("read only replica") && text.contains("nothing written"), "{text}");
    }
    assert_eq!(wire.state().await, before);
}

#[tokio::test]
async fn a_key_in_its_last_millisecond_is_held_and_not_free() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    for script in ["look", "acquire"] {
        let script = file(script);
        soon("a TTL of 0 ms", async {
            loop {
                let mut pipe = redis::pipe();
                pipe.cmd("DEL").arg(KEY).ignore().cmd("HSET").arg(KEY).arg(THEIRS).arg(1).ignore();
                pipe.cmd("PEXPIRE").arg(KEY).arg(1).ignore().load_script(&script).ignore();
                for _ in 0..200 {
                    pipe.cmd("EVALSHA").arg(script.get_hash()).arg(1).arg(KEY).arg(&[OURS, "1", "1"]);
                }
                let answers: Vec<i64> = pipe.query_async(&mut wire.redis).await.unwrap();
                let held = answers.iter().take_while(|&&answer| answer >= 0).count();
                assert!(answers[..held].iter().all(|ttl| (0..=1).contains(ttl)), "{answers:?}");
                // After its end the lock is free, or this acquire took it.
                assert!(answers.get(held).is_none_or(|&answer| answer == -3 || answer == -1), "{answers:?}");
                if answers[..held].contains(&0) {
                    break;
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn what_comes_after_the_lease_ended_finds_nothing() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    assert_eq!(wire.acquire(OURS, 1, 20).await, DONE);
    soon("the end of the lease", async { while wire.look().await != FREE {} }).await;
    assert_eq!(wire.acquire(OURS, 2, LEASE).await, GONE);
    assert_eq!(wire.renew(OURS, LEASE).await, GONE);
    assert_eq!(wire.release(OURS, 0).await, GONE);
    assert_eq!(wire.acquire(THEIRS, 1, LEASE).await, DONE);
}
