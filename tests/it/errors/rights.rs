//! Users with few rights: which rights are enough, and which errors the others cause.

use std::collections::HashMap;
use std::time::Duration;

use nestlock::{Error, ErrorKind, Locks};

use super::is;
use crate::support::server::{Server, allow_its_name};
use crate::support::{SECOND, builder, eventually, log, quorum, soon};

const PASSWORD: &str = "bobs-own";

/// All rights that a lock needs, and no others.
const ENOUGH: [&str; 6] = [
    "%RW~app:*",
    "&app:*",
    "+eval +evalsha +subscribe +unsubscribe +ping",
    "+pttl +type +pexpire +publish",
    "+hset +hincrby +hget +hdel +del",
    "+zadd +zpopmin +zrem +zrange +zcard +pubsub|numsub +time",
];

/// The additional right with which the client warns about a server that may evict locks. It is used once, and the server logs a denial.
const POLICY: &str = "+info";

/// The additional right to see who holds a lock.
const NAMES: &str = "+hscan";

/// The additional rights of a lock with fencing tokens.
const FENCED: &str = "+get +set +incr +exists +time";

/// Makes the user `bob` with these rights and no others.
async fn bob(server: &Server, rights: &[&str]) {
    let rights = rights.iter().flat_map(|rights| rights.split(' '));
    let password = format!(">{PASSWORD}");
    let command: Vec<_> =
        ["ACL", "SETUSER", "bob", "reset", "on", &password].into_iter().chain(rights).collect();
    server.ask::<()>(&command).await;
    allow_its_name(server, "bob").await;
}

fn url(server: &Server) -> String {
    format!("redis://bob:{PASSWORD}@127.0.0.1:{}", server.port())
}

async fn connect(server: &Server) -> Locks {
    builder(&url(server)).prefix("app:").connect().await.unwrap()
}

/// Makes each call that sends a command, by two clients of one lock.
async fn each_call_passes(server: &Server, prefix: &str, name: &str, connect: impl AsyncFn() -> Locks) {
    let (locks, others) = (connect().await, connect().await);
    let stock = locks.mutex(name);
    let guard = stock.lock().await.unwrap();
    stock.run(async |_| {}).await.unwrap();
    guard.extend(Duration::from_secs(60)).await.unwrap();
    let stranger = others.mutex(name);
    assert!(stranger.try_lock().await.unwrap().is_none());
    assert!(stranger.is_locked().await.unwrap());
    assert_eq!(stranger.holder().await.unwrap().unwrap().hold_id(), guard.hold_id());
    let error = stranger.lock().within(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.holder().map(|holder| holder.hold_id()), Some(guard.hold_id()));
    let waits = tokio::spawn(async move { stranger.lock().await.unwrap().release().await });
    eventually("the waiter is subscribed", async || !server.channels().await.is_empty()).await;
    let channels = server.all_channels().await;
    assert!(channels.iter().all(|channel| channel.starts_with(prefix)), "{channels:?}");
    assert_eq!(server.keys().await, [format!("{prefix}{name}")]);
    guard.release().await.unwrap();
    soon("the waiter", waits).await.unwrap().unwrap();
    let kept = stock.lock().at_least(Duration::from_secs(60)).await.unwrap();
    kept.check().await.unwrap();
    let claim = kept.into_claim().await.unwrap();
    others.mutex(name).resume(&claim).await.unwrap().release().await.unwrap();
    let kept = stock.lock().at_least(Duration::from_secs(60)).await.unwrap();
    let claim = kept.into_claim().await.unwrap();
    others.mutex(name).resume(&claim).await.unwrap().release().await.unwrap();
    let kept = stock.lock().at_least(Duration::from_secs(60)).await.unwrap();
    kept.release().await.unwrap();
    assert!(stock.force_release().await.unwrap());
    let _guard = stock.lock().await.unwrap();
    assert!(stock.force_release().await.unwrap());
    eventually("silence", async || server.channels().await.is_empty()).await;
}

async fn assert_nothing_was_denied(server: &Server) {
    let log: Vec<redis::Value> = server.ask(&["ACL", "LOG"]).await;
    assert!(log.is_empty(), "something else was tried: {log:?}");
}

#[tokio::test]
async fn the_keys_and_channels_under_the_prefix_are_enough() {
    let server = Server::start().await;
    bob(&server, &[&ENOUGH[..], &[NAMES, POLICY]].concat()).await;
    for _ in 0..2 {
        for name in ["stock", "{tag}:stock", "a}b"] {
            each_call_passes(&server, "app:", name, async || connect(&server).await).await;
        }
        // The scripts are flushed, so that now their bodies are sent.
        server.ask::<()>(&["SCRIPT", "FLUSH"]).await;
    }
    assert_nothing_was_denied(&server).await;
}

