//! Names and times of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::options::Shape;

/// The locks that all processes take.
pub(crate) const NAMES: [&str; 4] = ["stock", "shelf", "order", "ledger"];
/// Of several masters: the counter of this one's tokens begins at another number on each, ahead of the time.
/// Otherwise the clock, which all processes share, would put the tokens in order by itself.
pub(crate) const AHEAD: &str = NAMES[3];
/// Short, so that many leases end within a run, and many node timeouts long.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than a lease: a waiter that misses a message sleeps until the end of the lease.
pub(crate) const POLL: Duration = Duration::from_secs(10);
pub(crate) const PROCESSES: usize = 4;
/// In each process.
pub(crate) const TASKS: usize = 3;

/// What a process is to do. Its parent gives it as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Which of the processes, and how often it was started before.
    pub(crate) process: usize,
    pub(crate) life: u64,
    pub(crate) seed: u64,
    pub(crate) folder: std::path::PathBuf,
    pub(crate) target: Target,
}

impl Job {
    pub(crate) fn log(&self) -> std::path::PathBuf {
        self.folder.join(format!("process-{}-{}.log", self.process, self.life))
    }
}

/// What was run: kept beside the logs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) shape: Shape,
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
}

/// Where the locks are kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Target {
    Servers(Vec<String>),
    Sentinel { sentinels: Vec<String>, name: String },
    Cluster(Vec<String>),
}

impl Target {
    pub(crate) fn builder(&self) -> nestlock::Builder {
        let builder = nestlock::Locks::builder()
            .lease(LEASE)
            .node_timeout(NODE_TIMEOUT)
            .poll_interval(POLL)
            .unavailable_after(Duration::from_secs(5));
        match self {
            Target::Servers(urls) => match &urls[..] {
                [one] => builder.server(one),
                several => builder.servers(several),
            },
            Target::Sentinel { sentinels, name } => builder.sentinel(sentinels, name),
            Target::Cluster(nodes) => builder.cluster(nodes),
        }
    }
}
