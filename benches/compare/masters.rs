//! Several masters that know nothing of each other, and how some of them are frozen.

use std::time::Duration;

use nestlock::{Builder, Locks};
use rustix::process::{Pid, Signal, kill_process};

use crate::server::Result;

/// The masters in `REDIS_URLS`, with their process ids from `REDIS_PIDS`: `scripts/lab/bench` starts seven.
pub(crate) struct Masters {
    pub(crate) urls: Vec<String>,
    pids: Vec<Pid>,
    frozen: bool,
}

/// How long masters that were just started have no vote. The benchmark waits for that once.
const LEASE: Duration = Duration::from_secs(5);

impl Masters {
    /// Returns the first `count` masters, or `None` if there are fewer.
    pub(crate) fn first(count: usize) -> Option<Masters> {
        let list = |name| std::env::var(name).unwrap_or_default();
        let urls: Vec<String> =
            list("REDIS_URLS").split_whitespace().take(count).map(str::to_owned).collect();
        let numbers = list("REDIS_PIDS");
        let pids = numbers.split_whitespace().take(count).filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        let pids: Vec<Pid> = pids.collect();
        (urls.len() == count && pids.len() == count).then_some(Masters { urls, pids, frozen: false })
    }

    pub(crate) fn count(&self) -> usize {
        self.urls.len()
    }

    pub(crate) fn majority(&self) -> usize {
        self.urls.len() / 2 + 1
    }

    /// Returns locks over them, with default options except for the lease and a longer timeout. Each of these locks checks that the masters
    /// have a vote.
    pub(crate) fn locks(&self) -> Builder {
        let builder = Locks::quorum(&self.urls);
        builder.lease(LEASE).unavailable_after(Duration::from_secs(60))
    }

    /// Stops the last masters, as many as a minority has, or continues them.
    pub(crate) fn freeze(&mut self, on: bool) -> Result<()> {
        if on != self.frozen {
            self.frozen = on;
            let minority = &self.pids[self.majority()..];
            let signal = if on { Signal::STOP } else { Signal::CONT };
            minority.iter().try_for_each(|pid| kill_process(*pid, signal))?;
        }
        Ok(())
    }
}

impl Drop for Masters {
    fn drop(&mut self) {
        // Otherwise the process that started them would wait for ever until they end.
        let _ = self.freeze(false);
    }
}
