//! A command under a lock.

use std::process::Stdio;
use std::time::Instant;

use tokio::io::AsyncWriteExt;

use crate::run::{NESTLOCK, end, nestlock, on, start, status, ttl};
use crate::support::server::Server;
use crate::support::{SECOND, eventually, soon};

#[tokio::test]
async fn the_status_is_the_childs() {
    let server = Server::start().await;
    assert_eq!(status(&server, &["exec", "a", "--", "true"]).await, Some(0));
    assert_eq!(status(&server, &["exec", "a", "--", "sh", "-c", "exit 7"]).await, Some(7));
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("INT", 130)] {
        assert_eq!(
            status(&server, &["exec", "a", "--", "sh", "-c", &format!("kill -{signal} $$")]).await,
            Some(code)
        );
    }
    assert_eq!(status(&server, &["exec", "a", "--", "/no/such/command"]).await, Some(127));
    assert_eq!(status(&server, &["exec", "a", "--", "no-such-command"]).await, Some(127));
    assert_eq!(status(&server, &["exec", "a", "--", "/etc/passwd"]).await, Some(126));
    assert!(server.keys().await.is_empty());
}

/// While `SIGCHLD` is ignored, the kernel keeps no status of a child, unless the process asks for it.
#[tokio::test]
async fn the_status_is_the_childs_where_ends_of_children_are_ignored() {
    let server = Server::start().await;
    let mut command = tokio::process::Command::new("env");
    command.args(["--ignore-signal=CHLD", "setsid", NESTLOCK, "exec", "a", "--", "sh", "-c", "exit 7"]);
    command.env("REDIS_URL", server.url()).env_remove("NESTLOCK_HOLDS");
    assert_eq!(end(command).await.status, Some(7));
}

/// The log may be on a disk that is full, for example.
#[tokio::test]
async fn where_no_message_can_be_written_the_status_is_the_same() {
    let server = Server::start().await;
    let mut holder = start(on(&server, &["exec", "a", "--", "sh", "-c", "echo; sleep 1000"]));
    holder.line().await;
    for (call, expected) in [
        (&["exec", "-n", "a", "--", "true"][..], 75),
        (&["exec", "b", "--", "/no/such/command"], 127),
        (&["exec", "", "--", "true"], 78),
    ] {
        let mut command = on(&server, call);
        command.stderr(std::fs::File::options().write(true).open("/dev/full").unwrap());
        let status = soon("the end of the command", command.status()).await.unwrap();
        assert_eq!(status.code(), Some(expected), "{call:?}");
    }
}

#[tokio::test]
async fn a_lock_that_another_has_is_busy() {
    let server = Server::start().await;
    let mut holder = start(on(
        &server,
        &["exec", "--holder-name", "the holder", "a", "--", "sh", "-c", "echo; sleep 1000"],
    ));
    holder.line().await;
    let busy = end(on(&server, &["exec", "-n", "a", "--", "true"])).await;
    assert_eq!(busy.status, Some(75));
    assert!(busy.err.contains("lock `a`: held by the holder for another"), "{}", busy.err);
    let busy = end(on(&server, &["exec", "--json", "--wait", "200ms", "-E", "9", "a", "--", "true"])).await;
    assert_eq!(busy.status, Some(9));
    let error: serde_json::Value = serde_json::from_str(&busy.err).unwrap();
    assert_eq!((&error["error"], &error["status"]), (&"busy".into(), &9.into()));
    assert_eq!(status(&server, &["exec", "-n", "b", "--", "true"]).await, Some(0));
}

