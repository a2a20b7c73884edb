//! A lock that is lost while the command runs.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::run::{gone, on, start, ttl};
use crate::support::server::Server;
use crate::support::{SECOND, is_running, soon};

/// Prints its process id, and runs until it is killed.
const STUBBORN: &str = "trap '' TERM HUP INT; echo $$; while :; do sleep 0.02; done";

#[tokio::test]
async fn a_command_whose_lock_is_deleted_gets_term() {
    let server = Server::start().await;
    let script = "trap 'echo got TERM; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = start(on(&server, &["exec", "--lease", "1s", "a", "--", "sh", "-c", script]));
    assert_eq!(running.line().await, "ready");
    server.ask::<()>(&["DEL", "a"]).await;
    assert_eq!(running.line().await, "got TERM");
    let (status, err) = running.end().await;
    assert_eq!(status, Some(70));
    assert!(err.contains("lock `a` was lost") && err.contains("status 3"), "{err}");
}

#[tokio::test]
async fn a_command_that_does_not_end_by_term_is_killed() {
    let server = Server::start().await;
    let mut running = start(on(
        &server,
        &["exec", "--lease", "1200ms", "--kill-after", "300ms", "a", "--", "sh", "-c", STUBBORN],
    ));
    let child: i32 = running.number().await;
    server.ask::<()>(&["DEL", "a"]).await;
    let (status, err) = running.end().await;
    assert_eq!(status, Some(70));
    assert!(err.contains("signal 9"), "{err}");
    assert!(!is_running(child));
}

#[tokio::test]
async fn a_lock_that_another_has_taken_away_is_left_to_it() {
    let server = Server::start().await;
    let mut running =
        start(on(&server, &["exec", "--lease", "1s", "a", "--", "sh", "-c", "echo; sleep 1000"]));
    running.line().await;
    let script = "MULTI;DEL a;HSET a other 1;PEXPIRE a 60000;EXEC";
    assert_eq!(script.split(';').count(), 5);
    server
        .ask::<()>(&[
            "EVAL",
            "redis.call('DEL', 'a') redis.call('HSET', 'a', 'other', 1) redis.call('PEXPIRE', 'a', 60000)",
            "0",
        ])
        .await;
    assert_eq!(running.end().await.0, Some(70));
    assert_eq!(server.ask::<Vec<String>>(&["HKEYS", "a"]).await, ["other"]);
}

/// A loss ends all that the child has started, in its process group and outside of it.
#[tokio::test]
async fn all_that_the_child_has_started_dies_as_a_whole() {
    let server = Server::start().await;
    let stubborn = "trap \"\" TERM; while :; do sleep 0.05; done";
    let script = format!(
        "sh -c '{stubborn}' & echo $!; setsid sh -c '{stubborn}' & echo $!; sleep 1000 & echo $!; echo $$; wait"
    );
    let args = ["exec", "--lease", "1200ms", "--kill-after", "300ms", "a", "--", "sh", "-c", &script];
    let mut running = start(on(&server, &args));
    let mut pids = Vec::new();
    for _ in 0..4 {
        pids.push(running.number::<i32>().await);
    }
    server.ask::<()>(&["DEL", "a"]).await;
    assert_eq!(running.status().await, Some(70));
    for pid in pids {
        assert!(!is_running(pid));
    }
}

/// Returns when the key's lease is over, by the TTL that the server reported before it was frozen.
async fn end_of_lease(server: &Server) -> Instant {
    let before = Instant::now();
    before + ttl(server, "a").await
}

#[tokio::test]
async fn where_the_server_stands_still_the_child_is_dead_before_the_lease_is_over() {
    let server = Server::start().await;
    let mut running = start(on(&server, &["exec", "--lease", "2s", "a", "--", "sh", "-c", STUBBORN]));
    let child: i32 = running.number().await;
    server.freeze();
    server.thaw();
    let end = end_of_lease(&server).await;
    server.freeze();
    // The lease was renewed at most once after that look, so it is over at that time at the earliest.
    gone(child).await;
    let dead = Instant::now();
    assert!(dead < end, "{:?} late", dead - end);
    assert!(dead + SECOND > end, "{:?} early", end - dead);
    let (status, err) = running.end().await;
    assert_eq!(status, Some(70), "{err}");
    assert!(err.contains("not renewed"), "{err}");
    server.thaw();
}

