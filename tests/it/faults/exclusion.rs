//! Processes that count with GET and SET under a lock while everything around them fails.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use crate::support::process::Worker;
use crate::support::server::Server;
use crate::support::{builder, soon};

const PROCESSES: usize = 4;
const ROUNDS: usize = 6;
const ROUND: Duration = Duration::from_millis(1_200);

/// Stops one worker. Returns how many sections it completed.
async fn stopped(mut worker: Worker) -> u64 {
    worker.say("stop");
    let line = worker.line().await;
    assert!(worker.wait().await.success());
    line.parse().unwrap_or_else(|_| panic!("not a count: {line}"))
}

/// Flushes the scripts and kills connections for one round. Each of these commands may fail, since the server is under faults too.
async fn trouble(server: &Server, random: &mut StdRng) {
    let end = Instant::now() + ROUND;
    let mut next_kill = Instant::now();
    while Instant::now() < end {
        let _ = server.try_ask::<()>(&["SCRIPT", "FLUSH"]).await;
        if Instant::now() >= next_kill {
            next_kill = Instant::now() + Duration::from_millis(random.random_range(5..60));
            if let Some(id) = server.client_ids().await.into_iter().choose(random) {
                let _ = server.try_ask::<()>(&["CLIENT", "KILL", "ID", &id.to_string()]).await;
            }
        }
        sleep(Duration::from_millis(random.random_range(1..6))).await;
    }
}

#[tokio::test]
async fn promise_1_holds_of_different_owners_never_overlap_while_the_server_restarts_and_connections_die() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    server.ask::<()>(&["SET", "count", "0"]).await;
    let workers: Vec<_> =
        (0..PROCESSES).map(|_| Worker::start("counter", &[("url", &server.url())])).collect();
    for worker in &workers {
        worker.expect("counting").await;
    }
    for _ in 0..ROUNDS {
        trouble(&server, &mut random).await;
        server.restart().await;
    }
    trouble(&server, &mut random).await;

    let mut sections = 0;
    for worker in workers {
        sections += soon("a worker's count", stopped(worker)).await;
    }
    println!("{sections} sections");
    assert_eq!(server.ask::<u64>(&["GET", "count"]).await, sections);
    assert!(sections > 50, "too few sections to overlap: {sections}");
    crate::support::eventually("the locks' end", async || server.keys().await == ["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_every_few_milliseconds_are_no_error_and_no_hang() {
    let server = Server::start().await;
    let locks = builder(&server.url()).connect().await.unwrap();
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let users: Vec<_> = (0..8)
        .map(|at| {
            let (stock, own, inside) =
                (locks.mutex("stock"), locks.mutex(format!("own:{at}")), inside.clone());
            tokio::spawn(async move {
                for _ in 0..60 {
                    let guard = soon("the lock", stock.lock()).await.unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    stock.run(|_| own.run(|_| tokio::task::yield_now())).await.unwrap().unwrap();
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    let mut admin = server.admin().await;
    while !users.iter().all(|user| user.is_finished()) {
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut admin).await.unwrap();
        sleep(Duration::from_millis(2)).await;
    }
    for user in users {
        user.await.unwrap();
    }
    assert!(server.commands_run().await["eval"] > 20, "scripts had to be sent again");
    assert!(server.keys().await.is_empty());
}

/// Another thread may read the answer to the first branch's request before the poll ends in which both requests begin. A worker of the
/// runtime would not run the connection's task before its own poll ends. The thread of the test isn't a worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_of_one_join_exclude_each_other_though_another_thread_reads_their_answers() {
    let server = Server::start().await;
    let stock = builder(&server.url()).connect().await.unwrap().mutex("stock");
    // This keeps the machine as busy as other work usually does.
    let busy = tokio::task::spawn_blocking(|| {
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    });
    let inside = std::cell::Cell::new(0);
    let branch = async || {
        let guard = stock.lock().await.unwrap();
        assert_eq!(inside.replace(1), 0, "two branches of one task are inside");
        tokio::task::yield_now().await;
        inside.set(0);
        guard.release().await.unwrap();
    };
    // In a few percent of the rounds the answer arrives in time.
    let begun = Instant::now();
    let rounds = async {
        for _ in 0..3_000 {
            tokio::join!(branch(), branch());
            if begun.elapsed() > 4 * ROUND {
                break;
            }
        }
    };
    soon("the rounds", rounds).await;
    busy.await.unwrap();
}

/// Each process holds one account when it asks for the other, and its partner asks in the opposite order.
#[tokio::test]
async fn eight_processes_that_take_two_locks_in_opposite_orders_lose_no_money_and_do_not_deadlock() {
    const ROUNDS: usize = 60;
    let server = Server::start().await;
    let accounts = [0, 1, 2, 3].map(|number| format!("account:{number}"));
    for account in &accounts {
        server.ask::<()>(&["SET", account, "0"]).await;
    }
    let (url, rounds) = (server.url(), ROUNDS.to_string());
    let mut movers: Vec<_> = (0..8)
        .map(|number| {
            Worker::start("mover", &[("url", &url), ("number", &number.to_string()), ("rounds", &rounds)])
        })
        .collect();
    for mover in &movers {
        mover.expect("ready").await;
    }
    for mover in &mut movers {
        mover.say("go");
    }
    for mover in movers {
        mover.expect("done").await;
        assert!(mover.wait().await.success());
    }
    // Each account is checked separately: in the sum, the error of one move could cancel the error of another.
    let mut expected = [0; 4];
    for (number, round) in (0..8).flat_map(|number| (0..ROUNDS).map(move |round| (number, round))) {
        let from = (number + round) % 4;
        expected[from] -= 1;
        expected[(from + 1 + (number + round / 4) % 3) % 4] += 1;
    }
    for (account, expected) in accounts.iter().zip(expected) {
        assert_eq!(server.ask::<i64>(&["GET", account]).await, expected, "{account}");
    }
    crate::support::eventually("the locks' end", async || server.keys().await.len() == 4).await;
}