#[tokio::test]
async fn a_command_that_waits_reports_who_has_the_lock() {
    let server = Server::start().await;
    let mut holder = start(on(
        &server,
        &["exec", "--holder-name", "the holder", "a", "--", "sh", "-c", "echo; sleep 1000"],
    ));
    holder.line().await;
    let wait = |args: &[&str]| end(on(&server, &[&["exec", "--wait", "1500ms"], args].concat()));
    let ended = wait(&["a", "--", "true"]).await;
    assert!(ended.err.starts_with("nestlock: waiting for `a`, held by the holder, lease "), "{}", ended.err);
    let ended = wait(&["--json", "a", "--", "true"]).await;
    let report: serde_json::Value = serde_json::from_str(ended.err.lines().next().unwrap()).unwrap();
    assert_eq!((&report["waiting"], &report["holder"]), (&true.into(), &"the holder".into()));
    let ended = wait(&["-q", "a", "--", "true"]).await;
    assert_eq!((ended.status, ended.err.lines().count()), (Some(75), 1), "{}", ended.err);
}

#[tokio::test]
async fn several_locks_are_held_together_or_not_at_all() {
    let server = Server::start().await;
    let both = |args: &[&str]| on(&server, &[&["exec", "b", "--also", "a", "--also", "b"], args].concat());
    let script = "printenv NESTLOCK_NAME NESTLOCK_HOLD NESTLOCK_TOKEN; sleep 1000";
    let mut running = start(both(&["--fenced", "sh", "-c", script]));
    assert_eq!([running.line().await, running.line().await], ["b", "a"]);
    for name in ["b", "a"] {
        assert_eq!(server.ask::<Vec<String>>(&["HKEYS", name]).await, [running.line().await]);
    }
    for _ in 0..2 {
        assert!(running.number::<u64>().await > 0);
    }
    let busy = end(both(&["-n", "true"])).await;
    assert!(busy.status == Some(75) && busy.err.contains("lock `a`: held by sh@"), "{busy:?}");
    // The other lock ends with it.
    assert_eq!(status(&server, &["release", "--force", "a"]).await, Some(0));
    let (code, err) = running.end().await;
    assert!(code == Some(70) && err.contains("one of the locks `b`, `a` was lost"), "{err}");
    assert_eq!(server.ask::<i64>(&["EXISTS", "a", "b"]).await, 0);

    let mut holder = start(on(&server, &["exec", "b", "sh", "-c", "echo; sleep 1000"]));
    holder.line().await;
    let busy = end(both(&["--wait", "1500ms", "true"])).await;
    assert!(busy.status == Some(75) && busy.err.contains("lock `b`: held by sh@"), "{busy:?}");
    assert!(busy.err.starts_with("nestlock: waiting for `b`, held by sh@"), "{busy:?}");
    assert_eq!(server.ask::<i64>(&["EXISTS", "a"]).await, 0);
}

/// The options are those of `flock`.
#[tokio::test]
async fn options_of_flock_mean_the_same() {
    let server = Server::start().await;
    let mut command = on(&server, &["exec", "a", "-c", "echo \"$0 $NESTLOCK_NAME\" | tr a b; exit 3"]);
    command.env("SHELL", "/bin/sh");
    let ended = end(command).await;
    assert_eq!((ended.status, ended.out.as_str()), (Some(3), "/bin/sh b\n"));
    let mut holder = start(on(&server, &["exec", "a", "-c", "echo; sleep 1000"]));
    holder.line().await;
    for args in [&["-n"][..], &["--nonblock"], &["-w", "0.1"], &["--timeout", "0.1"]] {
        let args = [&["exec", "--conflict-exit-code", "1"], args, &["a", "true"]].concat();
        assert_eq!(status(&server, &args).await, Some(1), "{args:?}");
    }
}

#[tokio::test]
async fn the_password_stays_with_the_command() {
    let server = Server::with(&["--requirepass", "right"]).await;
    for (args, expected) in [(&[][..], "none\n"), (&["--keep-password"], "right\n")] {
        let script = &["a", "sh", "-c", "echo ${NESTLOCK_PASSWORD:-none}"];
        let mut command = on(&server, &[&["exec"], args, script].concat());
        command.env("NESTLOCK_PASSWORD", "right");
        assert_eq!(end(command).await.out, expected);
    }
}

