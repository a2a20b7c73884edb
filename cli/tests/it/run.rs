//! The command as a process.

use std::fmt::Debug;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::server::Server;
use crate::support::soon;

/// The path of the command.
pub(crate) const NESTLOCK: &str = env!("CARGO_BIN_EXE_nestlock");

/// Returns the command without a terminal, and without the variables that the environment of the tests may
/// have.
pub(crate) fn nestlock(args: &[&str]) -> Command {
    // A signal that is ignored here would be ignored there too. If the tests are run by `nohup`, or in a
    // shell's background, some are.
    let mut command = Command::new("env");
    command.args(["--default-signal", "setsid", NESTLOCK]).args(args).kill_on_drop(true).stdin(Stdio::null());
    for name in ["REDIS_URL", "NESTLOCK_PASSWORD", "NESTLOCK_KEY_PREFIX", "NESTLOCK_HOLDS"] {
        command.env_remove(name);
    }
    command
}

/// Returns the command with the address of a server.
pub(crate) fn on(server: &Server, args: &[&str]) -> Command {
    let mut command = nestlock(args);
    command.env("REDIS_URL", server.url());
    command
}

/// How a command has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the command to its end.
pub(crate) async fn end(mut command: Command) -> Ended {
    let output = soon("the end of the command", command.output()).await.unwrap();
    Ended {
        status: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Returns the status with which the command ends on this server.
pub(crate) async fn status(server: &Server, args: &[&str]) -> Option<i32> {
    end(on(server, args)).await.status
}

/// A command that runs.
pub(crate) struct Running {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    err: tokio::task::JoinHandle<String>,
}

pub(crate) fn start(mut command: Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut stderr = child.stderr.take().unwrap();
    let err = tokio::spawn(async move {
        let mut text = String::new();
        let _ = tokio::io::AsyncReadExt::read_to_string(&mut stderr, &mut text).await;
        text
    });
    Running { child, out, err }
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Returns the next line of the output of the command and its child.
    pub(crate) async fn line(&mut self) -> String {
        soon("a line", self.out.next_line()).await.unwrap().expect("it has not ended")
    }

    /// Returns a number that the child prints.
    pub(crate) async fn number<T: std::str::FromStr<Err: Debug>>(&mut self) -> T {
        self.line().await.trim().parse().unwrap()
    }

    /// Returns the status, and what was printed on standard error. Waits for all processes that have that
    /// output open.
    pub(crate) async fn end(mut self) -> (Option<i32>, String) {
        let status = soon("the end of the command", self.child.wait()).await.unwrap();
        (status.code(), soon("its last words", self.err).await.unwrap())
    }

    /// Returns the status alone.
    pub(crate) async fn status(&mut self) -> Option<i32> {
        soon("the end of the command", self.child.wait()).await.unwrap().code()
    }
}

/// Waits until there is no such process.
pub(crate) async fn gone(pid: i32) {
    // Faster than `is_running`, which starts a process.
    let runs = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    soon("the end of a process", async {
        while runs() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Returns the watchdog of a command, if it has one now.
pub(crate) async fn watchdog_of(command: Pid) -> Option<Pid> {
    let mut pgrep = Command::new("pgrep");
    pgrep.args(["-f", "internal-watchdog", "-P", &command.to_string()]);
    let found = pgrep.output().await.unwrap();
    Pid::from_raw(String::from_utf8(found.stdout).unwrap().trim().parse().ok()?)
}

/// Returns the TTL of a lock's key.
pub(crate) async fn ttl(server: &Server, key: &str) -> Duration {
    Duration::from_millis(u64::try_from(server.ask::<i64>(&["PTTL", key]).await).unwrap_or(0))
}
