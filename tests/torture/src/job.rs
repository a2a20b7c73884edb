//! Names and times of a run.

use std::path::PathBuf;
use std::time::Duration;

use nestlock::{Credentials, Locks, Master};
use serde::{Deserialize, Serialize};

use crate::login::{Login, USER};
use crate::options::Shape;

/// The locks that all processes take.
pub(crate) const NAMES: [&str; 4] = ["stock", "shelf", "order", "ledger"];
/// With several masters, the counters of this lock's tokens begin at different numbers, all but the first
/// ahead of the clock. Otherwise the clock, which all processes share, would put the tokens in order.
pub(crate) const AHEAD: &str = NAMES[3];
/// Short, so that many leases end within a run, and still many node timeouts long.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than a lease, so that a waiter that misses a message sleeps until the end of the lease.
pub(crate) const POLL: Duration = Duration::from_secs(10);
pub(crate) const PROCESSES: usize = 4;
/// The number of tasks in each process.
pub(crate) const TASKS: usize = 3;

/// The time after which a process with provided credentials logs in again.
const RENEWED_AFTER: Duration = Duration::from_secs(2);

/// What a process has to do. Its parent passes it as JSON. The password is not in it, since it follows from the seed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The number of the process, and how often it was started before.
    pub(crate) process: usize,
    pub(crate) life: u64,
    pub(crate) seed: u64,
    pub(crate) folder: PathBuf,
    pub(crate) target: Target,
}

impl Job {
    pub(crate) fn log(&self) -> PathBuf {
        self.file("log")
    }

    /// Returns the file for an output beside the log: what the crate logs, or what the process prints.
    pub(crate) fn file(&self, kind: &str) -> PathBuf {
        self.folder.join(format!("process-{}-{}.{kind}", self.process, self.life))
    }
}

/// What was run, kept beside the logs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) shape: Shape,
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
}

/// The address of the locks: hosts and ports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Target {
    Servers(Vec<String>),
    Sentinel { sentinels: Vec<String>, name: String },
    Cluster(Vec<String>),
}

impl Target {
    /// Returns options for the target. `provides`: user and password come from a provider, not from URLs. For sentinels they are in the
    /// URLs in any case.
    pub(crate) fn builder(&self, login: &Login, provides: bool) -> nestlock::Builder {
        let url = |login: String| move |address: &String| format!("redis://{login}{address}");
        let (known, of_server) = (login.in_url(), if provides { String::new() } else { login.in_url() });
        let builder = match self {
            Target::Servers(all) => Locks::quorum(all.iter().map(url(of_server))),
            Target::Sentinel { sentinels, name } => {
                Locks::builder(Master::sentinel(sentinels.iter().map(url(known)), name))
            }
            Target::Cluster(nodes) => Locks::builder(Master::cluster(nodes.iter().map(url(of_server)))),
        };
        let builder = builder.lease(LEASE).node_timeout(NODE_TIMEOUT).poll_interval(POLL);
        let builder = builder.unavailable_after(Duration::from_secs(5));
        if provides {
            let password = login.password();
            return builder.credentials(move || {
                let credentials = Credentials::new(USER, password.clone()).renew_after(RENEWED_AFTER);
                async move { Ok::<_, std::io::Error>(credentials) }
            });
        }
        builder
    }
}
