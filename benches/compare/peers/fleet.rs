//! The libraries that are measured, each with its processes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::peers::Effort;
use crate::peers::driver::{Driver, now};
use crate::peers::server::Server;
use crate::server::Result;

/// The time for a start: a JVM is slow on a core that it shares.
const STARTING: Duration = Duration::from_secs(60);

/// What a driver reports about its library.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) versions: Vec<(String, String)>,
    /// The commands that it sends, by their names in the server's statistics.
    pub(crate) sends: Vec<String>,
    pub(crate) nests: bool,
    pub(crate) renews: bool,
    pub(crate) waits: bool,
}

/// One library. Its processes are started when they are first needed, and kept: a virtual machine gets faster with time.
pub(crate) struct Candidate {
    command: Vec<String>,
    effort: Effort,
    pub(crate) about: About,
    /// Processes with one worker each.
    narrow: Vec<Driver>,
    /// The process with two workers.
    wide: Option<Driver>,
}

impl Candidate {
    pub(crate) async fn new(command: &str, effort: Effort) -> Result<Candidate> {
        let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        let mut first = Driver::start(&command, 1, effort.lease, None)?;
        let about = first.ask("hello", STARTING).await?;
        warm(&mut first, effort.warm_up).await?;
        Ok(Candidate { command, effort, about, narrow: vec![first], wide: None })
    }

    /// Returns that many processes with one worker each.
    pub(crate) async fn processes(&mut self, count: usize) -> Result<&mut [Driver]> {
        while self.narrow.len() < count {
            let driver = self.start(1, None).await?;
            self.narrow.push(driver);
        }
        Ok(&mut self.narrow[..count])
    }

    /// Returns the process with two workers, on the cores of client and server.
    pub(crate) async fn two_workers(&mut self, server: &Server) -> Result<&mut [Driver]> {
        if self.wide.is_none() {
            self.wide = Some(self.start(2, server.both_cores()).await?);
        }
        Ok(self.wide.as_mut_slice())
    }

    /// Starts a process that nothing else uses.
    pub(crate) async fn fresh(&self) -> Result<Driver> {
        self.start(1, None).await
    }

    async fn start(&self, workers: usize, cores: Option<&str>) -> Result<Driver> {
        let mut driver = Driver::start(&self.command, workers, self.effort.lease, cores)?;
        let _: About = driver.ask("hello", STARTING).await?;
        warm(&mut driver, self.effort.warm_up).await?;
        Ok(driver)
    }

    /// Ends its processes after a failure, since their state is unknown then.
    pub(crate) fn stop(&mut self) {
        self.narrow.clear();
        self.wide = None;
    }
}

/// Warms a driver up: its tasks take locks of their own for some time.
async fn warm(driver: &mut Driver, time: Duration) -> Result<()> {
    let _: Value = driver.ask(&format!("load - 64 {} {}", now(), time.as_millis()), STARTING).await?;
    Ok(())
}
