//! What a process and its server use while a load lasts.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use crate::cpu;
use crate::server::{Result, connection_to, url};
use crate::stats::Stats;

/// How many samples a load has.
const SAMPLES: u32 = 60;

/// The first part of a load, in which its process and its server reach their size.
const SETTLED: f64 = 0.25;

/// The factor by which figures may differ between the parts after that, besides an amount given for each: an allocator keeps pages, and a
/// machine has other work.
const NOISE: f64 = 1.15;

/// A shorter load shows nothing about processor time: each third of it lasts only seconds, so the machine's other work disturbs it.
const SHORTEST_FOR_SHARES: f64 = 60.0;

/// One moment of a load. Shares of a processor are shares of the time since the previous sample.
#[derive(Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) client_bytes: u64,
    pub(crate) server_bytes: u64,
    pub(crate) client_share: f64,
    pub(crate) server_share: f64,
    pub(crate) connections: u64,
    pub(crate) tasks: u64,
}

/// A figure of a sample.
pub(crate) type Figure = fn(&Sample) -> f64;

/// What one load was, and what it used.
#[derive(Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) what: String,
    /// Grants while it lasted.
    pub(crate) grants: u64,
    /// Holds that were lost while it lasted.
    pub(crate) lost: u64,
    pub(crate) samples: Vec<Sample>,
    /// The keys of locks on the server after all were released. The next field has the channels that are still subscribed to.
    pub(crate) keys_left: u64,
    pub(crate) channels_left: u64,
}

/// Takes samples until the time is over.
pub(crate) async fn samples(time: Duration) -> Result<Vec<Sample>> {
    let mut stats = Stats::connect().await?;
    let tasks = tokio::runtime::Handle::current();
    let mut ticks = interval(time / SAMPLES);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let began = Instant::now();
    let (mut at, mut own, mut servers) = (began, cpu::own(), cpu::servers(&mut stats).await?);
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        ticks.tick().await;
        let (now, own_now, servers_now) = (Instant::now(), cpu::own(), cpu::servers(&mut stats).await?);
        let share = |used: Duration| used.as_secs_f64() / (now - at).as_secs_f64();
        samples.push(Sample {
            seconds: began.elapsed().as_secs_f64(),
            client_bytes: resident().ok_or("the system does not report the memory of a process")?,
            server_bytes: number(&mut stats, "memory", "used_memory").await?,
            client_share: share(own_now - own),
            server_share: share(servers_now.saturating_sub(servers)),
            connections: number(&mut stats, "clients", "connected_clients").await?,
            tasks: tasks.metrics().num_alive_tasks() as u64,
        });
        (at, own, servers) = (now, own_now, servers_now);
    }
    Ok(samples)
}

async fn number(stats: &mut Stats, section: &str, name: &str) -> Result<u64> {
    let fact = stats.fact(section, name).await?;
    Ok(fact.ok_or_else(|| format!("the server does not report {name}"))?.parse()?)
}

/// Returns the memory of this process.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

impl Load {
    /// Checks that nothing was lost or left, and that nothing grew. The settled part of the load is cut into thirds; the last third must
    /// not exceed the first by more than noise.
    pub(crate) fn check(&self) -> Result<()> {
        if self.lost > 0 || self.keys_left > 0 || self.channels_left > 0 {
            return Err(format!("something was lost or left: {self}").into());
        }
        let sizes: [(&str, Figure, f64); 3] = [
            ("memory of the client", |one| one.client_bytes as f64, 2e6),
            ("memory of the server", |one| one.server_bytes as f64, 1e6),
            ("connections", |one| one.connections as f64, 0.0),
        ];
        let shares: [(&str, Figure, f64); 2] = [
            ("processor time of the client", |one| one.client_share, 0.01),
            ("processor time of the server", |one| one.server_share, 0.01),
        ];
        let lasted = self.samples.last().map_or(0.0, |one| one.seconds);
        let shares = shares.iter().filter(|_| lasted >= SHORTEST_FOR_SHARES);
        for (name, figure, allowed) in sizes.iter().chain(shares) {
            let (first, last) = self.ends(*figure);
            if last > first * NOISE + allowed {
                return Err(format!("{name} grew from {first:.3} to {last:.3}").into());
            }
        }
        Ok(())
    }

    /// Returns the medians of the first third after the start, and of the last third.
    fn ends(&self, figure: Figure) -> (f64, f64) {
        let settled = &self.samples[(self.samples.len() as f64 * SETTLED) as usize..];
        let third = (settled.len() / 3).max(1);
        let median = |part: &[Sample]| {
            let mut values: Vec<f64> = part.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        (median(&settled[..third.min(settled.len())]), median(&settled[settled.len() - third..]))
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { what, grants, lost, keys_left, channels_left, .. } = self;
        let mib =
            |(first, last): (f64, f64)| format!("{:.1} → {:.1} MiB", first / 1048576.0, last / 1048576.0);
        let share = |(first, last): (f64, f64)| format!("{:.1} → {:.1} %", first * 100.0, last * 100.0);
        let (client, server) =
            (mib(self.ends(|one| one.client_bytes as f64)), mib(self.ends(|one| one.server_bytes as f64)));
        let (client_cpu, server_cpu) =
            (share(self.ends(|one| one.client_share)), share(self.ends(|one| one.server_share)));
        let (first, last) = self.ends(|one| one.connections as f64);
        let (tasks, tasks_last) = self.ends(|one| one.tasks as f64);
        write!(
            f,
            "{what}: {grants} grants, {lost} lost; client {client}, {client_cpu} of a core, tasks {tasks} → {tasks_last}; \
             server {server}, {server_cpu} of a core, connections {first} → {last}; \
             left at the end: {keys_left} keys, {channels_left} channels"
        )
    }
}

/// Returns what is left on the server after all locks are released.
pub(crate) async fn left() -> Result<(u64, u64)> {
    let mut connection = connection_to(&url()).await?;
    let keys: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await?;
    // A process that has waited once keeps its channel of hints.
    let of_locks = ["CHANNELS", "*redisson_lock__channel:*"];
    let channels: Vec<String> = redis::cmd("PUBSUB").arg(&of_locks).query_async(&mut connection).await?;
    Ok((keys, channels.len() as u64))
}
