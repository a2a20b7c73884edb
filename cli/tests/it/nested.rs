//! A `nestlock exec` inside another one.

use std::path::Path;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::run::{NESTLOCK, end, gone, on, start, status, ttl, watchdog_of};
use crate::support::server::Server;
use crate::support::{SECOND, STRANGER, eventually, is_running, soon};

/// Returns a script in which `nestlock` is the command.
fn script(text: &str) -> String {
    text.replace("nestlock", NESTLOCK)
}

/// Returns a script that starts this command under the same lock, in a session of its own, and ends once that
/// command is inside.
fn in_the_background(inner: &str, inside: &Path) -> String {
    let inside = inside.join("inside");
    let inside = inside.display();
    let started = format!("setsid nestlock exec a -- sh -c 'touch {inside}; {inner}' &");
    script(&format!("{started} while [ ! -e {inside} ]; do sleep 0.02; done; exit 3"))
}

#[tokio::test]
async fn a_nested_command_re_enters() {
    let server = Server::start().await;
    let text = script(
        "nestlock exec -n a -- sh -c 'echo $NESTLOCK_HOLD; exit 5'; echo $? $NESTLOCK_HOLD; sleep 1000",
    );
    let mut running = start(on(&server, &["exec", "a", "--", "sh", "-c", &text]));
    let inner = running.line().await;
    assert_eq!(running.line().await, format!("5 {inner}"));
    assert_eq!(server.ask::<Vec<String>>(&["HGETALL", "a"]).await, [inner, "1".to_owned()]);
}

#[tokio::test]
async fn it_re_enters_through_other_locks_and_levels() {
    let server = Server::start().await;
    let text = script(
        "nestlock exec -n b -- nestlock exec -n a -- nestlock exec -n b -- nestlock exec -n c -- nestlock exec -n a -- echo inside",
    );
    let ended = end(on(&server, &["exec", "a", "--", "sh", "-c", &text])).await;
    assert_eq!((ended.status, ended.out.as_str(), ended.err.as_str()), (Some(0), "inside\n", ""));
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn of_several_locks_it_enters_those_that_are_held_around_it() {
    let server = Server::start().await;
    let inner = "nestlock exec -n c --also b --also a -- sh -c 'echo $NESTLOCK_NAME; echo $NESTLOCK_HOLD'";
    let innermost = "nestlock exec -n b --also c -- echo inside";
    let text = script(&format!(
        "nestlock exec -n c --also b --also a -- sh -c \"{innermost}\"; {inner}; sleep 1000"
    ));
    let mut running = start(on(&server, &["exec", "a", "--also", "b", "sh", "-c", &text]));
    assert_eq!(running.line().await, "inside");
    assert_eq!(running.line().await, "c b a");
    let holds = running.line().await;
    let holds: Vec<_> = holds.split(' ').collect();
    // The first one was the call's own, and was released.
    assert_eq!(server.ask::<Vec<String>>(&["HGETALL", "b"]).await, [holds[1], "1"]);
    assert_eq!(server.ask::<Vec<String>>(&["HGETALL", "a"]).await, [holds[2], "1"]);
    eventually("the release", async || server.keys().await == ["a", "b"]).await;
}

/// The lock that it has entered is lost while it waits for the other one, so there is nothing to wait for any
/// more.
#[tokio::test]
async fn a_lock_around_it_that_is_lost_ends_its_wait() {
    let server = Server::start().await;
    let mut other = start(on(&server, &["exec", "b", "sh", "-c", "echo; sleep 1000"]));
    other.line().await;
    let text = script("trap '' TERM; nestlock exec a --also b -- true; echo $?");
    let args = ["exec", "--lease", "6s", "--kill-after", "2s", "a", "sh", "-c", &text];
    let mut running = start(on(&server, &args));
    eventually("a waiter", async || !server.channels().await.is_empty()).await;
    assert_eq!(status(&server, &["release", "--force", "a"]).await, Some(0));
    assert_eq!(running.line().await, "70");
    assert_eq!(running.end().await.0, Some(70));
}

#[tokio::test]
async fn the_same_name_elsewhere_is_another_lock() {
    let (server, other) = (Server::start().await, Server::start().await);
    let text = script(&format!("nestlock --url {} exec -n a -- sh -c 'echo; sleep 1000'", other.url()));
    let mut running = start(on(&server, &["exec", "a", "--", "sh", "-c", &text]));
    running.line().await;
    assert_eq!((server.keys().await, other.keys().await), (vec!["a".to_owned()], vec!["a".to_owned()]));
    // The lock is not entered under another prefix of the keys either.
    let text = script("nestlock --key-prefix app: exec -n a -- sh -c 'echo; sleep 1000'");
    let mut running = start(on(&server, &["exec", "b", "--", "sh", "-c", &text]));
    running.line().await;
    assert_eq!(server.keys().await, ["a", "app:a", "b"]);
}

#[tokio::test]
async fn an_environment_that_outlived_its_hold_is_no_key() {
    let server = Server::start().await;
    let ended = end(on(&server, &["exec", "a", "--", "sh", "-c", "echo $NESTLOCK_HOLDS"])).await;
    let mut holder = start(on(&server, &["exec", "a", "--", "sh", "-c", "echo; sleep 1000"]));
    holder.line().await;
    let mut command = on(&server, &["exec", "-n", "a", "--", "true"]);
    command.env("NESTLOCK_HOLDS", ended.out.trim());
    assert_eq!(end(command).await.status, Some(75));
    let mut command = on(&server, &["exec", "-n", "b", "--", "true"]);
    command.env("NESTLOCK_HOLDS", "no JSON");
    assert_eq!(end(command).await.status, Some(0));
}

/// The call is in another container, where the path leads to another file. It would wait for the command
/// around it, which waits for the call.
#[tokio::test]
async fn a_call_that_cannot_enter_the_hold_around_it_reports_so() {
    let server = Server::start().await;
    let text = script(
        "export NESTLOCK_HOLDS=$(echo \"$NESTLOCK_HOLDS\" | sed 's,\"/proc/[^\"]*\",\"/proc/self/fd/0\",'); nestlock exec --wait 100ms a -- true",
    );
    let ended = end(on(&server, &["exec", "a", "--", "sh", "-c", &text])).await;
    assert_eq!(ended.status, Some(75), "{ended:?}");
    let first = ended.err.lines().next().unwrap_or_default();
    assert!(first.contains("the `nestlock exec` around this one holds it"), "{ended:?}");
}

/// The call does not know whether it is inside. If it waited for the lock, it would wait for the command
/// around it.
#[tokio::test]
async fn where_the_server_does_not_answer_at_first_it_enters_once_it_does() {
    let server = Server::start().await;
    let text = script("echo; read line; nestlock exec a -- echo inside");
    let mut command = on(&server, &["exec", "a", "--", "sh", "-c", &text]);
    command.stdin(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    eventually("the lock", async || !server.keys().await.is_empty()).await;
    // The pause holds back scripts, but not connections.
    server.ask::<()>(&["CLIENT", "PAUSE", "1500", "WRITE"]).await;
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"\n").await.unwrap();
    drop(stdin);
    let output = soon("the end", child.wait_with_output()).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "\ninside\n");
    assert_eq!(output.status.code(), Some(0));
}

