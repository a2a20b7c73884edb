//! Compares other lock libraries with this one, in rounds: each library once in a round, in an order that rotates.
//!
//! The libraries run in processes of their own, by the drivers in `benches/peers`, which `scripts/lab/bench --peers` builds.

mod driver;
mod fleet;
mod holds;
mod page;
mod results;
mod server;
mod targets;
mod work;

pub(crate) use page::write;
pub(crate) use results::Peers;
pub(crate) use targets::targets;

use std::path::Path;
use std::time::Duration;

use crate::benchmark::Benchmark;
use crate::floor::Floor;
use crate::machine;
use crate::peers::fleet::Candidate;
use crate::peers::results::{Case, Holds, Rounds};
use crate::peers::server::Server;
use crate::peers::work::{Sample, Work};
use crate::server::Result;
use crate::store::put;

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// The rounds for one task, for many tasks, for tasks that wait for one lock, and for holds.
    rounds: [usize; 4],
    pairs: usize,
    handoffs: usize,
    own: Duration,
    crowd: Duration,
    large_crowd: Duration,
    processes: &'static [usize],
    processes_for: Duration,
    holds: &'static [u64],
    lease: Duration,
    /// How long each process is warmed up before it is measured.
    warm_up: Duration,
}

const FULL: Effort = Effort {
    rounds: [41, 21, 9, 2],
    pairs: 300,
    handoffs: 10,
    own: Duration::from_millis(300),
    crowd: Duration::from_millis(500),
    large_crowd: Duration::from_secs(2),
    processes: &[2, 4, 8],
    processes_for: Duration::from_secs(1),
    holds: &[10_000, 100_000],
    lease: Duration::from_secs(30),
    warm_up: Duration::from_secs(3),
};
const QUICK: Effort = Effort {
    rounds: [2, 2, 1, 1],
    pairs: 50,
    handoffs: 4,
    own: Duration::from_millis(100),
    crowd: Duration::from_millis(200),
    large_crowd: Duration::from_millis(500),
    processes: &[2],
    processes_for: Duration::from_millis(200),
    holds: &[1_000],
    lease: Duration::from_secs(3),
    warm_up: Duration::from_millis(200),
};

/// The libraries that must work. Any other one that fails is named and left out.
const OURS: [&str; 2] = ["floor", "nestlock"];

pub(crate) async fn measure(file: &Path, commands: &[String], quick: bool, only: &str) -> Result<()> {
    let effort = if quick { QUICK } else { FULL };
    let load = machine::load();
    let mut server = Server::connect().await?;
    let mut fleet = Vec::new();
    for command in commands {
        fleet.push(Candidate::new(command, effort).await?);
    }
    let benchmark = Benchmark::new(&Floor::connect().await?).await?;
    let mut seen = Peers { libraries: fleet.iter().map(|of| of.about.clone()).collect(), ..Peers::default() };
    for work in works(&effort).filter(|work| work.name().contains(only)) {
        eprintln!("{}", work.name());
        let shared = work == Work::Own { workers: 2 };
        server.share(shared).await?;
        let rounds = rounds(work, &mut fleet, &mut server, &benchmark, &effort).await?;
        server.share(false).await?;
        seen.works.push(rounds);
        put(file, "peers", &seen)?;
    }
    for &holds in effort.holds.iter().filter(|holds| format!("{holds} holds").contains(only)) {
        eprintln!("{holds} holds");
        seen.holds.push(at_rest(holds, &fleet, &mut server, &effort).await?);
        put(file, "peers", &seen)?;
    }
    let mut machine = machine::machine().await?;
    for (when, load) in [("load before", load), ("load after", machine::load())] {
        machine.facts.extend(load.map(|load| (when.to_owned(), load)));
    }
    put(file, "machine", &machine)?;
    println!("\n{}\n", page::overview(&seen));
    Ok(())
}

fn works(effort: &Effort) -> impl Iterator<Item = Work> {
    let first = [Work::Pair, Work::Nested, Work::Own { workers: 1 }, Work::Own { workers: 2 }, Work::Handoff];
    let crowds = [8, 1_000].map(|tasks| Work::Crowd { tasks });
    first.into_iter().chain(crowds).chain(effort.processes.iter().map(|&count| Work::Processes { count }))
}

