//! Other clients at the same lock: some do not know the line, and some users lack the rights for it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use nestlock::{Locks, Owner};
use redis::aio::{MultiplexedConnection, PubSub};

use super::{granted, process, stand, tidy, waits};
use crate::support::line::alone;
use crate::support::log;
use crate::support::proxy::{Proxy, Which};
use crate::support::server::{Server, allow_its_name};
use crate::support::{self, SECOND, eventually, soon};

const CHANNEL: &str = "redisson_lock__channel:{stock}";

/// Counts turns.
type Turns = AtomicUsize;

/// A client that asks for `stock` in the order in which Redisson does, and is woken by the same messages.
struct Outsider {
    commands: MultiplexedConnection,
    messages: PubSub,
    turns: u64,
}

impl Outsider {
    async fn of(server: &Server) -> Outsider {
        let client = redis::Client::open(server.url()).unwrap();
        let (commands, messages) =
            tokio::join!(client.get_multiplexed_async_connection(), client.get_async_pubsub());
        Outsider { commands: commands.unwrap(), messages: messages.unwrap(), turns: 0 }
    }

    /// Takes `stock`, and returns the field that it used.
    async fn lock(&mut self, name: &str) -> String {
        self.turns += 1;
        let field = format!("{name}:{}", self.turns);
        if self.asks(&field).await {
            return field;
        }
        self.messages.subscribe(CHANNEL).await.unwrap();
        while !self.asks(&field).await {
            // Waits for a number, which is what Redisson's codec reads.
            while self.messages.on_message().next().await.unwrap().get_payload() != Ok(0_i64) {}
        }
        self.messages.unsubscribe(CHANNEL).await.unwrap();
        field
    }

    async fn asks(&mut self, field: &str) -> bool {
        let script = redis::Script::new(
            "if redis.call('EXISTS', KEYS[1]) == 0 then
               redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
               redis.call('PEXPIRE', KEYS[1], 600000)
               return nil
             end
             return redis.call('PTTL', KEYS[1])",
        );
        let busy: Option<i64> =
            script.key("stock").arg(field).invoke_async(&mut self.commands).await.unwrap();
        busy.is_none()
    }

    /// Returns the next message.
    async fn next_message(&mut self) -> String {
        soon("a message", self.messages.on_message().next()).await.unwrap().get_payload().unwrap()
    }

    async fn unlock(&mut self, field: &str) {
        let script = redis::Script::new(
            "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
               redis.call('DEL', KEYS[1])
               redis.call('PUBLISH', ARGV[2], 0)
               return 1
             end",
        );
        let freed: Option<i64> =
            script.key("stock").arg(field).arg(CHANNEL).invoke_async(&mut self.commands).await.unwrap();
        assert_eq!(freed, Some(1));
    }
}

/// Takes `stock` again and again.
async fn takes_turns(locks: &Locks, inside: &Turns, turns: &Turns) {
    let stock = locks.mutex("stock");
    loop {
        let guard = stock.lock().await.unwrap();
        alone(inside).await;
        turns.fetch_add(1, SeqCst);
        guard.release().await.unwrap();
    }
}

/// Takes `stock` again and again, as a client that does not know the line.
async fn takes_turns_outside(outsider: &mut Outsider, name: &str, inside: &Turns, turns: &Turns) {
    loop {
        let field = outsider.lock(name).await;
        alone(inside).await;
        turns.fetch_add(1, SeqCst);
        outsider.unlock(&field).await;
    }
}

/// Waits until each of them has had this many turns.
async fn each_has_had(wanted: usize, turns: &[Turns]) {
    eventually("their turns", async || turns.iter().all(|turns| turns.load(SeqCst) >= wanted)).await;
    let shares: Vec<_> = turns.iter().map(|turns| turns.load(SeqCst)).collect();
    println!("{shares:?}");
}

