//! How long ago a server was started: what it granted before that it may have forgotten.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::lock;

/// What is known of a server's age. Read before any of its answers count: at the beginning of each connection.
#[derive(Debug, Default)]
pub(super) struct Vitals(Mutex<Option<Seen>>, Mutex<Option<Clock>>);

/// What a server's clock said, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    told: Duration,
    /// In the middle between question and answer.
    at: Instant,
    /// The answer may be off by that much.
    slack: Duration,
}

impl Clock {
    /// How far apart two clocks are at the least.
    pub(crate) fn apart(&self, other: &Clock) -> Duration {
        let (early, late) = if self.at < other.at { (self, other) } else { (other, self) };
        let expected = early.told.saturating_add(late.at.saturating_duration_since(early.at));
        expected.abs_diff(late.told).saturating_sub(self.slack.saturating_add(other.slack))
    }
}

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

    /// The same for its clock.
    pub(super) fn learn_clock(&self, info: &str, asked: Instant, now: Instant) {
        let told = field(info, "server_time_usec").and_then(|told| told.parse().ok());
        let slack = now.saturating_duration_since(asked) / 2;
        let clock = |told| Clock { told: Duration::from_micros(told), at: asked + slack, slack };
        *lock(&self.1) = told.map(clock);
    }

    pub(super) fn clock(&self) -> Option<Clock> {
        *lock(&self.1)
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

pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
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
    fn clocks_are_apart_by_what_the_time_between_two_looks_does_not_explain() {
        let (now, second) = (Instant::now(), seconds(1));
        let clock = |told: u64, asked: Instant| {
            let vitals = Vitals::default();
            vitals.learn_clock(&format!("server_time_usec:{told}\r\n"), asked, asked + second);
            vitals.clock().unwrap()
        };
        let one = clock(100_000_000, now);
        assert_eq!(one.apart(&one), Duration::ZERO);
        let (same, ahead, behind) = (
            clock(130_000_000, now + seconds(30)),
            clock(140_000_000, now + seconds(30)),
            clock(20_000_000, now),
        );
        assert_eq!(one.apart(&same), Duration::ZERO);
        // Less what the two answers may be off.
        assert_eq!((one.apart(&ahead), ahead.apart(&one)), (seconds(9), seconds(9)));
        assert_eq!(one.apart(&behind), seconds(79));
        let vitals = Vitals::default();
        vitals.learn_clock("server_time_usec:x", now, now);
        assert_eq!(vitals.clock(), None);
    }

    #[test]
    fn what_cannot_be_read_tells_nothing() {
        let vitals = Vitals::default();
        for info in ["", "run_id:a", "run_id:a\r\nuptime_in_seconds:x"] {
            assert!(!vitals.learn(info, Instant::now()), "{info}");
        }
    }
}
