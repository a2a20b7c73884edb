//! Pairs per second: many tasks, each with a lock of its own, over one connection.

use std::time::{Duration, Instant};

use nestlock::Locks;
use rand::seq::SliceRandom;
use tokio::task::JoinSet;

use crate::benchmark::Benchmark;
use crate::cpu;
use crate::floor::{Floor, Key};
use crate::results::{Rate, Throughput};
use crate::server::Result;
use crate::stats::Stats;

/// The number of tasks, of keys, and of commands in one pipeline of `redis-benchmark`.
const TASKS: usize = 64;

/// How much is measured.
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
                0 => benchmark.pairs(TASKS, load.pairs_per_task * TASKS).await?.0,
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
