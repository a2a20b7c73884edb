//! The watchdog: a process that kills the child if the command can't.
//!
//! It reads from its standard input which process the child is, and the end of the lease whenever that moves. It acts in two cases:
//!
//! 1. The end comes, and no later one was read: the command was stopped (`SIGSTOP`, `^Z`), or hangs.
//! 2. Its input ends without a farewell: the command was killed.
//!
//! It has a session of its own, and none of the child's files open. No terminal sends signals to it. In a group of the command's session
//! it would get `HUP` if both are stopped and the command is killed: the kernel ends groups that are left alone in that state. Until it
//! has that session, `^Z` would stop it too. So it reports when it has it, and the child runs only after that.

use std::io::Result;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Signal, setsid};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::time::{Instant, timeout, timeout_at};

use crate::exec::targets::{Reach, Targets};

/// The only argument of the watchdog.
pub(crate) const WATCHDOG: &str = "--internal-watchdog";

/// The longest sleep: while the machine sleeps, a timer does not advance.
const SLICE: Duration = Duration::from_millis(500);

/// The exit status of a watchdog that has killed.
const HAS_KILLED: u8 = 1;

/// For how long it kills what is left.
const KILLS: Duration = Duration::from_secs(2);

/// Returns the path of this program, even if its file was replaced in the meantime.
pub(super) fn this_program() -> Result<std::path::PathBuf> {
    match cfg!(target_os = "linux") {
        true => Ok("/proc/self/exe".into()),
        false => std::env::current_exe(),
    }
}

/// Returns the time since the machine was started, including the time that it slept.
fn uptime() -> Duration {
    #[cfg(target_os = "linux")]
    let now = clock_gettime(ClockId::Boottime);
    #[cfg(not(target_os = "linux"))]
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The command's side of the watchdog.
pub(super) struct Watchdog {
    process: Child,
    stdin: ChildStdin,
    /// Yields a byte once the watchdog has a session of its own.
    stderr: ChildStderr,
    /// The targets that were written to it last.
    targets: String,
    until: Option<Instant>,
}

impl Watchdog {
    /// Starts the watchdog. The files `kept` stay open for as long as it lives.
    pub(super) fn start(kept: &[OwnedFd]) -> Result<Watchdog> {
        // Copies that the watchdog inherits. They are closed before anything else is started.
        let kept = kept.iter().map(OwnedFd::try_clone).collect::<Result<Vec<_>>>()?;
        for file in &kept {
            rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())?;
        }
        let mut process = Command::new(this_program()?)
            .arg0("nestlock")
            .arg(WATCHDOG)
            // The watchdog must not be among the processes that are found by their environment.
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let (Some(stdin), Some(stderr)) = (process.stdin.take(), process.stderr.take()) else {
            return Err(std::io::Error::other("the watchdog has no pipes"));
        };
        Ok(Watchdog { process, stdin, stderr, targets: String::new(), until: None })
    }

    /// Waits until no signal of the terminal can stop the watchdog. Fails if it has ended, or is not ready by
    /// this time.
    pub(super) async fn ready(&mut self, by: Instant) -> Result<()> {
        timeout_at(by, self.stderr.read_u8()).await??;
        Ok(())
    }

    /// Sends the watchdog the processes to kill, and the time by which they have to be dead unless this is
    /// called again. An earlier time also replaces a later one.
    pub(super) async fn guard(&mut self, targets: &Targets, until: Instant) -> Result<()> {
        let line = targets.line();
        if self.targets != line {
            self.say(&line).await?;
            self.targets = line;
        }
        if self.until != Some(until) {
            let left = until.saturating_duration_since(Instant::now());
            self.say(&format!("until {}\n", (uptime() + left).as_nanos())).await?;
            self.until = Some(until);
        }
        Ok(())
    }

    /// Ends the watchdog once nothing is left to kill. Returns whether it has killed something: the end of the lease that was set last
    /// had come.
    pub(super) async fn dismiss(mut self) -> bool {
        let _ = self.say("done\n").await;
        drop(self.stdin);
        let status = timeout(KILLS, self.process.wait()).await;
        matches!(status, Ok(Ok(status)) if status.code() == Some(HAS_KILLED.into()))
    }

    /// Returns whether the watchdog has ended, for example because it was killed.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Writes a line as a whole or not at all: it fits into a pipe. A watchdog that is stopped must not hold the command up.
    async fn say(&mut self, line: &str) -> Result<()> {
        timeout(Duration::from_millis(50), self.stdin.write_all(line.as_bytes())).await?
    }
}

/// Runs the watchdog's side.
pub(crate) fn watch_over() -> ExitCode {
    let _ = setsid();
    let _ = rustix::io::write(std::io::stderr(), b"r");
    let stdin = std::io::stdin();
    let (mut targets, mut until, mut text) = (None, None, Vec::new());
    loop {
        let left = until.map_or(SLICE, |until: Duration| until.saturating_sub(uptime()));
        if until.is_some() && left.is_zero() {
            return kill(targets.as_ref());
        }
        let pause = left.min(SLICE);
        let pause = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
        let mut input = [PollFd::new(&stdin, PollFlags::IN)];
        if !matches!(poll(&mut input, Some(&pause)), Ok(1..)) {
            continue;
        }
        let mut part = [0; 4096];
        match rustix::io::read(&stdin, &mut part) {
            Ok(0) => return kill(targets.as_ref()),
            Ok(length) => text.extend(&part[..length]),
            Err(_) => continue,
        }
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            match line.trim_end().split_once(' ') {
                Some(("until", nanos)) => until = nanos.parse().ok().map(Duration::from_nanos),
                Some(("child", _)) => targets = Targets::read(line.trim_end()),
                _ => return ExitCode::SUCCESS,
            }
        }
    }
}

/// Kills more than once: a process that forks during the search has a child that was not seen.
fn kill(targets: Option<&Targets>) -> ExitCode {
    let Some(targets) = targets else { return ExitCode::SUCCESS };
    let end = uptime() + KILLS;
    loop {
        targets.signal(Signal::KILL, true, Reach::All);
        if !targets.are_left(Reach::All) || uptime() >= end {
            return ExitCode::from(HAS_KILLED);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
