//! Processes that take a few locks in all ways, on real servers that fail, and a checker that reads what they logged.
//!
//! `scripts/lab/torture` runs it. A seed decides which faults happen, in which order, and what each task of a process does. It does not
//! decide the timing of real processes and servers, so two runs of a seed are similar but not the same.

mod checker;
mod claims;
mod clock;
mod conductor;
mod crew;
mod deployment;
mod faults;
mod forced;
mod hold;
mod holds;
mod job;
mod journal;
mod login;
mod operation;
mod options;
mod pairs;
mod probe;
mod register;
mod report;
mod spool;
mod trace;
mod turns;
mod violation;
mod worker;

// The tests of the crate use this module to start their servers, proxies and processes.
#[allow(
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::must_use_candidate
)]
#[path = "../../it/support/mod.rs"]
mod support;

use std::process::ExitCode;

use clap::Parser;

use crate::options::{Call, Options};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let good = match options.call {
        Some(Call::Worker { job }) => {
            worker::work(serde_json::from_str(&job)?).await?;
            true
        }
        Some(Call::Check { folder }) => report::judge(&folder)?,
        None => conductor::run(options.run).await?,
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
