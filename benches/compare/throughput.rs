//! Pairs in a second: many tasks, each with a lock of its own, over one connection.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nestlock::Locks;
use rand::seq::SliceRandom;
use redis::Script;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::cpu;
use crate::floor::{ACQUIRE, FIELD, Floor, Key, RELEASE};
use crate::results::{Rate, Throughput};
use crate::server::{Result, url};
use crate::stats::Stats;

/// Tasks, keys, and commands in one pipeline of `redis-benchmark`.
const TASKS: usize = 64;

/// How much is asked in one round.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) rounds: u64,
    pub(crate) pairs_per_task: usize,
}

pub(crate) async fn throughput(locks: &Locks, load: Load) -> Result<Throughput> {
    let floor = Floor::connect().await?;
    let benchmark = Benchmark::new(&floor).await?;
    let mut stats = Stats::connect().await?;
    let mut seen = Throughput::default();
    let mut order = [0, 1, 2];
    for _ in 0..load.rounds {
        order.shuffle(&mut rand::rng());
        for way in order {
            let before = (cpu::own(), cpu::servers(&mut stats).await?);
            let pairs_per_second = match way {
                0 => benchmark.pairs(load.pairs_per_task * TASKS).await?,
                1 => raw(&floor, load.pairs_per_task).await?,
                _ => ours(locks, load.pairs_per_task).await?,
            };
            let each = |spent: Duration| spent.as_secs_f64() * 1e6 / (load.pairs_per_task * TASKS) as f64;
            let client_micros = (way != 0).then(|| each(cpu::own() - before.0));
            let server_micros = each(cpu::servers(&mut stats).await? - before.1);
            let rate = Rate { pairs_per_second, client_micros, server_micros };
            match way {
                0 => seen.benchmark.push(rate),
                1 => seen.raw.push(rate),
                _ => seen.ours.push(rate),
            }
        }
    }
    Ok(seen)
}

async fn raw(floor: &Floor, pairs: usize) -> Result<f64> {
    let task = |at: usize| {
        let (mut floor, key) = (floor.clone(), Key::new(format!("bench:raw:{at}")));
        async move {
            for _ in 0..pairs {
                floor.pair(&key).await?;
            }
            Ok(())
        }
    };
    rate(task, pairs).await
}

async fn ours(locks: &Locks, pairs: usize) -> Result<f64> {
    let task = |at: usize| {
        let lock = locks.mutex(format!("bench:ours:{at}"));
        async move {
            for _ in 0..pairs {
                lock.lock().await?.release().await?;
            }
            Ok(())
        }
    };
    rate(task, pairs).await
}

async fn rate<F: Future<Output = Result<()>> + Send + 'static>(
    task: impl Fn(usize) -> F,
    pairs: usize,
) -> Result<f64> {
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    (0..TASKS).for_each(|at| drop(tasks.spawn(task(at))));
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok((TASKS * pairs) as f64 / began.elapsed().as_secs_f64())
}

/// The server's own load generator. It repeats one command only, so both scripts are put into one: it takes the key if it
/// is free, else releases it. Each body is the script's own, and neither asks the server for more than it does alone.
struct Benchmark {
    program: String,
    port: u16,
    sha: String,
}

impl Benchmark {
    async fn new(floor: &Floor) -> Result<Benchmark> {
        let looks = "local ttl = redis.call('PTTL', KEYS[1])";
        let acquire = ACQUIRE.replacen(looks, "", 1);
        let body = format!(
            "local function release()\nlocal ARGV = {{ARGV[1], '0', ARGV[4]}}\n{RELEASE}\nend\n{looks}\n\
             if ttl ~= -2 then return release() end\n{acquire}"
        );
        let sha = Script::new(&body).prepare_invoke().load_async(&mut floor.connection.clone()).await?;
        let server = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let program = server.strip_suffix("-server").unwrap_or("redis").to_owned() + "-benchmark";
        let port = url().rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(6379);
        Ok(Benchmark { program, port, sha })
    }

    async fn pairs(&self, pairs: usize) -> Result<f64> {
        let (key, channel) = ("bench:__rand_int__", "redisson_lock__channel:{bench:__rand_int__}");
        let mut command = Command::new(&self.program);
        command.args(["-p", &self.port.to_string(), "-c", "1", "-P", &TASKS.to_string(), "--csv"]);
        command.args(["-r", &TASKS.to_string(), "-n", &(2 * pairs).to_string()]);
        command.args(["EVALSHA", &self.sha, "1", key, FIELD, "1", "30000", channel]);
        let output = command.stdin(Stdio::null()).output().await;
        let output = output.map_err(|error| format!("{} does not start: {error}", self.program))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        // The last line: the command, and what it did in a second.
        let commands =
            printed.lines().last().and_then(|line| line.split("\",\"").nth(1)?.parse::<f64>().ok());
        let commands = commands.ok_or_else(|| format!("{} prints no rate: {printed}", self.program))?;
        Ok(commands / 2.0)
    }
}
