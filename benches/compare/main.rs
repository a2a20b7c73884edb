//! Measures the promised speed. Each figure stands beside a floor from the same run, in interleaved rounds.
//!
//! `scripts/lab/bench` runs it on a server of its own.

mod awake;
mod benchmark;
mod contest;
#[path = "../shared/cpu.rs"]
mod cpu;
mod crowd;
#[path = "../shared/floor.rs"]
mod floor;
mod growth;
mod handoff;
#[path = "../shared/head.rs"]
mod head;
mod machine;
mod many;
mod masters;
mod page;
mod pair;
mod peers;
mod plot;
mod profile;
mod quorum;
mod ratios;
mod results;
mod rounds;
#[path = "../shared/server.rs"]
mod server;
mod spread;
#[path = "../shared/stats.rs"]
mod stats;
#[path = "../shared/store.rs"]
mod store;
mod table;
mod template;
mod throughput;

use std::path::{Path, PathBuf};

use clap::Parser;

use crate::awake::Awake;
use crate::growth::Reach;
use crate::masters::Masters;
use crate::rounds::TURN;
use crate::server::{Result, patient};
use crate::stats::Stats;
use crate::store::put;
use crate::throughput::Load;

/// Compares locks with the raw commands beneath them, on the server in REDIS_URL.
#[derive(Parser)]
struct Options {
    /// Runs few rounds, to show that everything works, and roughly what it costs.
    #[arg(long)]
    quick: bool,
    /// The file that the figures are written to.
    #[arg(long, default_value = "target/bench/results.json")]
    results: PathBuf,
    /// Measures only what has this text in its name: pair, throughput, handoff, many, crowd, growth, quorum.
    #[arg(long, default_value = "")]
    only: String,
    /// Measures nothing, and writes the report and its plots into this folder, from the figures.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Compares with other libraries instead. Each value is the command that starts a driver; those of this crate and of the floor are
    /// needed too.
    #[arg(long)]
    peer: Vec<String>,
    /// With `--report`: writes the page on other libraries.
    #[arg(long)]
    peers: bool,
    /// Counts instructions too, if there is valgrind.
    #[arg(long)]
    profile: bool,
    /// Runs that many pairs in one way, without measuring.
    #[arg(long, hide = true)]
    pairs: Option<u64>,
    #[arg(long, hide = true, default_value_t = 0)]
    way: usize,
}

/// How much is measured.
struct Effort {
    rounds: u64,
    pairs: u64,
    handoffs: u64,
    load: Load,
    leases: u32,
    /// The rounds with masters frozen and not, and the pairs in each: so many that they take longer than the node timeout.
    freezes: (u64, u64),
    /// The grants to each client that competes.
    contests: u64,
    growth: Reach,
}

const FULL: Effort = Effort {
    rounds: 21,
    pairs: 1_000,
    handoffs: 100,
    load: Load { rounds: 21, pairs_per_task: 400 },
    leases: 5,
    freezes: (9, 4_000),
    contests: 100,
    growth: Reach { most: 100_000, waiters: 10_000, clients: 8, pairs: 2_000 },
};
const QUICK: Effort = Effort {
    rounds: 3,
    pairs: 200,
    handoffs: 50,
    load: Load { rounds: 3, pairs_per_task: 100 },
    leases: 4,
    freezes: (3, 2_000),
    contests: 20,
    growth: Reach { most: 100, waiters: 100, clients: 3, pairs: 50 },
};

/// Runs on one thread: the client has one core, as the server has.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(folder) = &options.report {
        let write = if options.peers { peers::write } else { page::write };
        return write(&options.results, folder);
    }
    if !options.peer.is_empty() {
        return peers::measure(&options.results, &options.peer, options.quick, &options.only).await;
    }
    if let Some(pairs) = options.pairs {
        return profile::run(options.way, pairs).await;
    }
    let effort = if options.quick { QUICK } else { FULL };
    let load = machine::load();
    measure(&options, &effort).await?;
    if options.profile {
        eprintln!("instructions, by valgrind");
        let folder = options.results.parent().ok_or("the results need a folder")?;
        if let Some(seen) = profile::profile(folder)? {
            put(&options.results, "instructions", &seen)?;
        }
    }
    let mut machine = machine::machine().await?;
    for (when, load) in [("load before", load), ("load after", machine::load())] {
        machine.facts.extend(load.map(|load| (when.to_owned(), load)));
    }
    put(&options.results, "machine", &machine)?;
    table::print(&options.results);
    Ok(())
}