/// Processes of the line, processes without it, and outsiders take the lock again and again until each has had some turns.
async fn share(own: usize, plain: usize, outsiders: usize) {
    const WANTED: usize = 12;
    let server = Server::start().await;
    let inside = Turns::new(0);
    // The outsiders share one count: of those that wait, the fastest one gets the next turn.
    let turns: Vec<Turns> = (0..own + plain + outsiders.min(1)).map(|_| Turns::new(0)).collect();
    let (mut all, mut others) = (Vec::new(), Vec::new());
    for number in 0..own + plain {
        let builder = support::builder(&server.url()).fair(number < own);
        all.push(support::without_timers(builder).connect().await.unwrap());
    }
    for _ in 0..outsiders {
        others.push(Outsider::of(&server).await);
    }
    let (knowing, strange) = turns.split_at(own + plain);
    let knowing = all.iter().zip(knowing).map(|(locks, turns)| takes_turns(locks, &inside, turns));
    let strange = others.iter_mut().enumerate().map(async |(at, outsider)| {
        let name = format!("4be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3{at}");
        takes_turns_outside(outsider, &name, &inside, &strange[0]).await;
    });
    tokio::select! {
        _ = join_all(knowing) => {}
        _ = join_all(strange), if outsiders > 0 => {}
        () = each_has_had(WANTED, &turns) => {}
    }
}

#[tokio::test]
async fn one_who_knows_no_line_has_its_turns_beside_busy_processes() {
    share(6, 0, 1).await;
}

#[tokio::test]
async fn three_who_know_no_line_have_their_turns_and_starve_nobody() {
    share(4, 0, 3).await;
}

#[tokio::test]
async fn a_process_without_lines_has_its_turns_beside_busy_ones() {
    share(4, 1, 0).await;
}

/// A single process takes the lock again and again, so nobody waits in the line.
#[tokio::test]
async fn one_who_knows_no_line_has_its_turns_beside_a_single_busy_process() {
    share(1, 0, 1).await;
}

/// The user may not publish either. So the process polls in the line, and while it has the lock, the other waiters poll too.
#[tokio::test]
async fn one_that_may_not_subscribe_has_its_turns_beside_busy_processes() {
    const WANTED: usize = 12;
    let server = Server::start().await;
    let user = ["ACL", "SETUSER", "mute", "reset", "on", ">secret", "~*", "+@all", "resetchannels"];
    server.ask::<()>(&user).await;
    let url = server.url().replace("redis://", "redis://mute:secret@");
    let mute = support::builder(&url).fair(true).poll_interval(Duration::MAX).connect().await.unwrap();
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(
            support::without_timers(support::builder(&server.url()).fair(true)).connect().await.unwrap(),
        );
    }
    // A process knows only after its first wait that it lacks the right.
    let holds = all[0].mutex("stock").lock().await.unwrap();
    let waiter = waits(&mute);
    stand(&server, 1).await;
    holds.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    all.push(mute);
    let (inside, turns): (_, Vec<_>) = (Turns::new(0), all.iter().map(|_| Turns::new(0)).collect());
    let playing = all.iter().zip(&turns).map(|(locks, turns)| takes_turns(locks, &inside, turns));
    tokio::select! {
        _ = join_all(playing) => {}
        () = each_has_had(WANTED, &turns) => {}
    }
}

/// 1. The lock is left to a client that does not take it. 2. The first process of the line asks by itself.
#[tokio::test]
async fn what_nobody_takes_is_the_first_ones() {
    let server = Server::start().await;
    let mut other = Outsider::of(&server).await;
    other.messages.subscribe(CHANNEL).await.unwrap();
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(process(&server.url()).await);
    }
    let mut guard = processes[2].mutex("stock").lock().await.unwrap();
    let mut waiters = Vec::new();
    for (at, locks) in processes[..2].iter().enumerate() {
        waiters.push(waits(locks));
        stand(&server, at + 1).await;
    }
    let line = super::line(&server).await;
    for (waiter, first) in waiters.into_iter().zip(line) {
        guard.release().await.unwrap();
        guard = granted(waiter).await;
        assert_eq!(super::session(&guard), first);
    }
    assert_eq!(other.next_message().await, "00");
    guard.release().await.unwrap();
    tidy(&server).await;
}

