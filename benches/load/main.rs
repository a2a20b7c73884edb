//! Long-lasting loads: what a process and its server use must not grow over time.
//!
//! `scripts/lab/load` runs each on a server of its own.

mod churn;
#[path = "../shared/cpu.rs"]
mod cpu;
#[path = "../shared/head.rs"]
mod head;
mod held;
mod plots;
mod sample;
#[path = "../shared/server.rs"]
mod server;
#[path = "../shared/stats.rs"]
#[allow(dead_code, reason = "the comparison counts commands too")]
mod stats;
#[path = "../shared/store.rs"]
#[allow(dead_code, reason = "the counts are of another program")]
mod store;
mod waiters;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::server::Result;
use crate::store::put;

/// Puts a load on the server in REDIS_URL, and fails if something grows.
#[derive(Parser)]
struct Options {
    /// How long the load lasts.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The file that the figures are written to.
    #[arg(long, default_value = "target/load/results.json")]
    results: PathBuf,
    #[command(subcommand)]
    load: Kind,
}

#[derive(Subcommand)]
enum Kind {
    /// Locks that are held all the time.
    Held { holds: u64 },
    /// Tasks that wait for one lock, which goes around.
    Waiters { waiters: u64 },
    /// Locks of new names: this many are made and dropped each second.
    Churn { per_second: u64 },
    /// Draws the figures of all loads into this folder.
    Plots { folder: PathBuf },
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let options = Options::parse();
    let time = Duration::from_secs(options.seconds);
    let (name, load) = match options.load {
        Kind::Held { holds } => ("held", held::held(holds, time).await?),
        Kind::Waiters { waiters } => ("waiters", waiters::waiters(waiters, time).await?),
        Kind::Churn { per_second } => ("churn", churn::churn(per_second, time).await?),
        Kind::Plots { folder } => return plots::draw(&options.results, &folder),
    };
    put(&options.results, name, &load)?;
    println!("{name}: {load}");
    load.check()
}
