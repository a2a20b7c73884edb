//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};

/// Processes take a few locks again and again on servers that fail. A checker looks for holds that overlap, tokens that fall, and locks
/// that are left.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) call: Option<Call>,
    #[command(flatten)]
    pub(crate) run: Run,
}

#[derive(Subcommand)]
pub(crate) enum Call {
    /// Checks the logs of an earlier run again.
    Check { folder: PathBuf },
    /// Runs one of the processes.
    #[command(hide = true)]
    Worker { job: String },
}

#[derive(Args)]
pub(crate) struct Run {
    /// How long the servers fail, in seconds. Start and end take additional time.
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// The number of independent masters: 1, 3 or 5.
    #[arg(long, value_name = "N", group = "deployment", value_parser = masters)]
    pub(crate) masters: Option<usize>,
    /// A master with two replicas and three sentinels.
    #[arg(long, group = "deployment")]
    pub(crate) sentinel: bool,
    /// A cluster of three masters with a replica each.
    #[arg(long, group = "deployment")]
    pub(crate) cluster: bool,
    /// Decides which faults come, and what each process does; random by default.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Keeps the logs even if nothing is wrong.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Uses only faults that have this in their name.
    #[arg(long, default_value = "")]
    pub(crate) only: String,
}

fn masters(text: &str) -> Result<usize, String> {
    match text {
        "1" | "3" | "5" => text.parse().map_err(|_| String::new()),
        _ => Err("it takes 1, 3 or 5".into()),
    }
}

impl Run {
    pub(crate) fn shape(&self) -> Shape {
        match (self.sentinel, self.cluster) {
            (true, _) => Shape::Sentinel,
            (_, true) => Shape::Cluster,
            _ => Shape::Masters(self.masters.unwrap_or(1)),
        }
    }
}

/// The kind of deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Shape {
    Masters(usize),
    Sentinel,
    Cluster,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shape::Masters(1) => write!(f, "one master"),
            Shape::Masters(count) => write!(f, "{count} masters"),
            Shape::Sentinel => write!(f, "a master with sentinels"),
            Shape::Cluster => write!(f, "a cluster"),
        }
    }
}
