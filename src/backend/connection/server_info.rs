//! What is known about a server: its age (a young one may have lost its grants), its clock, and whether its eviction policy was read.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::lock;

/// What is known about a server. Its age is read at the beginning of each connection, before any of the server's
/// answers counts.
#[derive(Debug, Default)]
pub(crate) struct ServerInfo {
    run: Mutex<Option<Run>>,
    clock: Mutex<Option<ServerClock>>,
    /// Whether the eviction policy was read.
    pub(super) is_eviction_policy_read: AtomicBool,
}

/// A reading of a server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerClock {
    /// What the clock showed, since 1970.
    time: Duration,
    /// The midpoint between request and response.
    at: Instant,
    /// The largest error of the reading.
    slack: Duration,
}

impl ServerClock {
    /// Returns how much the two clocks differ at least, given the errors of both readings.
    pub(crate) fn apart(&self, other: &ServerClock) -> Duration {
        let (early, late) = if self.at < other.at { (self, other) } else { (other, self) };
        let expected = early.time.saturating_add(late.at.saturating_duration_since(early.at));
        expected.abs_diff(late.time).saturating_sub(self.slack.saturating_add(other.slack))
    }
}

#[derive(Debug)]
struct Run {
    id: RunId,
    /// When the server was started, at the latest.
    started: Instant,
    /// When this client first saw this run.
    first_seen: Instant,
}

#[derive(Debug, PartialEq, Eq)]
struct RunId {
    /// The `run_id` of the server.
    run: String,
    /// The `master_replid` of its data.
    data: String,
}

impl ServerInfo {
    /// Reads the server's age from `INFO`; `info` is empty if the user lacks the right. Returns false if no `INFO` was ever readable: the
    /// server then counts as old.
    ///
    /// The uptime is computed from the wall clock. If that is set after the start, a new server may report an hour, or `-3599` seconds.
    /// So the uptime is used only for the first run that this client sees. Once an `INFO` was read, one that can't be read makes the
    /// server young, never old. Otherwise:
    ///
    /// 1. A master of a hold restarts without its data.
    /// 2. Its clock is set, or its `INFO` can't be read.
    /// 3. It counts as old, and grants a second client what the holder still has.
    ///
    /// A run is one process of a server with one set of data. A promoted replica gives its data a new id. So a server that was a replica
    /// in between counts as a new run, even if it was never restarted: it has the data of the server that it followed.
    pub(super) fn update(&self, info: &str, now: Instant) -> bool {
        let id = field(info, "run_id").map(|run| RunId {
            run: run.to_owned(),
            data: field(info, "master_replid").unwrap_or_default().to_owned(),
        });
        let uptime = field(info, "uptime_in_seconds").and_then(|text| text.parse::<i64>().ok());
        // The uptime is a difference of two times in whole seconds, so it may be up to a second too long.
        let uptime = uptime.map(|seconds| Duration::from_secs(seconds.max(1).unsigned_abs() - 1));
        let started = uptime.map(|uptime| now.checked_sub(uptime).unwrap_or(now));
        let mut seen = lock(&self.run);
        *seen = match (seen.take(), id) {
            (Some(known), Some(id)) if known.id == id => {
                let started = started.unwrap_or(known.started);
                Some(Run { started: started.max(known.started).min(known.first_seen), ..known })
            }
            (Some(_), Some(id)) => Some(Run { id, started: now, first_seen: now }),
            // This may be another run.
            (Some(known), None) => Some(Run { started: now, first_seen: now, ..known }),
            (None, Some(id)) => Some(Run { id, started: started.unwrap_or(now), first_seen: now }),
            (None, None) => None,
        };
        seen.is_some()
    }

    /// Counts the run's age from when it was first seen. The uptime means nothing for a server that [was a replica](was_replica):
    ///
    /// 1. A client holds the lock on M and N, two of three masters.
    /// 2. M becomes a replica of a server that lacks the hold, and a master again.
    /// 3. A client that connects for the first time reads an uptime of a year, and is granted the lock by M and the third master, while
    ///    the first client still holds it.
    pub(super) fn distrust_uptime(&self) {
        if let Some(run) = &mut *lock(&self.run) {
            run.started = run.first_seen;
        }
    }

    /// Returns whether the server has had the same data since its age was read, as far as the answer to `INFO replication` shows:
    /// true if that can't be told.
    pub(super) fn has_same_data(&self, info: &str) -> bool {
        match (&*lock(&self.run), field(info, "master_replid")) {
            (Some(known), Some(data)) => known.id.data == data,
            _ => true,
        }
    }

    /// Reads the server's clock from the answer to `INFO`, which was requested at `sent`.
    pub(super) fn set_clock(&self, info: &str, sent: Instant, now: Instant) {
        let micros = field(info, "server_time_usec").and_then(|text| text.parse().ok());
        let slack = now.saturating_duration_since(sent) / 2;
        let clock = |micros| ServerClock { time: Duration::from_micros(micros), at: sent + slack, slack };
        *lock(&self.clock) = micros.map(clock);
    }

    pub(crate) fn clock(&self) -> Option<ServerClock> {
        *lock(&self.clock)
    }

    /// Returns whether the server was started less than `age` ago. False if its age is unknown.
    pub(crate) fn is_younger_than(&self, age: Duration, now: Instant) -> bool {
        let seen = lock(&self.run);
        seen.as_ref().is_some_and(|seen| now.saturating_duration_since(seen.started) < age)
    }
}

/// Returns whether the server may have been a replica: its data then has a second id, that of the master that it followed. A master that
/// was restarted with the data that its replicas had has one too.
pub(super) fn was_replica(info: &str) -> bool {
    field(info, "master_replid2").is_some_and(|id| id.bytes().any(|byte| byte != b'0'))
}

pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests;
