//! The server that all libraries use: what it counts, and where it runs.

use std::process::{Command, Stdio};
use std::time::Duration;

use redis::InfoDict;
use redis::aio::MultiplexedConnection;

use crate::cpu;
use crate::server::{Result, connection_to, url};
use crate::stats::Stats;

pub(crate) struct Server {
    connection: MultiplexedConnection,
    stats: Stats,
    /// Its own core, and the cores of server and clients together.
    cores: Option<(String, String)>,
}

impl Server {
    pub(crate) async fn connect() -> Result<Server> {
        let cores = std::env::var("BENCH_PINNED_CORES").ok();
        let cores = cores.as_deref().and_then(|cores| cores.split_once(' '));
        let cores = cores.map(|(server, client)| (server.to_owned(), format!("{server},{client}")));
        Ok(Server { connection: connection_to(&url()).await?, stats: Stats::connect().await?, cores })
    }

    /// Returns the cores of a client with two workers.
    pub(crate) fn both_cores(&self) -> Option<&str> {
        self.cores.as_ref().map(|(_, both)| both.as_str())
    }

    /// Moves the server to both cores, or back to its own.
    pub(crate) async fn share(&mut self, shared: bool) -> Result<()> {
        let Some((own, both)) = &self.cores else { return Ok(()) };
        let pid = self.stats.fact("server", "process_id").await?.ok_or("the server has no process id")?;
        let cores = if shared { both } else { own };
        let moved = Command::new("taskset").args(["-acp", cores, &pid]).stdout(Stdio::null()).status()?;
        if moved.success() { Ok(()) } else { Err("the server can't be moved to other cores".into()) }
    }

    /// Begins to count commands.
    pub(crate) async fn reset(&mut self) -> Result<()> {
        self.stats.reset().await
    }

    /// Returns how many of these commands have run since then.
    pub(crate) async fn commands(&mut self, names: &[String]) -> Result<u64> {
        let info: InfoDict = redis::cmd("INFO").arg("commandstats").query_async(&mut self.connection).await?;
        let calls = |name: &String| {
            let line: String = info.get(&format!("cmdstat_{name}"))?;
            line.strip_prefix("calls=")?.split(',').next()?.parse::<u64>().ok()
        };
        Ok(names.iter().filter_map(calls).sum())
    }

    pub(crate) async fn cpu(&mut self) -> Result<Duration> {
        cpu::servers(&mut self.stats).await
    }

    pub(crate) async fn memory(&mut self) -> Result<u64> {
        let used = self.stats.fact("memory", "used_memory").await?;
        Ok(used.ok_or("the server does not report its memory")?.parse()?)
    }

    /// Deletes all keys: a process that was stopped in the middle may have left some.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL").query_async(&mut self.connection).await?)
    }
}
