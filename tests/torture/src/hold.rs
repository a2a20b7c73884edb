//! A request and the hold that it becomes, as they are written to the journal.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nestlock::{Claim, ErrorKind, Guard, Locks, Loss};
use tokio::time::{Instant, sleep};

use crate::journal::{Event, Journal};
use crate::spool::Spool;
use crate::{clock, trace};

/// How often a hold is looked at while it lasts.
pub(crate) const LOOK: Duration = Duration::from_millis(5);
/// How often a look is written to the journal if the deadline has not changed.
const NOTE: u64 = 50_000_000;

/// One task of a process.
#[derive(Clone)]
pub(crate) struct User {
    pub(crate) journal: Arc<Journal>,
    pub(crate) locks: Locks,
    pub(crate) folder: PathBuf,
    pub(crate) spool: Spool,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) requests: Arc<AtomicU64>,
}

impl User {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Notes that a request of another owner begins.
    pub(crate) fn asks(&self, name: &str, how: &str, waits: bool) -> Request<'_> {
        self.begins(name, how, waits, false, None)
    }

    /// Notes that a part of a request for several names begins.
    pub(crate) fn asks_among(&self, name: &str, how: &str) -> Request<'_> {
        self.begins(name, how, false, true, None)
    }

    /// Notes that a claim is about to be resumed.
    pub(crate) fn resumes(&self, claim: &Claim, how: &str) -> Request<'_> {
        self.begins(claim.name(), how, false, false, Some(claim.hold_id().to_owned()))
    }

    fn begins(&self, name: &str, how: &str, waits: bool, among: bool, claim: Option<String>) -> Request<'_> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let (name, how) = (name.to_owned(), how.to_owned());
        self.journal.write(Event::Asked { request, name, how, waits, among, claim });
        Request { user: self, request, is_over: false }
    }

    /// Notes that the lock is about to be released by force.
    pub(crate) fn forces(&self, name: &str) {
        self.journal.write(Event::Forces { name: name.to_owned() });
    }

    /// Notes that the lock has been released by force since that time. If not `certain`, it may also be released later.
    pub(crate) fn forced(&self, name: &str, from: u64, certain: bool) {
        self.journal.write(Event::Forced { name: name.to_owned(), from, certain });
    }

    /// Notes that an operation ended with an error.
    pub(crate) fn failed(&self, how: &str, error: &(dyn std::error::Error + Send + Sync + 'static)) {
        trace::error(how, error);
        let kind = match error.downcast_ref::<nestlock::Error>() {
            Some(error) => format!("{:?}", error.kind()),
            None => error.to_string(),
        };
        self.journal.write(Event::Failed { how: how.to_owned(), kind });
    }

    pub(crate) fn wrong(&self, what: String) {
        self.journal.write(Event::Wrong { what });
    }
}

/// A request that is under way. A drop ends it.
pub(crate) struct Request<'a> {
    user: &'a User,
    request: u64,
    is_over: bool,
}

impl<'a> Request<'a> {
    /// Notes that the request is granted, and that this is its guard.
    pub(crate) fn granted(self, guard: &Guard, token: Option<u64>) -> Hold<'a> {
        let hold = self.holds_until(guard.valid_until(), token);
        trace::show(guard);
        hold
    }

    /// Notes that the request is granted, and that its guard is good until this time.
    pub(crate) fn holds_until(self, until: Instant, token: Option<u64>) -> Hold<'a> {
        let (at, until) = (clock::now(), clock::of(until));
        self.becomes(at, Some(until), token)
    }

    /// Notes that the request is granted inside a `run`, whose work runs now.
    pub(crate) fn runs(self, token: Option<u64>) -> Hold<'a> {
        self.becomes(clock::now(), None, token)
    }

    fn becomes(mut self, at: u64, until: Option<u64>, token: Option<u64>) -> Hold<'a> {
        self.is_over = true;
        let Request { user, request, .. } = self;
        user.journal.write_at(at, Event::Granted { request, until, token });
        Hold { user, request, until, seen: at, noted: at, kept: None, is_over: false }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.user.journal.write(Event::Refused { request: self.request });
        }
    }
}

/// A hold that is good as far as its holder knows. A drop ends it, so declare it after its guard.
pub(crate) struct Hold<'a> {
    user: &'a User,
    request: u64,
    /// The deadline; `None` in the work of a `run`.
    until: Option<u64>,
    /// When the hold was last seen to be good, and when that was last written.
    seen: u64,
    noted: u64,
    /// Nobody else may have the lock before this time.
    kept: Option<u64>,
    is_over: bool,
}