/// Makes each call of a lock with fencing tokens.
async fn each_fenced_call_passes(
    server: &Server,
    prefix: &str,
    name: &str,
    connect: impl AsyncFn() -> Locks,
) {
    let (locks, others) = (connect().await, connect().await);
    let stock = locks.mutex(name).fenced();
    let guard = stock.lock().await.unwrap();
    stock.run(async |_| {}).await.unwrap();
    guard.extend(Duration::from_secs(60)).await.unwrap();
    let counter = format!("{prefix}redisson_lock_token:{{{prefix}{name}}}");
    assert_eq!(server.keys().await, [counter.clone(), format!("{prefix}{name}")]);
    let stranger = others.mutex(name).fenced();
    assert!(stranger.try_lock().await.unwrap().is_none());
    // First the counter is ahead of the clock, so that it is counted up. Then it is lost, so that it is restored.
    server.ask::<()>(&["SET", &counter, "5000000000000000", "KEEPTTL"]).await;
    let before = guard.token();
    guard.release().await.unwrap();
    let guard = stranger.lock().await.unwrap();
    assert!(guard.token() > before);
    server.ask::<()>(&["DEL", &counter]).await;
    guard.extend(Duration::from_secs(60)).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.keys().await, [&*counter]);
    server.ask::<()>(&["DEL", &counter]).await;
}

/// Returns the lines of the operations guide that begin with this: those that make the user, and those that add rights.
fn lines(begin: &str) -> Vec<&'static str> {
    include_str!("../../../docs/operations.md").lines().filter(|line| line.starts_with(begin)).collect()
}

/// On Redis 6.2, and where it is set, a new user has the right to all channels, and each pattern that is added to it is an error.
#[tokio::test]
async fn the_lines_of_the_guide_are_enough_as_they_stand() {
    for channels in ["resetchannels", "allchannels"] {
        let server = Server::start().await;
        server.ask::<()>(&["CONFIG", "SET", "acl-pubsub-default", channels]).await;
        the_lines_are_enough(&server).await;
    }
}

async fn the_lines_are_enough(server: &Server) {
    let (made, more) = (lines("ACL SETUSER locker reset "), lines("ACL SETUSER locker +"));
    assert_eq!(made.len(), 2, "one without a prefix, one with the prefix `app:`");
    let [fenced] = more[..] else { panic!("one for fencing tokens: {more:?}") };
    let url = format!("redis://locker:secret@127.0.0.1:{}", server.port());
    for (line, prefix) in made.into_iter().zip(["", "app:"]) {
        server.ask::<()>(&line.split(' ').collect::<Vec<_>>()).await;
        allow_its_name(server, "locker").await;
        let connect = async || builder(&url).prefix(prefix).connect().await.unwrap();
        each_call_passes(server, prefix, "stock:42", connect).await;
        server.ask::<()>(&["SCRIPT", "FLUSH"]).await;
        each_call_passes(server, prefix, "stock:43", connect).await;
        server.ask::<()>(&fenced.split(' ').collect::<Vec<_>>()).await;
        each_fenced_call_passes(server, prefix, "stock:42", connect).await;
        let forever = async || builder(&url).prefix(prefix).token_ttl(Duration::MAX).connect().await.unwrap();
        each_fenced_call_passes(server, prefix, "stock:43", forever).await;
        server.ask::<()>(&["SCRIPT", "FLUSH"]).await;
        each_fenced_call_passes(server, prefix, "stock:44", connect).await;
        a_lock_is_handed_on(server, prefix, "stock:45", connect).await;
    }
    assert_nothing_was_denied(server).await;
}

