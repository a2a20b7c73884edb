//! How long ago a server was started: what it granted before that it may have forgotten.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::lock;

/// What is known of a server's age. Read before any of its answers count: at the beginning of each connection.
#[derive(Debug, Default)]
pub(super) struct Vitals(Mutex<Option<Seen>>);

#[derive(Debug)]
struct Seen {
    run: String,
    /// When it was started, at the latest, by its own account.
    started: Instant,
    /// When it was first seen here, where another run had been seen before: its own account follows the wall clock, which
    /// may be set forward by an hour.
    since: Option<Instant>,
}

impl Vitals {
    /// What the server tells of itself. False: it is not to be understood.
    pub(super) fn learn(&self, info: &str, now: Instant) -> bool {
        let (Some(run), Some(uptime)) = (field(info, "run_id"), field(info, "uptime_in_seconds")) else {
            return false;
        };
        let Ok(uptime) = uptime.parse::<u64>() else { return false };
        // It counts begun seconds.
        let uptime = Duration::from_secs(uptime.saturating_sub(1));
        let mut seen = lock(&self.0);
        let since = match &*seen {
            Some(known) if known.run == run => known.since,
            Some(_) => Some(now),
            None => None,
        };
        *seen = Some(Seen { run: run.to_owned(), started: now.checked_sub(uptime).unwrap_or(now), since });
        true
    }

    /// Nothing can be known: it counts as old.
    pub(super) fn forget(&self) {
        *lock(&self.0) = None;
    }

    pub(super) fn is_younger_than(&self, age: Duration, now: Instant) -> bool {
        lock(&self.0).as_ref().is_some_and(|seen| {
            let started = seen.since.map_or(seen.started, |since| since.max(seen.started));
            now.saturating_duration_since(started) < age
        })
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(run: &str, uptime: u64) -> String {
        format!("# Server\r\nrun_id:{run}\r\nuptime_in_seconds:{uptime}\r\n")
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_server_is_as_old_as_it_says_less_the_second_that_it_has_begun() {
        let (vitals, now) = (Vitals::default(), Instant::now());
        assert!(!vitals.is_younger_than(seconds(30), now));
        assert!(vitals.learn(&info("a", 31), now));
        assert!(vitals.is_younger_than(seconds(31), now));
        assert!(!vitals.is_younger_than(seconds(30), now));
        assert!(!vitals.is_younger_than(seconds(60), now + seconds(30)));
    }

    #[test]
    fn a_run_that_followed_another_is_no_older_than_it_was_seen() {
        let (vitals, now) = (Vitals::default(), Instant::now());
        vitals.learn(&info("a", 3600), now);
        // Its wall clock was set forward after the restart.
        vitals.learn(&info("b", 3600), now + seconds(5));
        assert!(vitals.is_younger_than(seconds(10), now + seconds(14)));
        vitals.learn(&info("b", 3605), now + seconds(14));
        assert!(vitals.is_younger_than(seconds(10), now + seconds(14)));
        assert!(!vitals.is_younger_than(seconds(10), now + seconds(15)));
    }

    #[test]
    fn what_cannot_be_read_tells_nothing() {
        let vitals = Vitals::default();
        for info in ["", "run_id:a", "run_id:a\r\nuptime_in_seconds:x"] {
            assert!(!vitals.learn(info, Instant::now()), "{info}");
        }
    }
}