impl Hold<'_> {
    /// Looks at the guard. Returns whether the hold is good.
    pub(crate) fn look(&mut self, guard: &Guard) -> bool {
        if self.is_over {
            return false;
        }
        // The order matters: a loss is final, so a hold that is not lost after the clock was read was not lost at that time.
        let at = clock::now();
        let until = clock::of(guard.valid_until());
        match guard.loss() {
            Some(loss) => self.is_lost(loss),
            None => self.note(at, Some(until)),
        }
        !self.is_over
    }

    pub(crate) fn is_lost(&mut self, loss: Loss) {
        if !std::mem::replace(&mut self.is_over, true) {
            let loss = format!("{loss:?}");
            self.user.journal.write(Event::Lost { request: self.request, loss });
        }
    }

    /// Checks the hold on the servers, and looks at the guard. Returns whether the hold is good after that.
    pub(crate) async fn check(&mut self, guard: &Guard) -> bool {
        let (was_lost, from) = (!self.look(guard), clock::now());
        self.is_checked(was_lost, from, guard.check().await);
        self.look(guard)
    }

    /// Notes the answer to a check that was sent at this time.
    pub(crate) fn is_checked(&self, was_lost: bool, from: u64, answer: nestlock::Result<()>) {
        match answer {
            Ok(()) if was_lost => self.user.wrong("a check confirmed a lost hold".into()),
            Ok(()) => self.user.journal.write(Event::Checked { request: self.request, from }),
            Err(error) if error.kind() == ErrorKind::Lost => trace::error("check", &error),
            // It is unknown whether the hold stands. The guard stays as it is.
            Err(error) => self.user.failed("check", &error),
        }
    }

    /// Notes that nobody else may have the lock before this time, even if it is released earlier.
    pub(crate) fn keeps(&mut self, until: u64) {
        self.kept = Some(until);
    }

    /// Notes that the hold was good at that time.
    pub(crate) fn note(&mut self, at: u64, until: Option<u64>) {
        self.seen = at;
        let moved = match (self.until, until) {
            (Some(before), Some(now)) => before.abs_diff(now) > 1_000_000,
            _ => false,
        };
        if moved || at - self.noted > NOTE {
            (self.until, self.noted) = (until, at);
            self.user.journal.write_at(at, Event::Good { request: self.request, until });
        }
    }

    /// Stays in the critical section for this time, or until the hold is lost. Returns whether the hold is still good.
    pub(crate) async fn stay(&mut self, guard: &Guard, time: Duration) -> bool {
        let end = Instant::now() + time;
        while self.look(guard) {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return true;
            }
            tokio::select! {
                biased;
                _ = guard.lost() => {}
                () = sleep(rest.min(LOOK)) => {}
            }
        }
        false
    }

    /// Stays like [`stay`](Hold::stay), and checks the hold on the servers again and again.
    pub(crate) async fn stay_and_check(&mut self, guard: &Guard, time: Duration, pause: Duration) -> bool {
        let end = Instant::now() + time;
        while self.check(guard).await {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return true;
            }
            self.stay(guard, rest.min(pause)).await;
        }
        false
    }

    /// Stays like [`stay`](Hold::stay), but within the work of a `run`, which is dropped when the hold is lost. So the hold was good when
    /// the work was polled.
    pub(crate) async fn work(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let rest = end.saturating_duration_since(Instant::now())
            && !rest.is_zero()
        {
            sleep(rest.min(LOOK)).await;
            self.note(clock::now(), None);
        }
    }

    /// Notes that the hold ends now.
    pub(crate) fn leaves(&mut self) {
        self.leaves_at(clock::now());
    }

    fn leaves_at(&mut self, at: u64) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.user.journal.write_at(at, Event::Leaving { request: self.request, kept: self.kept });
        }
    }

    /// Returns the number of the hold in this process.
    pub(crate) fn number(&self) -> u64 {
        self.request
    }

    /// Notes that the release succeeded, which began after the hold left.
    pub(crate) fn is_released(&self) {
        // Other holds don't need this line.
        if self.kept.is_some() {
            self.user.journal.write(Event::Released { request: self.request });
        }
    }

    /// Notes that the hold, which has left, now belongs to a claim that is good until this time.
    pub(crate) fn is_claimed(&self, claim: &Claim, until: u64) {
        let claim = claim.hold_id().to_owned();
        self.user.journal.write(Event::Claimed { request: self.request, claim, until });
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        // 1. A process is frozen in a `run`, and others get the lock. 2. The process continues on a busy machine: the thread of its runtime
        // runs only a tenth of a second later. 3. The `run` notices the loss first, and drops its work without polling it.
        let at = if self.until.is_none() { self.seen } else { clock::now() };
        self.leaves_at(at);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;

    use super::*;
    use crate::journal;

    #[tokio::test]
    async fn the_work_of_a_run_that_is_dropped_was_good_when_it_was_polled_last() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let user = User {
            journal: Arc::new(Journal::create(&log).unwrap()),
            locks: Locks::in_memory(),
            folder: folder.path().to_owned(),
            spool: Spool::of(folder.path()).unwrap(),
            stop: Arc::default(),
            requests: Arc::default(),
        };
        let polled = {
            let mut work = pin!(async {
                user.asks("stock", "run", true).runs(None).work(Duration::from_secs(60)).await
            });
            assert!(work.as_mut().now_or_never().is_none());
            clock::now()
        };
        let entries = journal::read(&log).unwrap();
        let last = entries.last().unwrap();
        assert!(matches!(last.event, Event::Leaving { request: 0, .. }) && last.at <= polled, "{entries:?}");
    }
}