/// Checks that a released lock is handed to the first of its line.
async fn a_lock_is_handed_on(server: &Server, prefix: &str, name: &str, connect: impl AsyncFn() -> Locks) {
    let (locks, others) = (connect().await, connect().await);
    let guard = locks.mutex(name).lock().await.unwrap();
    let stranger = others.mutex(name);
    let waits = tokio::spawn(async move { stranger.lock().await.unwrap().release().await });
    let line = format!("{prefix}nestlock_line:{{{prefix}{name}}}");
    eventually("it waits in the line", async || server.all_keys().await.contains(&line)).await;
    guard.release().await.unwrap();
    soon("the waiter", waits).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_fenced_lock_needs_a_few_rights_more() {
    let server = Server::start().await;
    let rights = ENOUGH.into_iter().chain([FENCED, POLICY]).collect::<Vec<_>>();
    bob(&server, &rights).await;
    each_fenced_call_passes(&server, "app:", "stock", async || connect(&server).await).await;
    assert_nothing_was_denied(&server).await;
}

#[tokio::test]
async fn a_counter_outside_of_the_users_keys_is_denied_by_its_name_and_leaves_nothing() {
    let server = Server::start().await;
    let rights = ["%RW~stock", "&*", "+@all"];
    bob(&server, &rights).await;
    let locks = builder(&url(&server)).connect().await.unwrap();
    let stock = locks.mutex("stock").fenced();
    for error in [
        soon("lock", stock.lock()).await.unwrap_err(),
        soon("try_lock", stock.try_lock()).await.unwrap_err(),
        soon("run", stock.run(async |_| {})).await.unwrap_err(),
    ] {
        let text = ["`stock`", "`redisson_lock_token:{stock}`", "ACL SETUSER"];
        is(&error, ErrorKind::Denied, Some("stock"), &text);
    }
    assert!(server.keys().await.is_empty());
    soon("a plain one", locks.mutex("stock").run(async |_| {})).await.unwrap();
}

#[tokio::test]
async fn a_right_that_a_counter_needs_is_denied_where_it_is_missing_and_leaves_no_lock() {
    let server = Server::start().await;
    let counter = "app:redisson_lock_token:{app:stock}";
    for (missing, stands) in
        [("-get", ""), ("-exists", ""), ("-time", ""), ("-set", ""), ("-incr", "5000000000000000")]
    {
        let rights = ENOUGH.into_iter().chain([FENCED, missing]).collect::<Vec<_>>();
        bob(&server, &rights).await;
        if !stands.is_empty() {
            server.ask::<()>(&["SET", counter, stands]).await;
        }
        let locks = connect(&server).await;
        let error = soon("lock", locks.mutex("stock").fenced().lock()).await.unwrap_err();
        is(&error, ErrorKind::Denied, Some("stock"), &["acquire", "right", "ACL SETUSER"]);
        eventually("no lock is left", async || server.keys().await.iter().all(|key| key == counter)).await;
        server.ask::<()>(&["FLUSHALL"]).await;
    }
}

/// The hold stays good: only its counter can't be kept.
#[tokio::test]
async fn rights_to_the_counter_taken_away_under_a_guard_end_nothing() {
    let server = Server::start().await;
    let rights = ENOUGH.into_iter().chain([FENCED]).collect::<Vec<_>>();
    bob(&server, &rights).await;
    let second = Duration::from_secs(1);
    let locks = builder(&url(&server)).prefix("app:").lease(6 * second).connect().await.unwrap();
    let stock = locks.mutex("stock").fenced();
    let guard = stock.lock().await.unwrap();
    server.ask::<()>(&["ACL", "SETUSER", "bob", "-get", "-set", "-exists"]).await;
    let end = guard.valid_until();
    eventually("renewals", async || guard.valid_until() > end + 6 * second).await;
    soon("a re-entry", stock.run(async |_| {})).await.unwrap();
    soon("the release", guard.release()).await.unwrap();
    assert!(!stock.is_locked().await.unwrap());
}

/// Everything works, but holders have no names. The client tries the right once, since a server counts and logs each denial.
#[tokio::test]
async fn without_the_right_to_names_all_works_and_they_are_asked_for_once() {
    let server = Server::start().await;
    bob(&server, &[&ENOUGH[..], &[POLICY]].concat()).await;
    let locks = connect(&server).await;
    let others = connect(&server).await;
    let (stock, stranger) = (locks.mutex("stock"), others.mutex("stock"));
    let guard = stock.lock().await.unwrap();
    let denied = async || {
        let log: Vec<HashMap<String, redis::Value>> = server.ask(&["ACL", "LOG"]).await;
        log.iter().map(|entry| redis::from_redis_value::<u64>(entry["count"].clone()).unwrap()).sum::<u64>()
    };
    for _ in 0..5 {
        let error = stranger.lock().within(Duration::ZERO).await.unwrap_err();
        is(&error, ErrorKind::Timeout, Some("stock"), &["somebody else held it"]);
        assert_eq!(error.holder(), None);
        assert!(stranger.try_lock().await.unwrap().is_none());
    }
    assert_eq!(denied().await, 1);
    let error = stranger.holder().await.unwrap_err();
    is(&error, ErrorKind::Denied, Some("stock"), &["who", "right", "ACL SETUSER"]);
    // Once the right is granted, the client uses it from the next query for the holder on.
    server.ask::<()>(&["ACL", "SETUSER", "bob", NAMES]).await;
    assert!(stranger.lock().within(Duration::ZERO).await.unwrap_err().holder().is_none());
    assert_eq!(stranger.holder().await.unwrap().unwrap().hold_id(), guard.hold_id());
    let error = stranger.lock().within(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.holder().map(|holder| holder.hold_id()), Some(guard.hold_id()));
    let waits = tokio::spawn(async move { stranger.lock().await.unwrap().release().await });
    eventually("the waiter is subscribed", async || !server.channels().await.is_empty()).await;
    guard.release().await.unwrap();
    soon("the waiter", waits).await.unwrap().unwrap();
}

#[tokio::test]
async fn who_waits_is_nobody_for_a_user_without_the_rights_to_the_line() {
    let server = Server::start().await;
    bob(&server, &[&ENOUGH[..], &[NAMES, POLICY]].concat()).await;
    let stock = async || connect(&server).await.mutex("stock");
    let guard = stock().await.lock().await.unwrap();
    let waits = tokio::spawn(stock().await.lock().into_future());
    eventually("it waits", async || stock().await.waiters().await.unwrap().len() == 1).await;
    for denied in ["-zrange", "-time", "resetkeys %RW~app:stock"] {
        bob(&server, &[&ENOUGH[..], &[NAMES, POLICY, denied]].concat()).await;
        assert!(stock().await.waiters().await.unwrap().is_empty(), "{denied}");
        assert!(stock().await.holder().await.unwrap().is_some());
    }
    waits.abort();
    drop(guard);
}

#[tokio::test]
async fn a_key_outside_of_the_users_is_denied_by_its_name() {
    let server = Server::start().await;
    bob(&server, &["%RW~app:*", "&*", "+@all"]).await;
    let locks = builder(&url(&server)).connect().await.unwrap();
    let stock = locks.mutex("stock");
    for error in [
        soon("lock", stock.lock()).await.unwrap_err(),
        soon("try_lock", stock.try_lock()).await.unwrap_err(),
        soon("a look", stock.is_locked()).await.unwrap_err(),
        soon("force", stock.force_release()).await.unwrap_err(),
    ] {
        is(&error, ErrorKind::Denied, Some("stock"), &["key `stock`", "ACL SETUSER", "127.0.0.1:"]);
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_right_that_is_missing_is_denied_and_leaves_nothing() {
    let server = Server::start().await;
    for missing in ["-eval -evalsha", "-hset", "-pexpire", "-pttl"] {
        let mut rights = ENOUGH.to_vec();
        rights.push(missing);
        bob(&server, &rights).await;
        let locks = connect(&server).await;
        let error = soon("lock", locks.mutex("stock").lock()).await.unwrap_err();
        is(&error, ErrorKind::Denied, Some("stock"), &["acquire", "right", "ACL SETUSER"]);
        eventually("nothing is left", async || server.keys().await.is_empty()).await;
    }
}

#[tokio::test]
async fn a_user_without_publish_releases_and_waiters_find_out_by_polling() {
    let server = Server::start().await;
    let mut rights = ENOUGH.to_vec();
    rights.push("-publish");
    bob(&server, &rights).await;
    let poll = Duration::from_millis(200);
    let connect = async || builder(&url(&server)).prefix("app:").poll_interval(poll).connect().await.unwrap();
    let (locks, others) = (connect().await, connect().await);
    let guard = locks.mutex("stock").lock().await.unwrap();
    let stranger = others.mutex("stock");
    let waits = tokio::spawn(async move { stranger.lock().await });
    eventually("the waiter is subscribed", async || !server.channels().await.is_empty()).await;
    guard.release().await.unwrap();
    soon("the waiter", waits).await.unwrap().unwrap().release().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    drop(guard);
    eventually("nothing is left", async || server.keys().await.is_empty()).await;
}

/// The process learns at its first release that it may not publish. From then on the others see by its field that they have to ask.
#[tokio::test]
async fn a_user_without_publish_takes_turns_with_those_who_wait() {
    let server = Server::start().await;
    bob(&server, &[&ENOUGH[..], &[NAMES, "-publish"]].concat()).await;
    let others = builder(&server.url()).prefix("app:").connect().await.unwrap();
    let locks = connect(&server).await;
    let stock = locks.mutex("stock");
    stock.run(async |_| {}).await.unwrap();
    let polls = stock.run(async |hold| hold.hold_id().contains(":-")).await.unwrap();
    assert!(polls, "the others would sleep until they are told");
    let stranger = others.mutex("stock");
    let waits = tokio::spawn(async move {
        for _ in 0..3 {
            stranger.run(async |_| {}).await.unwrap();
        }
    });
    soon("the turns of the waiter", async {
        while !waits.is_finished() {
            stock.run(async |_| tokio::task::yield_now().await).await.unwrap();
        }
    })
    .await;
    waits.await.unwrap();
}

#[tokio::test]
async fn a_user_without_subscribe_waits_by_polling() {
    for missing in ["-subscribe", "resetchannels &other:*"] {
        let server = Server::start().await;
        let mut rights = ENOUGH.to_vec();
        rights.push(missing);
        bob(&server, &rights).await;
        let (locks, others) = (connect(&server).await, connect(&server).await);
        let guard = locks.mutex("stock").lock().await.unwrap();
        let stranger = others.mutex("stock");
        let waits = tokio::spawn(async move { stranger.lock().await });
        let address = format!("127.0.0.1:{}", server.port());
        crate::support::log::recorded(|event| {
            event.mentions(&address) && event.mentions("app:redisson_lock__channel:")
        })
        .await;
        guard.release().await.unwrap();
        soon("the waiter", waits).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn rights_revoked_under_a_guard_are_reported_by_the_release() {
    let server = Server::start().await;
    bob(&server, &ENOUGH).await;
    let locks = connect(&server).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    server.ask::<()>(&["ACL", "SETUSER", "bob", "-evalsha", "-eval"]).await;
    let error: Error = guard.release().await.unwrap_err();
    is(&error, ErrorKind::Denied, Some("stock"), &["release", "eval"]);
    server.ask::<()>(&["ACL", "SETUSER", "bob", "+evalsha", "+eval"]).await;
    eventually("the release in the background", async || server.keys().await.is_empty()).await;
}

/// One master took the command, and it is unknown whether it counts. What comes after it waits for the background.
#[tokio::test]
async fn what_waits_for_a_command_that_a_majority_refuses_names_the_log_where_the_reason_is() {
    let servers = [Server::start().await, Server::start().await, Server::start().await];
    for server in &servers {
        bob(server, &ENOUGH).await;
    }
    let masters = quorum(servers.each_ref().map(url)).prefix("app:").node_timeout(SECOND);
    let locks = masters.connect().await.unwrap();
    let stock = locks.mutex("refused-by-most");
    let guard = stock.lock().await.unwrap();
    for server in &servers[1..] {
        server.ask::<()>(&["ACL", "SETUSER", "bob", "-evalsha", "-eval"]).await;
    }
    is(&guard.check().await.unwrap_err(), ErrorKind::Denied, Some("refused-by-most"), &["NOPERM"]);
    let nested = stock.lock().within(SECOND).await.unwrap_err();
    is(&nested, ErrorKind::Unavailable, Some("refused-by-most"), &["refuses it", "log"]);
    let late = guard.release().await.unwrap_err();
    is(&late, ErrorKind::Unavailable, Some("refused-by-most"), &["in time", "log"]);
    log::recorded(|event| event.mentions("refused-by-most") && event.mentions("NOPERM")).await;
    for server in &servers[1..] {
        server.ask::<()>(&["ACL", "SETUSER", "bob", "+evalsha", "+eval"]).await;
    }
    for server in &servers {
        eventually("the release in the background", async || server.keys().await.is_empty()).await;
    }
}

/// No command has run, so nothing is repeated, undone or waited for.
#[tokio::test]
async fn a_server_that_runs_no_scripts_is_an_error_at_once() {
    let server = Server::with(&["--rename-command", "EVALSHA", "", "--rename-command", "EVAL", ""]).await;
    let locks = builder(&server.url()).unavailable_after(Duration::MAX).connect().await.unwrap();
    for error in [
        soon("lock", locks.mutex("stock").lock()).await.unwrap_err(),
        soon("try_lock", locks.mutex("stock").try_lock()).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Config, Some("stock")), "{error}");
        let text = error.to_string();
        assert!(text.contains("unknown command 'EVAL") && text.contains("sentinel"), "{text}");
    }
    soon("close", locks.close()).await.unwrap();
}
