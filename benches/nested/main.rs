//! What nested levels cost compared with levels that take a command, what a layered service gains, and what
//! it costs to drop many guards at once.
//!
//! `scripts/lab/bench --nested` runs it on a server of its own. It prints tables.

#[path = "../../examples/demo/catalogue.rs"]
#[expect(dead_code, reason = "the demo uses all of it")]
mod catalogue;
#[path = "../shared/floor.rs"]
mod floor;
mod order;
#[path = "../shared/server.rs"]
mod server;
#[path = "../compare/spread.rs"]
mod spread;
#[path = "../shared/stats.rs"]
#[expect(dead_code, reason = "other benches use all of it")]
mod stats;

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use nestlock::{BareReentry, Locks, Mutex};
use rand::seq::SliceRandom;

use crate::floor::{Floor, Key};
use crate::order::Shop;
use crate::server::{Result, patient};
use crate::spread::Spread;
use crate::stats::Stats;

const ROUNDS: usize = 21;
/// How many samples are taken of each way in each round, and how many of them in a row.
const SAMPLES: usize = 500;
const TURN: usize = 25;
/// How deep the recursion goes, and how often in each round.
const DEPTH: usize = 1_000;
const RECURSIONS: usize = 5;
/// How many guards are dropped at once.
const BURST: usize = 1_000;

const WAYS: [&str; 7] = [
    "two raw EVALSHA round trips",
    "lock and release",
    "`run`",
    "three nested by `run`",
    "three nested by `run`, each asked for (`confirm_reentry`)",
    "a nested `run`",
    "a nested `lock` with `BareReentry::Local`, and its release",
];

/// Runs on one thread: the client has one core, as the server has.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // The hold must stay certain for the whole run.
    let builder = patient().lease(Duration::from_secs(600));
    let locks = builder.clone().bare_reentry(BareReentry::Local).connect().await?;
    let asked = builder.prefix("asked:").confirm_reentry(true).connect().await?;
    levels(&locks, &asked).await?;
    recursion(&locks).await?;
    orders(&locks, &asked).await?;
    burst(&locks).await?;
    locks.close().await?;
    Ok(asked.close().await?)
}

async fn levels(locks: &Locks, asked: &Locks) -> Result<()> {
    let mut floor = Floor::connect().await?;
    let key = Key::new("nested:raw");
    let (free, asked, held) =
        (locks.mutex("nested:free"), asked.mutex("nested:free"), locks.mutex("nested:held"));
    let outer = held.lock().await?;
    // For each way: the medians of its rounds.
    let mut seen = vec![Vec::new(); WAYS.len()];
    // The first round is not counted: it warms up connections, caches and the server's scripts.
    for round in 0..=ROUNDS {
        let mut times = vec![Vec::with_capacity(SAMPLES); WAYS.len()];
        let mut order: Vec<usize> = (0..WAYS.len()).collect();
        for _ in 0..SAMPLES / TURN {
            order.shuffle(&mut rand::rng());
            for &way in &order {
                for _ in 0..TURN {
                    let began = Instant::now();
                    match way {
                        0 => floor.pair(&key).await?,
                        1 => free.lock().await?.release().await?,
                        2 => free.run(async |_| {}).await?,
                        3 => three(&free).await?,
                        4 => three(&asked).await?,
                        5 => held.run(async |_| {}).await?,
                        _ => held.lock().await?.release().await?,
                    }
                    times[way].push(micros(began.elapsed()));
                }
            }
        }
        for (way, times) in times.into_iter().enumerate().filter(|_| round > 0) {
            seen[way].push(Spread::of(times).median);
        }
    }
    outer.release().await?;
    println!("| what | µs | compared with `run` |\n| --- | --- | --- |");
    for (name, times) in WAYS.iter().zip(&seen) {
        let (time, ratio) = (Spread::of(times.clone()), Spread::of_ratios(times.clone(), seen[2].clone()));
        println!("| {name} | {} | {} × |", spread(time, 1), spread(ratio, 3));
    }
    Ok(())
}

async fn three(lock: &Mutex) -> nestlock::Result<()> {
    lock.run(async |_| lock.run(async |_| lock.run(async |_| {}).await).await).await??
}

async fn recursion(locks: &Locks) -> Result<()> {
    let mut times = Vec::new();
    let lock = locks.mutex("nested:deep");
    for _ in 0..ROUNDS * RECURSIONS {
        let began = Instant::now();
        deep(&lock, DEPTH).await?;
        times.push(micros(began.elapsed()) / 1e3);
    }
    println!("\n{DEPTH} `run` inside each other, all released: {} ms", spread(Spread::of(times), 2));
    Ok(())
}

fn deep(lock: &Mutex, levels: usize) -> Pin<Box<dyn Future<Output = nestlock::Result<()>> + '_>> {
    let work = async move |_| match levels {
        1 => Ok(()),
        _ => deep(lock, levels - 1).await,
    };
    Box::pin(async move { lock.run(work).await? })
}

async fn orders(locks: &Locks, asked: &Locks) -> Result<()> {
    let mut stats = Stats::connect().await?;
    println!(
        "\n| an order of the demo | commands for its locks: before | after | orders/s: before | after | ratio |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for (what, books) in [("its locks alone", false), ("with its reads and writes of the books", true)] {
        let shops = [Shop::open(asked, books).await?, Shop::open(locks, books).await?];
        let mut commands = [0.0; 2];
        let mut rates = [Vec::new(), Vec::new()];
        let mut turns = [0, 1];
        for round in 0..=ROUNDS {
            turns.shuffle(&mut rand::rng());
            for at in turns {
                stats.reset().await?;
                let (rate, served) = shops[at].serve().await?;
                let sent = stats.commands().await?;
                commands[at] = sent.get("evalsha").copied().unwrap_or_default() as f64 / served as f64;
                if round > 0 {
                    rates[at].push(rate);
                }
            }
        }
        let [before, after] = rates;
        let ratio = Spread::of_ratios(after.clone(), before.clone());
        println!(
            "| {what} | {:.1} | {:.1} | {} | {} | {} × |",
            commands[0],
            commands[1],
            spread(Spread::of(before), 0),
            spread(Spread::of(after), 0),
            spread(ratio, 2),
        );
    }
    Ok(())
}

/// Measures the time that the drops themselves take, and the time until the server has none of their keys.
async fn burst(locks: &Locks) -> Result<()> {
    let mut redis = Floor::connect().await?.connection;
    let (mut drops, mut gone) = (Vec::new(), Vec::new());
    let names: Vec<_> = (0..BURST).map(|at| format!("nested:burst:{at}")).collect();
    for _ in 0..ROUNDS {
        let mut guards = Vec::with_capacity(BURST);
        for name in &names {
            guards.push(locks.mutex(name).lock().await?);
        }
        let began = Instant::now();
        drop(guards);
        drops.push(micros(began.elapsed()) / 1e3);
        while redis::cmd("EXISTS").arg(&names).query_async::<usize>(&mut redis).await? > 0 {}
        gone.push(micros(began.elapsed()) / 1e3);
    }
    let (drops, gone) = (spread(Spread::of(drops), 2), spread(Spread::of(gone), 2));
    println!(
        "\n{BURST} guards dropped at once: {drops} ms for the drops, {gone} ms until all are free on the server"
    );
    Ok(())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn spread(of: Spread, digits: usize) -> String {
    format!("{:.digits$} ({:.digits$}–{:.digits$})", of.median, of.low, of.high)
}
