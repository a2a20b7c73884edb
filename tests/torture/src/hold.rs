//! A request and the hold that it becomes, as the journal has them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nestlock::{FencedGuard, Guard, Locks};
use tokio::time::{Instant, sleep};

use crate::clock;
use crate::journal::{Event, Journal};

/// How often a hold is looked at while it lasts.
const LOOK: Duration = Duration::from_millis(5);
/// How often that is written down, if its deadline stays.
const NOTE: u64 = 50_000_000;

/// One task of a process.
#[derive(Clone)]
pub(crate) struct User {
    pub(crate) journal: Arc<Journal>,
    pub(crate) locks: Locks,
    pub(crate) folder: PathBuf,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) requests: Arc<AtomicU64>,
}

impl User {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A request of a stranger begins.
    pub(crate) fn asks(&self, name: &str, how: &str, waits: bool) -> Request<'_> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        self.journal.write(Event::Asked { request, name: name.to_owned(), how: how.to_owned(), waits });
        Request { user: self, request, is_over: false }
    }

    pub(crate) fn wrong(&self, what: String) {
        self.journal.write(Event::Wrong { what });
    }
}

/// A request that is under way. Dropping it ends it.
pub(crate) struct Request<'a> {
    user: &'a User,
    request: u64,
    is_over: bool,
}

impl<'a> Request<'a> {
    /// It is granted, and this is its guard.
    pub(crate) fn granted(self, guard: &Guard, token: Option<u64>) -> Hold<'a> {
        let (at, until) = (clock::now(), clock::of(guard.valid_until()));
        self.becomes(at, Some(until), token)
    }

    /// It is granted, and its guard is inside of a `run`, whose work runs now.
    pub(crate) fn runs(self, token: Option<u64>) -> Hold<'a> {
        self.becomes(clock::now(), None, token)
    }

    fn becomes(mut self, at: u64, until: Option<u64>, token: Option<u64>) -> Hold<'a> {
        self.is_over = true;
        let Request { user, request, .. } = self;
        user.journal.write_at(at, Event::Granted { request, until, token });
        Hold { user, request, until, noted: at, is_over: false }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.user.journal.write(Event::Refused { request: self.request });
        }
    }
}

/// A hold that is good as far as its holder knows. Dropping it ends it: declare it after its guard.
pub(crate) struct Hold<'a> {
    user: &'a User,
    request: u64,
    until: Option<u64>,
    noted: u64,
    is_over: bool,
}

impl Hold<'_> {
    /// Looks whether the hold is good.
    pub(crate) fn look(&mut self, guard: &Guard) -> bool {
        if self.is_over {
            return false;
        }
        // In this order: what is not lost afterwards was not lost at that time, for a loss is final.
        let at = clock::now();
        let until = clock::of(guard.valid_until());
        if let Some(loss) = guard.loss() {
            self.user.journal.write(Event::Lost { request: self.request, loss: format!("{loss:?}") });
            self.is_over = true;
        } else {
            self.note(at, Some(until));
        }
        !self.is_over
    }

    fn note(&mut self, at: u64, until: Option<u64>) {
        let moved = match (self.until, until) {
            (Some(before), Some(now)) => before.abs_diff(now) > 1_000_000,
            _ => false,
        };
        if moved || at - self.noted > NOTE {
            (self.until, self.noted) = (until, at);
            self.user.journal.write_at(at, Event::Good { request: self.request, until });
        }
    }

    /// Stays in the critical section for so long, or until the hold is lost; whether it is good then.
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

    /// The same within the work of a `run`, which is dropped when the hold is lost. It was good when the work was
    /// polled.
    pub(crate) async fn work(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let rest = end.saturating_duration_since(Instant::now())
            && !rest.is_zero()
        {
            sleep(rest.min(LOOK)).await;
            self.note(clock::now(), None);
        }
    }

    /// It is over from here on.
    pub(crate) fn leaves(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.user.journal.write(Event::Leaving { request: self.request });
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.leaves();
    }
}

/// A guard of either kind.
pub(crate) trait Held: Send {
    fn guard(&self) -> &Guard;
    fn token(&self) -> Option<u64>;
    fn free(self) -> impl Future<Output = nestlock::Result<()>> + Send;
}

impl Held for Guard {
    fn guard(&self) -> &Guard {
        self
    }

    fn token(&self) -> Option<u64> {
        None
    }

    fn free(self) -> impl Future<Output = nestlock::Result<()>> + Send {
        self.release()
    }
}

impl Held for FencedGuard {
    fn guard(&self) -> &Guard {
        self
    }

    fn token(&self) -> Option<u64> {
        Some(FencedGuard::token(self))
    }

    fn free(self) -> impl Future<Output = nestlock::Result<()>> + Send {
        self.release()
    }
}