#[tokio::test]
async fn where_the_server_does_not_let_it_look_it_is_denied() {
    let server = Server::start().await;
    server.ask::<()>(&["ACL", "SETUSER", "default", "-hscan"]).await;
    let ended = end(on(&server, &["exec", "a", "--", "sh", "-c", &script("nestlock exec a -- true")])).await;
    assert_eq!(ended.status, Some(77), "{ended:?}");
}

/// The field is gone, though the outer command does not know that yet.
#[tokio::test]
async fn a_lock_that_was_taken_away_is_not_re_entered() {
    let server = Server::start().await;
    let text = script("echo; read line; nestlock exec -n a -- echo entered; echo $?");
    let mut command = on(&server, &["exec", "--lease", "20s", "a", "--", "sh", "-c", &text]);
    command.stdin(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    eventually("the lock", async || !server.keys().await.is_empty()).await;
    server.ask::<()>(&["DEL", "a"]).await;
    server.ask::<()>(&["HSET", "a", STRANGER, "1"]).await;
    server.ask::<()>(&["PEXPIRE", "a", "60000"]).await;
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"\n").await.unwrap();
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "\n75\n");
    assert_eq!(output.status.code(), Some(70));
}

/// The inner command has left the process group, and the outer child has ended: the lock is held until the
/// inner command has ended too.
#[tokio::test]
async fn an_inner_command_in_the_background_is_waited_for() {
    let (server, dir) = (Server::start().await, tempfile::tempdir().unwrap());
    let text = in_the_background("echo $$; sleep 3; echo over", dir.path());
    let mut running = start(on(&server, &["exec", "--lease", "1500ms", "a", "--", "sh", "-c", &text]));
    let inner: i32 = running.number().await;
    tokio::time::sleep(2 * SECOND).await;
    assert!(is_running(inner));
    assert_eq!(status(&server, &["exec", "-n", "a", "--", "true"]).await, Some(75));
    assert_eq!(running.line().await, "over");
    let (status, err) = running.end().await;
    assert_eq!((status, err.as_str()), (Some(3), ""));
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_signal_reaches_an_inner_command_that_is_waited_for() {
    let (server, dir) = (Server::start().await, tempfile::tempdir().unwrap());
    let text = in_the_background("echo $$; exec sleep 1000", dir.path());
    let mut running = start(on(&server, &["exec", "a", "--", "sh", "-c", &text]));
    let inner: i32 = running.number().await;
    tokio::time::sleep(SECOND).await;
    running.signal(Signal::TERM);
    gone(inner).await;
    assert_eq!(running.end().await.0, Some(3));
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn the_loss_of_the_outer_hold_ends_the_inner_child() {
    let server = Server::start().await;
    let text =
        script("setsid nestlock exec a -- sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done'");
    let args = ["exec", "--lease", "1200ms", "--kill-after", "300ms", "a", "--", "sh", "-c", &text];
    let mut running = start(on(&server, &args));
    let inner: i32 = running.number().await;
    server.ask::<()>(&["DEL", "a"]).await;
    assert_eq!(running.status().await, Some(70));
    gone(inner).await;
}

/// The outer command is killed, and takes the inner one and its child along.
#[tokio::test]
async fn the_end_of_the_outer_command_ends_the_inner_child() {
    let server = Server::start().await;
    let text = script("nestlock exec a -- sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done'");
    let mut running = start(on(&server, &["exec", "a", "--", "sh", "-c", &text]));
    let inner: i32 = running.number().await;
    running.signal(Signal::KILL);
    gone(inner).await;
    assert!(ttl(&server, "a").await > SECOND);
}

/// The outer command and its watchdog can't do anything any more: neither renew nor end what they started.
#[tokio::test]
async fn an_inner_command_notices_the_end_of_the_lease_by_itself() {
    let server = Server::start().await;
    let text = script("nestlock exec a -- sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done'");
    let mut running = start(on(&server, &["exec", "--lease", "4s", "a", "--", "sh", "-c", &text]));
    let inner: i32 = running.number().await;
    let watchdog = watchdog_of(running.pid()).await.unwrap();
    running.signal(Signal::STOP);
    kill_process(watchdog, Signal::STOP).unwrap();
    let end = Instant::now() + ttl(&server, "a").await;
    gone(inner).await;
    assert!(Instant::now() < end);
    running.signal(Signal::CONT);
    assert_eq!(running.status().await, Some(70));
    let _ = kill_process(watchdog, Signal::KILL);
}

#[tokio::test]
async fn an_inner_command_notices_a_loss_by_itself() {
    let server = Server::start().await;
    let text = script("nestlock exec a -- sh -c 'echo $$; while :; do sleep 0.05; done'");
    let mut running = start(on(&server, &["exec", "--lease", "9s", "a", "--", "sh", "-c", &text]));
    let inner: i32 = running.number().await;
    let watchdog = watchdog_of(running.pid()).await.unwrap();
    running.signal(Signal::STOP);
    kill_process(watchdog, Signal::STOP).unwrap();
    let began = Instant::now();
    server.ask::<()>(&["DEL", "a"]).await;
    gone(inner).await;
    assert!(began.elapsed() < 4 * SECOND, "it looks twice between two renewals");
    running.signal(Signal::CONT);
    assert_eq!(running.status().await, Some(70));
    let _ = kill_process(watchdog, Signal::KILL);
}

/// The inner command is killed, and its watchdog has not killed its child yet.
#[tokio::test]
async fn a_hold_is_kept_until_the_watchdog_of_an_inner_command_has_ended() {
    let (server, dir) = (Server::start().await, tempfile::tempdir().unwrap());
    let text = in_the_background("echo $PPID; exec sleep 1000", dir.path());
    let mut running = start(on(&server, &["exec", "--lease", "1500ms", "a", "--", "sh", "-c", &text]));
    let inner: i32 = running.number().await;
    let inner = Pid::from_raw(inner).unwrap();
    let watchdog = watchdog_of(inner).await.unwrap();
    kill_process(watchdog, Signal::STOP).unwrap();
    kill_process(inner, Signal::KILL).unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(status(&server, &["exec", "-n", "a", "--", "true"]).await, Some(75));
    kill_process(watchdog, Signal::CONT).unwrap();
    assert_eq!(running.end().await.0, Some(3));
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_fenced_inner_command_has_the_token_of_the_outer_one() {
    let server = Server::start().await;
    let text = script("echo $NESTLOCK_TOKEN; nestlock exec --fenced a -- sh -c 'echo $NESTLOCK_TOKEN'");
    let ended = end(on(&server, &["exec", "--fenced", "a", "--", "sh", "-c", &text])).await;
    let tokens: Vec<&str> = ended.out.lines().collect();
    assert!(tokens.len() == 2 && tokens[0] == tokens[1] && !tokens[0].is_empty(), "{ended:?}");
    let ended =
        end(on(&server, &["exec", "a", "--", "sh", "-c", &script("nestlock exec --fenced a -- true")])).await;
    assert_eq!(ended.status, Some(78));
    assert!(ended.err.contains("--fenced too"), "{}", ended.err);
}
