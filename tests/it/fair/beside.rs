//! Others at the same lock: clients that know no line, and users without the rights for one.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures::future::join_all;
use nestlock::Owner;

use super::{granted, process, stand, tidy, waits};
use crate::support::log;
use crate::support::server::{Server, allow_its_name};
use crate::support::{self, SECOND, eventually, soon};

/// Such a client gets the lock when nobody is left in the line.
#[tokio::test]
async fn a_client_that_knows_no_line_gets_the_lock_behind_those_who_wait_in_it() {
    let server = Server::start().await;
    let holds = process(&server.url()).await;
    let guard = holds.mutex("stock").lock().await.unwrap();
    let plain = support::without_timers(support::builder(&server.url())).fair(false).connect().await.unwrap();
    let (one, two) = (process(&server.url()).await, process(&server.url()).await);
    let other = waits(&plain);
    eventually("its subscription", async || !server.all_channels().await.is_empty()).await;
    let first = waits(&one);
    stand(&server, 1).await;
    let second = waits(&two);
    stand(&server, 2).await;
    guard.release().await.unwrap();
    let first = granted(first).await;
    first.release().await.unwrap();
    let second = granted(second).await;
    assert!(!other.is_finished());
    second.release().await.unwrap();
    let other = granted(other).await;
    // The other way round: its release wakes those in the line, and the first of them gets the lock.
    let first = waits(&one);
    stand(&server, 1).await;
    let second = waits(&two);
    stand(&server, 2).await;
    other.release().await.unwrap();
    granted(first).await.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn one_is_inside_at_a_time_whoever_knows_of_the_line() {
    const TURNS: usize = 25;
    let server = Server::start().await;
    let inside = AtomicUsize::new(0);
    let mut all = Vec::new();
    for number in 0..5 {
        let builder = support::builder(&server.url()).fair(number > 1).poll_interval(SECOND);
        all.push(builder.connect().await.unwrap());
    }
    let each = all.iter().map(async |locks| {
        let stock = locks.mutex("stock");
        for _ in 0..TURNS {
            let guard = stock.lock().await.unwrap();
            assert_eq!(inside.fetch_add(1, SeqCst), 0, "two were inside at once");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, SeqCst);
            guard.release().await.unwrap();
        }
    });
    soon("all of them", join_all(each)).await;
    tidy(&server).await;
}

/// The user lacks the rights that a line needs and a lock doesn't.
#[tokio::test]
async fn a_user_without_the_rights_of_a_line_has_locks_without_one() {
    let server = Server::start().await;
    for (number, (keys, channels)) in [
        ("~app:*", "&app:*"),
        ("~app:*", "&app:redisson_lock__channel:*"),
        ("~app:stock", "&app:redisson_lock__channel:*"),
    ]
    .into_iter()
    .enumerate()
    {
        let user = format!("locker{number}");
        let rights = "+eval +evalsha +hset +hincrby +hget +hdel +hscan +pttl +pexpire +type +del +publish +subscribe +unsubscribe +ping +info";
        let start = ["ACL", "SETUSER", &user, "reset", "on", ">secret", keys, channels];
        let command: Vec<_> = start.into_iter().chain(rights.split(' ')).collect();
        server.ask::<()>(&command).await;
        allow_its_name(&server, &user).await;
        let url = server.url().replace("redis://", &format!("redis://{user}:secret@"));
        let connect = async || {
            let builder = support::builder(&url).prefix("app:").fair(true).poll_interval(SECOND);
            builder.connect().await.unwrap()
        };
        let (one, two) = (connect().await, connect().await);
        let holds = one.mutex("stock").lock().await.unwrap();
        let waiter = waits(&two);
        eventually("the waiter", async || !server.all_channels().await.is_empty()).await;
        assert!(
            two.mutex("stock").try_lock().owner(&Owner::new()).await.unwrap().is_none(),
            "{keys} {channels}"
        );
        holds.release().await.unwrap();
        let kept = granted(waiter).await;
        let waiter = waits(&one);
        assert!(one.mutex("stock").force_release().await.unwrap(), "{keys} {channels}");
        kept.release().await.unwrap_err();
        granted(waiter).await.release().await.unwrap();
        eventually("the end", async || server.all_keys().await.is_empty()).await;
        one.close().await.unwrap();
        two.close().await.unwrap();
    }
}

/// A server counts and logs what it denies.
#[tokio::test]
async fn what_a_user_may_not_do_in_a_line_is_tried_once_a_connection_and_reported_once() {
    const TURNS: usize = 5;
    let server = Server::start().await;
    let rights = ["reset", "on", ">secret", "~*", "&*", "+@all", "-zadd"];
    server.ask::<()>(&[&["ACL", "SETUSER", "locker"][..], &rights].concat()).await;
    let url = server.url().replace("redis://", "redis://locker:secret@");
    let connect = async || {
        let builder = support::without_timers(support::builder(&url)).fair(true);
        builder.connect().await.unwrap()
    };
    let denied = async || {
        let log: Vec<std::collections::BTreeMap<String, redis::Value>> = server.ask(&["ACL", "LOG"]).await;
        let count = |entry: &std::collections::BTreeMap<String, redis::Value>| match entry["count"] {
            redis::Value::Int(count) => count,
            ref other => panic!("no count: {other:?}"),
        };
        log.iter().map(count).sum::<i64>()
    };
    let (one, two) = (connect().await, connect().await);
    for _ in 0..TURNS {
        for (holds, other) in [(&one, &two), (&two, &one)] {
            let guard = holds.mutex("stock").lock().await.unwrap();
            let before = server.scripts_run().await;
            let waiter = waits(other);
            // It asks, subscribes, and asks again.
            eventually("the waiter", async || server.scripts_run().await >= before + 2).await;
            guard.release().await.unwrap();
            granted(waiter).await.release().await.unwrap();
        }
    }
    assert_eq!(denied().await, 2, "one for each connection");
    let address = server.port().to_string();
    let reports =
        |event: &log::Event| event.mentions(&address) && event.message.contains("the lines of locks");
    assert_eq!(log::all(reports).len(), 2);
    // Once the right is granted, the next connection uses it.
    server.ask::<()>(&["ACL", "SETUSER", "locker", "+zadd"]).await;
    server.ask::<()>(&["CLIENT", "KILL", "USER", "locker"]).await;
    let guard = one.mutex("stock").lock().await.unwrap();
    let waiter = waits(&two);
    stand(&server, 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    tidy(&server).await;
}