#[tokio::test]
async fn a_child_that_ends_by_the_early_term_is_reported_as_a_loss() {
    let server = Server::start().await;
    let script = "trap 'echo got TERM; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let args = ["exec", "--lease", "1500ms", "--kill-after", "400ms", "a", "--", "sh", "-c", script];
    let mut running = start(on(&server, &args));
    assert_eq!(running.line().await, "ready");
    let end = end_of_lease(&server).await;
    server.freeze();
    assert_eq!(running.line().await, "got TERM");
    let left = end.saturating_duration_since(Instant::now());
    assert!(left > Duration::from_millis(100), "{left:?}");
    assert_eq!(running.end().await.0, Some(70));
    server.thaw();
}

#[tokio::test]
async fn a_child_gets_term_also_where_no_message_can_be_written() {
    let (server, dir) = (Server::start().await, tempfile::tempdir().unwrap());
    let script = "trap 'echo got TERM > log; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let args = ["exec", "--lease", "1500ms", "--kill-after", "500ms", "a", "--", "sh", "-c", script];
    let mut command = on(&server, &args);
    command.current_dir(dir.path()).stdout(std::process::Stdio::piped());
    command.stderr(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let mut child = command.spawn().unwrap();
    let mut ready = [0; 6];
    let out = child.stdout.as_mut().unwrap();
    soon("the child", tokio::io::AsyncReadExt::read_exact(out, &mut ready)).await.unwrap();
    server.freeze();
    let status = soon("the end of the command", child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(70));
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap(), "got TERM\n");
    server.thaw();
}

/// The watchdog has killed the child, though the hold is still good.
#[tokio::test]
async fn a_child_that_the_watchdog_has_killed_is_reported_as_a_loss() {
    let server = Server::start().await;
    let mut running = start(on(&server, &["exec", "--lease", "5s", "a", "--", "sh", "-c", STUBBORN]));
    let child: i32 = running.number().await;
    running.signal(Signal::STOP);
    gone(child).await;
    running.signal(Signal::CONT);
    let (status, err) = running.end().await;
    assert_eq!(status, Some(70), "{err}");
    assert!(err.contains("lock `a` was lost"), "{err}");
}

#[tokio::test]
async fn where_the_command_is_stopped_the_child_is_dead_before_the_lease_is_over() {
    let server = Server::start().await;
    let script = format!("setsid sh -c '{}' & {STUBBORN}", STUBBORN.replace('\'', "\""));
    let mut running = start(on(&server, &["exec", "--lease", "2s", "a", "--", "sh", "-c", &script]));
    let pids: [i32; 2] = [running.number().await, running.number().await];
    running.signal(Signal::STOP);
    let end = end_of_lease(&server).await;
    for pid in pids {
        gone(pid).await;
    }
    let dead = Instant::now();
    assert!(dead < end, "{:?} late", dead - end);
    running.signal(Signal::CONT);
    assert_eq!(running.end().await.0, Some(70));
}

#[tokio::test]
async fn a_fixed_lease_ends_the_command() {
    let server = Server::start().await;
    let began = Instant::now();
    let mut running = start(on(&server, &["exec", "--fixed-lease", "1s", "a", "--", "sh", "-c", STUBBORN]));
    let child: i32 = running.number().await;
    let (status, err) = running.end().await;
    assert_eq!(status, Some(70), "{err}");
    assert!(began.elapsed() > SECOND * 9 / 10 && !is_running(child));
    assert_eq!(ttl(&server, "a").await, Duration::ZERO);
}

#[tokio::test]
async fn a_server_that_is_away_for_a_moment_ends_nothing() {
    let server = Server::start().await;
    let mut running =
        start(on(&server, &["exec", "--lease", "4s", "a", "--", "sh", "-c", "echo; sleep 4; echo done"]));
    running.line().await;
    server.freeze();
    tokio::time::sleep(SECOND).await;
    server.thaw();
    assert_eq!(running.line().await, "done");
    let (status, err) = running.end().await;
    assert_eq!((status, err.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn a_release_that_nobody_answers_is_no_loss() {
    let server = Server::start().await;
    let mut running = start(on(&server, &["exec", "a", "--", "sh", "-c", "echo; sleep 0.5; exit 3"]));
    running.line().await;
    server.freeze();
    let (status, err) = running.end().await;
    assert_eq!(status, Some(3));
    assert!(err.contains("others get the lock when its lease is over"), "{err}");
    server.thaw();
}

#[tokio::test]
async fn a_loss_that_the_release_finds_is_reported() {
    let server = Server::start().await;
    let mut running = start(on(&server, &["exec", "a", "--", "sh", "-c", "echo; sleep 0.5"]));
    running.line().await;
    server.ask::<()>(&["DEL", "a"]).await;
    assert_eq!(running.end().await.0, Some(70));
}
