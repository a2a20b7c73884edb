//! The sections of the results file, and how they are read.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::server::Result;
use crate::store::read;

/// The machine that the figures come from.
#[derive(Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) facts: Vec<(String, String)>,
}

/// One way to do a thing, timed in rounds. Times are in nanoseconds.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) rounds: Vec<Quantiles>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

/// Several ways to do one thing; the first is the floor.
#[derive(Serialize, Deserialize)]
pub(crate) struct Timed {
    pub(crate) samples: u64,
    pub(crate) cases: Vec<Case>,
}

/// Pairs of acquire and release per second, and the processor time of one pair: one entry for each round.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Throughput {
    pub(crate) benchmark: Vec<Rate>,
    pub(crate) raw: Vec<Rate>,
    pub(crate) ours: Vec<Rate>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Rate {
    pub(crate) pairs_per_second: f64,
    /// `None` for `redis-benchmark`, which is a separate process.
    pub(crate) client_micros: Option<f64>,
    pub(crate) server_micros: f64,
}

/// The instructions that the client executes for one pair, grouped by the origin of the code.
#[derive(Serialize, Deserialize)]
pub(crate) struct Instructions {
    pub(crate) name: String,
    pub(crate) groups: Vec<(String, u64)>,
}

/// Many locks, held and renewed.
#[derive(Serialize, Deserialize)]
pub(crate) struct Many {
    pub(crate) holds: u64,
    pub(crate) lease_ms: u64,
    pub(crate) leases: f64,
    pub(crate) lost: u64,
    pub(crate) least_left_ms: u64,
    pub(crate) renewals: u64,
    pub(crate) cpu_share: f64,
    pub(crate) rss_per_hold: Option<i64>,
}

/// Waiters for one lock, and the commands of their hand-offs.
#[derive(Serialize, Deserialize)]
pub(crate) struct Crowd {
    /// The masters, each of which got these commands.
    #[serde(default = "one")]
    pub(crate) masters: u64,
    pub(crate) waiters: u64,
    pub(crate) processes: u64,
    pub(crate) handoffs: u64,
    pub(crate) commands: BTreeMap<String, u64>,
    pub(crate) micros_per_handoff: f64,
}

impl Crowd {
    pub(crate) fn per_handoff(&self) -> f64 {
        self.commands.values().sum::<u64>() as f64 / (self.handoffs * self.masters) as f64
    }
}

fn one() -> u64 {
    1
}

/// How the cost of one thing grows with the number of something.
#[derive(Serialize, Deserialize)]
pub(crate) struct Growth {
    pub(crate) what: String,
    pub(crate) points: Vec<Point>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) count: usize,
    pub(crate) micros: f64,
    /// Commands on each server.
    pub(crate) commands: f64,
}

/// Clients that competed for one lock over several masters. Counts are for each grant and master, times in microseconds.
#[derive(Serialize, Deserialize)]
pub(crate) struct Contest {
    pub(crate) masters: u64,
    pub(crate) clients: u64,
    pub(crate) grants: u64,
    pub(crate) acquires: f64,
    pub(crate) commands: f64,
    pub(crate) micros: f64,
    pub(crate) wait_p50: u64,
    pub(crate) wait_p99: u64,
    pub(crate) wait_max: u64,
}

/// Reads one section of the file.
pub(crate) fn get<T: DeserializeOwned>(file: &Path, section: &str) -> Result<T> {
    let mut all = read(file)?;
    let value = all.remove(section);
    let value =
        value.ok_or_else(|| format!("{} has no {section}; run scripts/lab/bench first", file.display()))?;
    Ok(serde_json::from_value(value)?)
}
