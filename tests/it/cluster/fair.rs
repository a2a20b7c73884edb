//! The line of the processes that wait for a lock: it is kept in the slot of the lock.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use nestlock::{Builder, Guard, Locks, Owner, Result};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{builder, over, plain};
use crate::support::cluster::Cluster;
use crate::support::line::{self, alone, granted, session, session_of, stand, waits};
use crate::support::server::{Server, allow_its_name};
use crate::support::{self, HOUR, SECOND, eventually, soon};

/// Returns options with which no timer wakes a waiter, and nobody gets the lock because a lease ended.
fn fair(builder: Builder) -> Builder {
    support::without_timers(builder).lease(HOUR).unavailable_after(600 * SECOND)
}

/// Connects as another process does. The term for which a lock is kept for the next process is so long that no test waits for its end.
async fn process(cluster: &Cluster) -> Locks {
    fair(builder(cluster)).node_timeout(300 * SECOND).connect().await.unwrap()
}

async fn processes(cluster: &Cluster, count: usize) -> Vec<Locks> {
    join_all((0..count).map(|_| process(cluster))).await
}

/// Starts a waiter for each of these processes, one after the other.
async fn all_wait(node: &Server, name: &str, processes: &[Locks]) -> Vec<JoinHandle<Result<Guard>>> {
    let mut waiters = Vec::new();
    for (before, locks) in processes.iter().enumerate() {
        waiters.push(waits(locks, name));
        stand(node, name, before + 1).await;
    }
    waiters
}

/// Checks that each waiter is granted the lock, in any order, and one at a time.
async fn all_are_granted(waiters: Vec<JoinHandle<Result<Guard>>>) {
    let inside = AtomicUsize::new(0);
    let each = waiters.into_iter().map(async |waiter| {
        let guard = granted(waiter).await;
        alone(&inside).await;
        guard.release().await.unwrap();
    });
    join_all(each).await;
}

/// Waits until neither the lock nor its line is left.
async fn tidy(cluster: &Cluster, name: &str) {
    let keys = async || cluster.keys_on(&[0, 1, 2]).await;
    eventually("the end", async || !keys().await.iter().any(|key| key.contains(name))).await;
}

#[tokio::test]
async fn processes_get_it_in_the_order_in_which_they_began_to_wait_by_one_hint_each() {
    let cluster = Cluster::shared().await;
    let name = cluster.name_on(1, "in-order").await;
    let (node, all) = (cluster.node(1), processes(cluster, 5).await);
    let mut guard = all[4].mutex(&name).lock().await.unwrap();
    let waiters = all_wait(node, &name, &all[..4]).await;
    let order = line::members(node, &name).await;
    let seen = all[4].mutex(&name).waiters().await.unwrap();
    assert!(seen.iter().map(|one| session_of(one.hold_id())).eq(&order), "{seen:?}");
    for (at, waiter) in waiters.into_iter().enumerate() {
        guard.release().await.unwrap();
        guard = granted(waiter).await;
        assert_eq!(session(&guard), order[at]);
        // The other processes were not woken: they still stand in the line.
        assert_eq!(line::members(node, &name).await, order[at + 1..]);
    }
    guard.release().await.unwrap();
    tidy(cluster, &name).await;
}

/// A replica that lacked the last moments has fields in its line that have left it. Their processes wait, and get the hints.
#[tokio::test]
async fn fields_that_their_processes_do_not_know_keep_nobody_waiting() {
    let cluster = Cluster::shared().await;
    let name = cluster.name_on(1, "unknown-fields").await;
    let (node, all) = (cluster.node(1), processes(cluster, 3).await);
    let guard = all[2].mutex(&name).lock().await.unwrap();
    let waiters = all_wait(node, &name, &all[..2]).await;
    let order = line::members(node, &name).await;
    for (score, session) in (1..).zip([&order[0], &order[1], &order[0]]) {
        let member = format!("nestlock_wake:{{{name}}}:{session}:{}", 900_000 + score);
        node.ask::<u64>(&["ZADD", &line::key(&name), &score.to_string(), &member]).await;
    }
    guard.release().await.unwrap();
    for (waiter, session_then) in waiters.into_iter().zip(&order) {
        let guard = granted(waiter).await;
        assert_eq!(session(&guard), *session_then);
        guard.release().await.unwrap();
    }
    tidy(cluster, &name).await;
}