/// 1. A process is stopped, and waits alone in the line. 2. The lock is left to a client that does not know the line. It is slow, finds the
/// lock held, and sleeps until the end of the lease that it sees. 3. The lock is handed to the stopped process. 4. The client is notified,
/// so that it asks again and learns when that ends.
#[tokio::test]
async fn one_who_knows_no_line_is_notified_that_the_last_of_the_line_was_handed_the_lock() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let (holds, stopped) = (process(&server.url()).await, process(&proxy.url()).await);
    let mut guard = holds.mutex("stock").lock().await.unwrap();
    let waiter = waits(&stopped);
    stand(&server, 1).await;
    let first = super::line(&server).await.remove(0);
    let _stopped = proxy.half_open(Which::Subscribers);
    let mut slow = Outsider::of(&server).await;
    slow.messages.subscribe(CHANNEL).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(slow.next_message().await, "00");
    guard = soon("the lock", holds.mutex("stock").lock()).await.unwrap();
    assert!(!slow.asks("f:1").await);
    guard.release().await.unwrap();
    assert_eq!(super::holder(&server).await, Some((first, 0)));
    assert_eq!(slow.next_message().await, "00");
    waiter.abort();
    tidy(&server).await;
}

/// 1. The lock is handed to a process that is stopped. 2. The last one leaves the line. 3. A client that does not know the line is notified.
#[tokio::test]
async fn one_who_knows_no_line_is_notified_that_the_last_has_left_it() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let (holds, next) = (process(&server.url()).await, process(&server.url()).await);
    let stopped = process(&proxy.url()).await;
    let guard = holds.mutex("stock").lock().await.unwrap();
    let waiter = waits(&stopped);
    stand(&server, 1).await;
    let first = super::line(&server).await.remove(0);
    let last = waits(&next);
    stand(&server, 2).await;
    let _stopped = proxy.half_open(Which::Subscribers);
    guard.release().await.unwrap();
    assert_eq!(super::holder(&server).await, Some((first, 0)));
    let mut asleep = Outsider::of(&server).await;
    asleep.messages.subscribe(CHANNEL).await.unwrap();
    last.abort();
    assert_eq!(asleep.next_message().await, "00");
    waiter.abort();
    tidy(&server).await;
}

/// When a client that does not know the line releases the lock, all processes in the line wake, and the first of them gets it.
#[tokio::test]
async fn a_client_that_knows_no_line_hands_the_lock_to_those_who_wait_in_it() {
    let server = Server::start().await;
    let plain = support::builder(&server.url()).fair(false);
    let plain = support::without_timers(plain).connect().await.unwrap();
    let other = plain.mutex("stock").lock().await.unwrap();
    let (one, two) = (process(&server.url()).await, process(&server.url()).await);
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
            alone(&inside).await;
            guard.release().await.unwrap();
        }
    });
    soon("all of them", join_all(each)).await;
    tidy(&server).await;
}

/// The user has the rights that a lock needs, but not those that a line needs.
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

/// A right that is missing is tried only once, since a server counts and logs each denial.
#[tokio::test]
async fn what_a_user_may_not_do_in_a_line_is_tried_once_a_connection_and_reported_once() {
    for (right, reports) in [("zadd", 2), ("hscan", 0)] {
        tried_once(right, reports).await;
    }
}

async fn tried_once(right: &str, reports: usize) {
    const TURNS: usize = 5;
    let server = Server::start().await;
    let rights = ["reset", "on", ">secret", "~*", "&*", "+@all", &format!("-{right}")];
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
            // The waiter asks, subscribes, and asks again.
            eventually("the waiter", async || server.scripts_run().await >= before + 2).await;
            guard.release().await.unwrap();
            granted(waiter).await.release().await.unwrap();
        }
    }
    assert_eq!(denied().await, 2, "one for each connection");
    let address = server.port().to_string();
    let reported =
        |event: &log::Event| event.mentions(&address) && event.message.contains("the lines of locks");
    assert_eq!(log::all(reported).len(), reports);
    // After the right is granted, the next connection uses it, or the next query for the holder shows it.
    server.ask::<()>(&["ACL", "SETUSER", "locker", &format!("+{right}")]).await;
    server.ask::<()>(&["CLIENT", "KILL", "USER", "locker"]).await;
    for locks in [&one, &two] {
        let guard = locks.mutex("stock").lock().await.unwrap();
        locks.mutex("stock").holder().await.unwrap().expect("it is held");
        guard.release().await.unwrap();
    }
    let guard = one.mutex("stock").lock().await.unwrap();
    let waiter = waits(&two);
    stand(&server, 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    tidy(&server).await;
}