#[tokio::test]
async fn two_commands_do_not_overlap() {
    let (server, dir) = (Server::start().await, tempfile::tempdir().unwrap());
    let script =
        "for i in 1 2 3; do nestlock exec a -- sh -c 'echo in >> log; sleep 0.05; echo out >> log'; done";
    let script = script.replace("nestlock", NESTLOCK);
    let shell = || {
        let mut shell = tokio::process::Command::new("setsid");
        shell.args(["sh", "-c", &script]).current_dir(dir.path()).env("REDIS_URL", server.url());
        shell.env_remove("NESTLOCK_HOLDS").kill_on_drop(true);
        shell
    };
    let ends = tokio::join!(end(shell()), end(shell()), end(shell()));
    assert_eq!((ends.0.status, ends.1.status, ends.2.status), (Some(0), Some(0), Some(0)), "{ends:?}");
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert_eq!(log, "in\nout\n".repeat(9));
}

#[tokio::test]
async fn input_folder_and_arguments_are_the_childs() {
    let (server, dir) = (Server::start().await, tempfile::tempdir().unwrap());
    let mut command =
        on(&server, &["exec", "a", "--", "sh", "-c", "cat; pwd -P; echo \"$1\"", "sh", "$HOME * 'x"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir(dir.path()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"typed\n").await.unwrap();
    let out = String::from_utf8(child.wait_with_output().await.unwrap().stdout).unwrap();
    let folder = dir.path().canonicalize().unwrap();
    assert_eq!(out, format!("typed\n{}\n$HOME * 'x\n", folder.display()));
}

#[tokio::test]
async fn the_hold_is_in_the_childs_environment() {
    let server = Server::start().await;
    let script = "echo $NESTLOCK_NAME; echo $NESTLOCK_HOLD; echo ${NESTLOCK_TOKEN:-none}; sleep 1000";
    let mut command = on(&server, &["exec", "--key-prefix", "app:", "a b", "--", "sh", "-c", script]);
    // The token that another command around this one would leave.
    command.env("NESTLOCK_TOKEN", "7");
    let mut running = start(command);
    assert_eq!(running.line().await, "a b");
    let field = running.line().await;
    assert_eq!(server.ask::<Vec<String>>(&["HKEYS", "app:a b"]).await, std::slice::from_ref(&field));
    assert!(field.starts_with("sh@"), "{field}");
    assert_eq!(running.line().await, "none");
    assert!(ttl(&server, "app:a b").await > 25 * SECOND);
}

#[tokio::test]
async fn a_fenced_command_has_a_token_that_grows() {
    let server = Server::start().await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let ended =
            end(on(&server, &["exec", "--fenced", "a", "--", "sh", "-c", "echo $NESTLOCK_TOKEN"])).await;
        tokens.push(ended.out.trim().parse::<u64>().unwrap());
    }
    assert!(tokens.is_sorted_by(|one, other| one < other), "{tokens:?}");
}

#[tokio::test]
async fn the_lease_is_renewed_while_the_command_runs() {
    let server = Server::start().await;
    let mut running =
        start(on(&server, &["exec", "--lease", "1500ms", "a", "--", "sh", "-c", "echo; sleep 4; exit 3"]));
    running.line().await;
    assert_eq!(status(&server, &["exec", "--wait", "2500ms", "a", "--", "true"]).await, Some(75));
    let (code, err) = running.end().await;
    assert_eq!((code, err.as_str()), (Some(3), ""));
}

#[tokio::test]
async fn a_waiting_command_is_woken_by_a_release() {
    let server = Server::start().await;
    let mut first = start(on(&server, &["exec", "a", "--", "sh", "-c", "echo; sleep 1000"]));
    first.line().await;
    let second = start(on(&server, &["exec", "a", "--", "true"]));
    eventually("a waiter", async || !server.channels().await.is_empty()).await;
    assert_eq!(status(&server, &["release", "--force", "a"]).await, Some(0));
    assert_eq!(second.end().await.0, Some(0));
}

/// Without a terminal, the child leads a process group, which ends with it.
#[tokio::test]
async fn what_the_child_leaves_in_its_group_ends_with_it() {
    let server = Server::start().await;
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!; sh -c 'trap \"\" TERM; sleep 1000' >/dev/null 2>&1 & echo $!; exit 4";
    let mut running = start(on(&server, &["exec", "--kill-after", "300ms", "a", "--", "sh", "-c", script]));
    let (meek, stubborn): (i32, i32) = (running.number().await, running.number().await);
    assert_eq!(running.status().await, Some(4));
    assert!(!crate::support::is_running(meek) && !crate::support::is_running(stubborn));
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn the_output_is_closed_when_the_command_ends() {
    let server = Server::start().await;
    // `output` reads to the end, so the watchdog must not have the output open.
    let ended = end(on(&server, &["exec", "a", "--", "echo", "done"])).await;
    assert_eq!((ended.status, ended.out.as_str(), ended.err.as_str()), (Some(0), "done\n", ""));
    let ended = end(nestlock(&["--version"])).await;
    assert!(ended.out.starts_with("nestlock "), "{ended:?}");
}

#[tokio::test]
async fn a_lock_is_kept_for_at_least_that_long() {
    let server = Server::start().await;
    let args =
        ["exec", "--at-least", "10m", "--fenced", "--lease", "1500ms", "a", "--", "sh", "-c", "exit 3"];
    let ended = end(on(&server, &args)).await;
    assert_eq!((ended.status, ended.err.as_str()), (Some(3), ""));
    let left = ttl(&server, "a").await;
    assert!(left > 500 * SECOND && left <= 600 * SECOND, "{left:?}");
    assert_eq!(status(&server, &["exec", "-n", "a", "--", "true"]).await, Some(75));
    assert_eq!(status(&server, &["release", "--force", "a"]).await, Some(0));
    // A command that waits gets the lock when the time is over.
    let began = Instant::now();
    assert_eq!(status(&server, &["exec", "--at-least", "1s", "a", "--", "true"]).await, Some(0));
    assert_eq!(status(&server, &["exec", "a", "--", "true"]).await, Some(0));
    assert!(began.elapsed() >= SECOND);
    // If the command takes longer, the lock is not kept.
    assert_eq!(status(&server, &["exec", "--at-least", "300ms", "a", "--", "sleep", "0.4"]).await, Some(0));
    assert!(ttl(&server, "a").await.is_zero());
    assert_eq!(
        status(&server, &["exec", "--at-least", "3s", "--fixed-lease", "2s", "a", "--", "true"]).await,
        Some(78)
    );
}

/// An operator may end a job like that.
#[tokio::test]
async fn a_signal_ends_the_command_and_not_that_time() {
    let server = Server::start().await;
    let args = ["exec", "--at-least", "10m", "a", "--", "sh", "-c", "echo; exec sleep 1000"];
    let mut running = start(on(&server, &args));
    running.line().await;
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.end().await.0, Some(128 + 15));
    let left = ttl(&server, "a").await;
    assert!(left > 500 * SECOND && left <= 600 * SECOND, "{left:?}");
}

/// A call after the end of the outer command finds a lock that nobody holds.
#[tokio::test]
async fn a_lock_that_is_kept_is_entered_by_no_inner_call() {
    let server = Server::start().await;
    let script = "env | grep ^NESTLOCK_HOLDS=";
    let ended = end(on(&server, &["exec", "--at-least", "10m", "a", "--", "sh", "-c", script])).await;
    assert_eq!(ended.status, Some(0));
    let (name, holds) = ended.out.trim_end().split_once('=').unwrap();
    let mut inner = on(&server, &["exec", "-n", "a", "--", "true"]);
    inner.env(name, holds);
    assert_eq!(end(inner).await.status, Some(75));
}