#[tokio::test]
async fn one_of_several_names_waits_in_its_line_while_the_subscription_of_an_earlier_wait_lasts() {
    let cluster = Cluster::shared().await;
    let (name, free) = (cluster.name_on(1, "of-several").await, cluster.name_on(0, "beside-it").await);
    let (node, all) = (cluster.node(1), processes(cluster, 2).await);
    let guard = all[0].mutex(&name).lock().await.unwrap();
    let waiter = waits(&all[1], &name);
    stand(node, &name, 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    let guard = all[0].mutex(&name).lock().await.unwrap();
    let both = tokio::spawn(all[1].mutexes([&name, &free]).lock());
    stand(node, &name, 1).await;
    guard.release().await.unwrap();
    soon("both", both).await.unwrap().unwrap().release().await.unwrap();
    tidy(cluster, &name).await;
}

/// No process pauses for the others: each asks again right after its release.
#[tokio::test]
async fn none_starves_where_all_take_it_again_and_again() {
    const TURNS: usize = 40;
    let cluster = Cluster::start().await;
    let name = cluster.name_on(0, "shared").await;
    let (node, locks) = (cluster.node(0), processes(&cluster, 9).await);
    let counts: [AtomicUsize; 8] = Default::default();
    let (inside, mut all) = (AtomicUsize::new(0), FuturesUnordered::new());
    for (count, locks) in counts.iter().zip(&locks) {
        let (stock, inside) = (locks.mutex(&name), &inside);
        all.push(async move {
            while count.load(SeqCst) < TURNS {
                let guard = stock.lock().await.unwrap();
                alone(inside).await;
                count.fetch_add(1, SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    let guard = locks[8].mutex(&name).lock().await.unwrap();
    let before = node.scripts_run().await;
    let begin = async {
        stand(node, &name, counts.len()).await;
        guard.release().await.unwrap();
    };
    let first = soon("the first that is done", async { tokio::join!(all.next(), begin).0 }).await;
    assert_eq!(first, Some(()));
    let shares: Vec<_> = counts.iter().map(|count| count.load(SeqCst)).collect();
    assert!(shares.iter().all(|share| share * 2 >= TURNS), "{shares:?}");
    let (grants, scripts) = (shares.iter().sum::<usize>() as u64, node.scripts_run().await - before);
    // If each release woke all processes, there would be nine scripts for each grant.
    assert!(scripts <= 5 * grants, "{scripts} scripts for {grants} grants");
    soon("the others", all.for_each(async |()| ())).await;
    tidy(&cluster, &name).await;
}

/// Each time there is a moment in which no request waits. Even so, the next request enters the line with its first command.
#[tokio::test]
async fn who_takes_it_again_and_again_stays_subscribed_and_needs_three_scripts() {
    const ROUNDS: u64 = 20;
    let cluster = Cluster::start().await;
    let name = cluster.name_on(1, "again").await;
    let (node, [one, two]) = (cluster.node(1), [process(&cluster).await, process(&cluster).await]);
    let mut guard = one.mutex(&name).lock().await.unwrap();
    let mut before = 0;
    for round in 0..ROUNDS {
        // Each process has waited once by now.
        if round == 2 {
            before = node.scripts_run().await;
        }
        let next = if round % 2 == 0 { &two } else { &one };
        let waiter = waits(next, &name);
        stand(node, &name, 1).await;
        guard.release().await.unwrap();
        guard = granted(waiter).await;
    }
    let scripts = node.scripts_run().await - before;
    // A busy machine may take longer for a round than an unused subscription is kept.
    assert!(2 * scripts < 7 * (ROUNDS - 2), "{scripts} scripts for {} grants", ROUNDS - 2);
    guard.release().await.unwrap();
    // Without further requests the subscription ends.
    eventually("the end", async || super::channels(&cluster, &name).await.is_empty()).await;
    tidy(&cluster, &name).await;
}

/// A process that was killed leaves its place in the line, but no subscription.
#[tokio::test]
async fn one_that_is_gone_is_passed_over() {
    let cluster = Cluster::shared().await;
    let name = cluster.name_on(2, "passed-over").await;
    let (node, all) = (cluster.node(2), processes(cluster, 3).await);
    let guard = all[2].mutex(&name).lock().await.unwrap();
    let waiters = all_wait(node, &name, &all[..2]).await;
    let gone = format!("nestlock_wake:{{{name}}}:4be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a:7");
    node.ask::<()>(&["ZADD", &line::key(&name), "-1", &gone]).await;
    guard.release().await.unwrap();
    all_are_granted(waiters).await;
    tidy(cluster, &name).await;
}

/// The frozen process is subscribed, and does not ask, so the lock is kept for it for a term.
#[tokio::test]
async fn one_that_is_frozen_keeps_the_next_one_waiting_for_a_term() {
    const TERM: Duration = Duration::from_secs(4);
    let cluster = Cluster::shared().await;
    let name = cluster.name_on(0, "frozen").await;
    let node = cluster.node(0);
    let connect = async || fair(builder(cluster)).node_timeout(TERM / 2).connect().await.unwrap();
    let all = [connect().await, connect().await, connect().await];
    let guard = all[2].mutex(&name).lock().await.unwrap();
    let waiters = all_wait(node, &name, &all[..2]).await;
    let channel = format!("nestlock_wake:{{{name}}}:4be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a");
    let mut frozen = node.admin().await;
    redis::cmd("SSUBSCRIBE").arg(&channel).exec_async(&mut frozen).await.unwrap();
    node.ask::<()>(&["ZADD", &line::key(&name), "-1", &format!("{channel}:7")]).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    all_are_granted(waiters).await;
    let waited = released.elapsed();
    assert!(waited > TERM * 9 / 10 && waited < 10 * TERM, "{waited:?}");
    tidy(cluster, &name).await;
}

#[tokio::test]
async fn those_who_wait_get_it_after_a_move_of_the_slot() {
    let cluster = Cluster::start().await;
    let name = cluster.name_on(0, "moved").await;
    let all = processes(&cluster, 4).await;
    for (from, to) in [(0, 1), (1, 2)] {
        let guard = all[3].mutex(&name).lock().await.unwrap();
        let waiters = all_wait(cluster.node(from), &name, &all[..3]).await;
        cluster.begin_move(&name, from, to).await;
        cluster.move_key(&name, from, to).await;
        cluster.move_key(&line::key(&name), from, to).await;
        cluster.end_move(&name, to, &[to, from, 3 - from - to]).await;
        guard.release().await.unwrap();
        all_are_granted(waiters).await;
        tidy(&cluster, &name).await;
    }
}

/// The lock has moved to the slot's new node and its line has not, or the other way round, so neither node can run a script over both.
#[tokio::test]
async fn those_who_wait_get_it_while_the_slot_moves() {
    let cluster = Cluster::start().await;
    for (number, (first, second)) in [(true, false), (false, true), (true, true)].into_iter().enumerate() {
        let name = cluster.name_on(0, &format!("moving-{number}")).await;
        let all = processes(&cluster, 4).await;
        let guard = all[3].mutex(&name).lock().await.unwrap();
        let waiters = all_wait(cluster.node(0), &name, &all[..3]).await;
        cluster.begin_move(&name, 0, 1).await;
        for (key, moves) in [(name.clone(), first), (line::key(&name), second)] {
            if moves {
                cluster.move_key(&key, 0, 1).await;
            }
        }
        guard.release().await.unwrap();
        all_are_granted(waiters).await;
        // Each process can still take and release the lock.
        for locks in &all {
            locks.mutex(&name).lock().await.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn those_who_wait_get_it_after_a_failover() {
    let cluster = Cluster::short_lived().await;
    let name = cluster.name_on(1, "failed").await;
    let all = processes(&cluster, 4).await;
    let guard = all[3].mutex(&name).lock().await.unwrap();
    let waiters = all_wait(cluster.node(1), &name, &all[..3]).await;
    let key = line::key(&name);
    eventually("the line on the replica", async || cluster.node(4).all_keys().await.contains(&key)).await;
    cluster.node(1).kill();
    cluster.promoted(4).await;
    guard.release().await.unwrap();
    all_are_granted(waiters).await;
    let left = async || cluster.keys_on(&[0, 2, 4]).await;
    eventually("the end", async || !left().await.iter().any(|key| key.contains(&name))).await;
}

/// A process without a line subscribes only to the lock's channel.
#[tokio::test]
async fn a_process_without_lines_has_its_turns_beside_busy_ones() {
    const WANTED: usize = 12;
    let cluster = Cluster::shared().await;
    let name = cluster.name_on(2, "beside").await;
    let mut all = processes(cluster, 4).await;
    all.push(fair(builder(cluster)).fair(false).connect().await.unwrap());
    let turns: [AtomicUsize; 5] = Default::default();
    let inside = AtomicUsize::new(0);
    let each = all.iter().zip(&turns).map(async |(locks, turns)| {
        let stock = locks.mutex(&name);
        loop {
            let guard = stock.lock().await.unwrap();
            alone(&inside).await;
            turns.fetch_add(1, SeqCst);
            guard.release().await.unwrap();
        }
    });
    let enough = async || turns.iter().all(|turns| turns.load(SeqCst) >= WANTED);
    tokio::select! {
        _ = join_all(each) => {}
        () = eventually("their turns", enough) => {}
    }
}

/// The user has the rights that a lock needs, but not those that a line needs.
#[tokio::test]
async fn a_user_without_the_rights_of_a_line_has_locks_without_one() {
    let cluster = Cluster::start().await;
    let name = cluster.name_on(1, "app:stock").await;
    let (lock, channel) = (format!("~{name}"), format!("&redisson_lock__channel:{{{name}}}"));
    for (number, (keys, channels)) in
        [("~*", &*channel), (&*lock, "&*"), (&*lock, &*channel)].into_iter().enumerate()
    {
        let user = format!("locker{number}");
        let rights = "+eval +evalsha +hset +hincrby +hget +hdel +hscan +pttl +pexpire +type +del +publish +spublish \
                      +subscribe +unsubscribe +ssubscribe +sunsubscribe +ping +info +cluster";
        let start = ["ACL", "SETUSER", &user, "reset", "on", ">secret", keys, channels];
        let command: Vec<_> =
            start.into_iter().chain(rights.split(' ').filter(|word| !word.is_empty())).collect();
        for node in cluster.nodes() {
            node.ask::<()>(&command).await;
            allow_its_name(node, &user).await;
        }
        let with_user = |url: String| url.replace("redis://", &format!("redis://{user}:secret@"));
        let urls: Vec<String> = cluster.urls().into_iter().map(with_user).collect();
        let connect = async || over(&urls).poll_interval(SECOND).connect().await.unwrap();
        let (one, two) = (connect().await, connect().await);
        let guard = one.mutex(&name).lock().await.unwrap();
        let waiter = waits(&two, &name);
        eventually("the waiter", async || !super::channels(&cluster, &name).await.is_empty()).await;
        assert!(
            two.mutex(&name).try_lock().owner(&Owner::new()).await.unwrap().is_none(),
            "{keys} {channels}"
        );
        guard.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        tidy(&cluster, &name).await;
        for locks in [one, two] {
            locks.close().await.unwrap();
        }
    }
}

/// There is no line if its name is in another slot than the lock, or if channels are plain.
#[tokio::test]
async fn where_there_can_be_no_line_a_release_wakes_all() {
    let cluster = Cluster::shared().await;
    for (name, sharded) in [("odd}fair", true), ("{}odd-fair", true), ("odd-fair", false)] {
        let options = || if sharded { builder(cluster) } else { plain(cluster) };
        let all = join_all((0..3).map(|_| async { fair(options()).connect().await.unwrap() })).await;
        let guard = all[2].mutex(name).lock().await.unwrap();
        let mut waiters = Vec::new();
        for locks in &all[..2] {
            waiters.push(waits(locks, name));
        }
        eventually("they listen", async || !super::channels(cluster, name).await.is_empty()).await;
        let keys = cluster.keys_on(&[0, 1, 2]).await;
        assert!(!keys.iter().any(|key| key.contains("nestlock_line:") && key.contains(name)), "{keys:?}");
        guard.release().await.unwrap();
        all_are_granted(waiters).await;
        tidy(cluster, name).await;
    }
}