async fn rounds(
    work: Work,
    fleet: &mut [Candidate],
    server: &mut Server,
    benchmark: &Benchmark,
    effort: &Effort,
) -> Result<Rounds> {
    let count = effort.rounds[match work {
        Work::Pair | Work::Nested => 0,
        Work::Own { .. } | Work::Handoff => 1,
        _ => 2,
    }];
    let mut cases: Vec<Case<Sample>> = fleet.iter().map(|of| Case::new(&of.about.name)).collect();
    let mut alone = Case::new("redis-benchmark");
    // The first round is not counted: it warms up connections, caches and virtual machines.
    for round in 0..=count {
        for at in 0..fleet.len() {
            let at = (at + round) % fleet.len();
            let (of, case) = (&mut fleet[at], &mut cases[at]);
            if !work.can(&of.about) || case.failure.is_some() {
                continue;
            }
            match work::round(work, of, server, effort).await {
                Ok(sample) if round > 0 => case.samples.push(sample),
                Ok(_) => {}
                Err(error) => {
                    forgive(of, error.as_ref())?;
                    case.failure = Some(error.to_string());
                    of.stop();
                    server.flush().await?;
                }
            }
        }
        if let Some((pipeline, pairs)) = beneath(work, effort) {
            let sample = bench(benchmark, pipeline, pairs, server).await?;
            if round > 0 {
                alone.samples.push(sample);
            }
        }
    }
    if !alone.samples.is_empty() {
        cases.push(alone);
    }
    Ok(Rounds { work, cases })
}

/// Returns the pipeline and the number of pairs of `redis-benchmark` for this work, if it is compared there.
fn beneath(work: Work, effort: &Effort) -> Option<(usize, usize)> {
    match work {
        Work::Pair => Some((1, effort.pairs * 4)),
        Work::Own { workers: 1 } => Some((64, 6_400)),
        _ => None,
    }
}

async fn bench(benchmark: &Benchmark, pipeline: usize, pairs: usize, server: &mut Server) -> Result<Sample> {
    let before = server.cpu().await?;
    let (rate, median) = benchmark.pairs(pipeline, pairs).await?;
    let spent = server.cpu().await? - before;
    Ok(Sample {
        operations: pairs as u64,
        micros: if pipeline == 1 { median } else { 1e6 / rate },
        server: spent.as_secs_f64() * 1e6 / pairs as f64,
        client: None,
        commands: None,
        longest: None,
        shares: Vec::new(),
        errors: 0,
    })
}

async fn at_rest(holds: u64, fleet: &[Candidate], server: &mut Server, effort: &Effort) -> Result<Holds> {
    let mut seen = Holds { holds, lease: effort.lease.as_secs_f64(), cases: Vec::new() };
    let mut running = Vec::new();
    for of in fleet.iter().filter(|of| of.about.waits) {
        let mut driver = of.fresh().await?;
        holds::ready(&mut driver).await?;
        running.push((of, driver));
        seen.cases.push(Case::new(&of.about.name));
    }
    for round in 0..effort.rounds[3] {
        for at in 0..running.len() {
            let at = (at + round) % running.len();
            let ((of, driver), case) = (&mut running[at], &mut seen.cases[at]);
            if case.failure.is_some() {
                continue;
            }
            match holds::round(holds, driver, of, server, effort.lease).await {
                Ok(sample) => case.samples.push(sample),
                Err(error) => {
                    forgive(of, error.as_ref())?;
                    case.failure = Some(error.to_string());
                    server.flush().await?;
                }
            }
        }
    }
    Ok(seen)
}

/// Handles a library that fails: it is named and left out, unless it is this one.
fn forgive(of: &Candidate, error: &dyn std::error::Error) -> Result<()> {
    let name = of.about.name.as_str();
    if OURS.contains(&name) {
        return Err(format!("{name} failed: {error}").into());
    }
    eprintln!("left out: {name}: {error}");
    Ok(())
}
