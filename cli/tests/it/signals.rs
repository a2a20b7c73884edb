//! Signals to the command.

use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::run::{NESTLOCK, gone, on, start, watchdog_of};
use crate::support::server::Server;
use crate::support::{SECOND, eventually};

#[tokio::test]
async fn a_signal_is_passed_on_to_the_child() {
    let server = Server::start().await;
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::INT, "INT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let script =
            format!("trap 'echo got {name}; exit 3' {name}; echo ready; while :; do sleep 0.02; done");
        let mut running = start(on(&server, &["exec", "a", "--", "sh", "-c", &script]));
        assert_eq!(running.line().await, "ready");
        running.signal(signal);
        assert_eq!(running.line().await, format!("got {name}"));
        assert_eq!(running.end().await.0, Some(3));
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_child_that_a_signal_ends_ends_the_command() {
    let server = Server::start().await;
    let mut running = start(on(&server, &["exec", "a", "--", "sh", "-c", "echo; exec sleep 1000"]));
    running.line().await;
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.0, Some(143));
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_command_that_waits_is_ended_by_a_signal_and_leaves_nothing() {
    let server = Server::start().await;
    let mut holder = start(on(&server, &["exec", "a", "--", "sh", "-c", "echo; sleep 1000"]));
    holder.line().await;
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let waiter = start(on(&server, &["exec", "a", "--", "echo", "run"]));
        eventually("a waiter", async || !server.channels().await.is_empty()).await;
        waiter.signal(Signal::USR1);
        waiter.signal(signal);
        let (status, err) = waiter.end().await;
        assert_eq!(status, Some(code), "{err}");
        eventually("nobody who waits", async || server.channels().await.is_empty()).await;
    }
    assert_eq!(server.ask::<i64>(&["HLEN", "a"]).await, 1);
}

/// `nohup` starts it like that.
#[tokio::test]
async fn a_signal_that_is_ignored_stays_ignored() {
    let server = Server::start().await;
    let script = format!(
        "trap '' HUP; exec {NESTLOCK} exec a -- sh -c 'echo ready; sleep 0.3; kill -HUP $$; echo lives'"
    );
    let mut command = tokio::process::Command::new("setsid");
    command
        .args(["sh", "-c", &script])
        .env("REDIS_URL", server.url())
        .env_remove("NESTLOCK_HOLDS")
        .kill_on_drop(true);
    let mut running = start(command);
    assert_eq!(running.line().await, "ready");
    running.signal(Signal::HUP);
    assert_eq!(running.line().await, "lives");
    assert_eq!(running.end().await.0, Some(0));
}

#[tokio::test]
async fn a_killed_command_takes_its_child_along() {
    let server = Server::start().await;
    let script = "trap '' TERM HUP; sleep 1000 & echo $!; setsid sleep 1000 & echo $!; echo $$; while :; do sleep 0.05; done";
    let mut running = start(on(&server, &["exec", "a", "--", "sh", "-c", script]));
    let pids: [i32; 3] = [running.number().await, running.number().await, running.number().await];
    running.signal(Signal::KILL);
    let long = Duration::from_secs(10);
    tokio::time::timeout(long, async {
        for pid in pids {
            gone(pid).await;
        }
    })
    .await
    .unwrap();
    // Only its lease frees the lock.
    assert!(crate::run::ttl(&server, "a").await > SECOND);
}

#[tokio::test]
async fn a_killed_watchdog_is_replaced() {
    let server = Server::start().await;
    let script = "echo $$; trap '' TERM; setsid sleep 1000 & echo $!; while :; do sleep 0.05; done";
    let mut running = start(on(&server, &["exec", "--lease", "2s", "a", "--", "sh", "-c", script]));
    let pids: [i32; 2] = [running.number().await, running.number().await];
    let first = watchdog_of(running.pid()).await.unwrap();
    kill_process(first, Signal::KILL).unwrap();
    let pid = running.pid();
    eventually("another watchdog", async || watchdog_of(pid).await.is_some_and(|now| now != first)).await;
    running.signal(Signal::KILL);
    for pid in pids {
        gone(pid).await;
    }
}

#[tokio::test]
async fn a_command_that_is_killed_beside_its_watchdog_takes_its_child_along() {
    let server = Server::start().await;
    let script = "trap '' TERM HUP; echo $$; while :; do sleep 0.05; done";
    let mut running = start(on(&server, &["exec", "a", "--", "sh", "-c", script]));
    let child: i32 = running.number().await;
    let watchdog = watchdog_of(running.pid()).await.unwrap();
    kill_process(watchdog, Signal::STOP).unwrap();
    running.signal(Signal::KILL);
    gone(child).await;
    kill_process(watchdog, Signal::KILL).unwrap();
}
