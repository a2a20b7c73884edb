//! A driver: a process that uses one lock library, controlled by commands. `benches/peers/driver.rs` lists the commands.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::server::Result;

pub(crate) struct Driver {
    name: String,
    pid: u32,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Driver {
    /// Starts it on these cores, or on those that this process may use.
    pub(crate) fn start(
        command: &[String],
        workers: usize,
        lease: Duration,
        cores: Option<&str>,
    ) -> Result<Driver> {
        let pinned = cores.iter().flat_map(|cores| ["taskset", "-c", cores]).map(str::to_owned);
        let mut words = pinned.chain(command.iter().cloned());
        let mut started = Command::new(words.next().ok_or("a driver without a command")?);
        started.args(words).arg(workers.to_string()).arg(lease.as_millis().to_string());
        started.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let name = command.join(" ");
        let mut process = started.spawn().map_err(|error| format!("`{name}` does not start: {error}"))?;
        let pipes = (process.id(), process.stdin.take(), process.stdout.take());
        let (Some(pid), Some(input), Some(output)) = pipes else {
            return Err(format!("`{name}` has ended").into());
        };
        let output = BufReader::new(output).lines();
        Ok(Driver { name, pid, input, output, _process: process })
    }

    pub(crate) async fn tell(&mut self, command: &str) -> Result<()> {
        Ok(self.input.write_all(format!("{command}\n").as_bytes()).await?)
    }

    /// Returns the answer to the oldest command that has none yet.
    pub(crate) async fn receive<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<T> {
        let line = timeout(patience, self.output.next_line()).await;
        let line = line.map_err(|_| format!("no answer of `{}` in {} s", self.name, patience.as_secs()))?;
        let answer: Value =
            serde_json::from_str(&line?.ok_or_else(|| format!("`{}` has ended", self.name))?)?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(format!("`{}` reports {error}", self.name).into()),
            None => Ok(serde_json::from_value(answer)?),
        }
    }

    pub(crate) async fn ask<T: DeserializeOwned>(&mut self, command: &str, patience: Duration) -> Result<T> {
        self.tell(command).await?;
        self.receive(patience).await
    }

    /// Returns the processor time of its threads, or `None` if the system does not report it in nanoseconds.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let mut sum = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid)).ok()? {
            // A thread may end in between.
            let Ok(seen) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
            sum += seen.split(' ').next()?.parse::<u64>().ok()?;
        }
        Some(Duration::from_nanos(sum))
    }

    /// Returns its memory, if the system reports it.
    pub(crate) fn resident(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    }
}

/// Returns the time by the clock of the drivers.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