async fn measure(options: &Options, effort: &Effort) -> Result<()> {
    let wanted = |name: &str| name.contains(&options.only);
    let file = &options.results;
    let locks = patient().connect().await?;
    let others = patient().connect().await?;
    if wanted("pair") {
        eprintln!("one task, a free lock");
        let mut pairs = pair::Pairs::new(&locks).await?;
        put(file, "pair", &rounds::timed(&mut pairs, effort.rounds, effort.pairs, TURN).await?)?;
    }
    if wanted("throughput") {
        eprintln!("64 tasks, a lock each");
        put(file, "throughput", &throughput::throughput(&locks, effort.load).await?)?;
    }
    if wanted("handoff") {
        eprintln!("hand-offs from one process to another");
        let mut handoffs = handoff::Handoffs::new(&locks, &others).await?;
        put(file, "handoff", &rounds::timed(&mut handoffs, effort.rounds, effort.handoffs, TURN).await?)?;
    }
    if wanted("crowd") {
        eprintln!("up to 1,000 waiters for one lock");
        let mut crowds = Vec::new();
        for of in [&[&locks][..], &[&locks, &others]] {
            for waiters in [10, 100, 1_000] {
                crowds.push(crowd::crowd(of, waiters, &mut crowd::one_server().await?).await?);
            }
        }
        put(file, "crowd", &crowds)?;
    }
    locks.close().await?;
    others.close().await?;
    if wanted("many") {
        eprintln!("10,000 locks held");
        put(file, "many", &many::many(10_000, effort.leases).await?)?;
    }
    if wanted("growth") {
        eprintln!(
            "up to {} locks, {} waiters, {} clients",
            effort.growth.most, effort.growth.waiters, effort.growth.clients
        );
        put(file, "growth", &growth::growth(&effort.growth).await?)?;
    }
    if wanted("quorum") {
        several_masters(file, effort).await?;
    }
    Ok(())
}

/// Measures several masters, if there are any.
async fn several_masters(file: &Path, effort: &Effort) -> Result<()> {
    let (mut crowds, mut contests) = (Vec::new(), Vec::new());
    for count in [3, 5] {
        let Some(masters) = Masters::first(count) else {
            eprintln!("no {count} masters: REDIS_URLS and REDIS_PIDS name them");
            return Ok(());
        };
        eprintln!("one task, {count} masters");
        let mut pairs = quorum::Pairs::new(&masters).await?;
        let timed = rounds::timed(&mut pairs, effort.rounds, effort.pairs, TURN).await?;
        put(file, &format!("quorum-{count}"), &timed)?;
        freezes(file, effort, count).await?;
        eprintln!("clients that compete over {count} masters, and waiters");
        contests.push(contest::contest(&masters, count as u64, effort.contests).await?);
        let (locks, others) = (masters.locks().connect().await?, masters.locks().connect().await?);
        let mut stats = Vec::new();
        for url in &masters.urls {
            stats.push(Stats::of(url).await?);
        }
        for of in [&[&locks][..], &[&locks, &others]] {
            for waiters in [10, 100] {
                crowds.push(crowd::crowd(of, waiters, &mut stats).await?);
            }
        }
    }
    put(file, "quorum-contest", &contests)?;
    put(file, "quorum-crowd", &crowds)
}

/// Measures with frozen masters, first with the machine as it is, then with cores that do not halt.
async fn freezes(file: &Path, effort: &Effort, count: usize) -> Result<()> {
    eprintln!("{count} masters, of which a minority is frozen");
    let (rounds, samples) = effort.freezes;
    let mut freezes = quorum::Freezes::new(Masters::first(count).ok_or("they are gone")?).await?;
    put(file, &format!("frozen-{count}"), &rounds::timed(&mut freezes, rounds, samples, samples).await?)?;
    let Some(_awake) = Awake::keep().await else {
        eprintln!("not with cores kept awake: they are not pinned, or there is no `chrt --idle`");
        return Ok(());
    };
    put(file, &format!("awake-{count}"), &rounds::timed(&mut freezes, rounds, samples, samples).await?)
}
