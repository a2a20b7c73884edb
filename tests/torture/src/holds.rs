//! Requests for several names at once, and the holds that they become, as they are written to the journal: one for each name.

use nestlock::{ErrorKind, Guards};
use tokio::time::{Duration, Instant, sleep};

use crate::hold::{Hold, LOOK, Request, User};
use crate::{clock, trace};

/// Requests that are under way. A drop ends them.
pub(crate) struct Requests<'a>(Vec<(&'a str, Request<'a>)>);

impl<'a> Requests<'a> {
    pub(crate) fn of(user: &'a User, names: &[&'a str], how: &str) -> Requests<'a> {
        Requests(names.iter().map(|name| (*name, user.asks_among(name, how))).collect())
    }

    /// Notes that all requests are granted, and that these are the guards.
    pub(crate) fn granted(self, user: &'a User, guards: &Guards) -> Holds<'a> {
        // The first deadline is the deadline of all.
        let until = guards.valid_until();
        trace::show(guards);
        let held = |(name, request): (&'a str, Request<'a>)| (name, request.holds_until(until, None));
        Holds { user, holds: self.0.into_iter().map(held).collect() }
    }

    /// Notes that all requests are granted inside a `run`, whose work runs now.
    pub(crate) fn run(self, user: &'a User, token: impl Fn(&str) -> Option<u64>) -> Holds<'a> {
        let runs = |(name, request): (&'a str, Request<'a>)| (name, request.runs(token(name)));
        Holds { user, holds: self.0.into_iter().map(runs).collect() }
    }
}

/// Holds that are good as far as their holder knows. A drop ends them, so declare them after their guards.
pub(crate) struct Holds<'a> {
    user: &'a User,
    holds: Vec<(&'a str, Hold<'a>)>,
}

impl Holds<'_> {
    /// Looks at the guards. Returns whether all holds are good.
    pub(crate) fn look(&mut self, guards: &Guards) -> bool {
        // The order matters, as in `Hold::look`.
        let at = clock::now();
        let until = clock::of(guards.valid_until());
        let Some(loss) = guards.loss() else {
            self.holds.iter_mut().for_each(|(_, hold)| hold.note(at, Some(until)));
            return true;
        };
        for (name, hold) in &mut self.holds {
            // The guards report that one lock is lost, but not which.
            if self.user.locks.mutex(*name).is_held() { hold.leaves() } else { hold.is_lost(loss) }
        }
        false
    }

    /// Checks all holds on the servers, and looks at the guards. Returns whether all are good after that.
    pub(crate) async fn check(&mut self, guards: &Guards) -> bool {
        let (was_lost, from) = (!self.look(guards), clock::now());
        let answer = guards.check().await;
        for (name, hold) in &self.holds {
            match &answer {
                Ok(()) => hold.is_checked(was_lost, from, Ok(())),
                // The error is about this lock. Nothing is known of the others.
                Err(error) if error.lock() == Some(name) && error.kind() != ErrorKind::Lost => {
                    self.user.failed("check of several", error);
                }
                Err(error) => trace::error("check of several", error),
            }
        }
        self.look(guards)
    }

    /// Stays in the critical section for this time, or until one hold is lost.
    pub(crate) async fn stay(&mut self, guards: &Guards, time: Duration) {
        let end = Instant::now() + time;
        while self.look(guards)
            && let rest = end.saturating_duration_since(Instant::now())
            && !rest.is_zero()
        {
            tokio::select! {
                biased;
                _ = guards.lost() => {}
                () = sleep(rest.min(LOOK)) => {}
            }
        }
    }

    /// Stays for this time within the work of a `run`.
    pub(crate) async fn work(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let rest = end.saturating_duration_since(Instant::now())
            && !rest.is_zero()
        {
            sleep(rest.min(LOOK)).await;
            let at = clock::now();
            self.holds.iter_mut().for_each(|(_, hold)| hold.note(at, None));
        }
    }

    /// Notes that nobody else may have the locks before this time.
    pub(crate) fn keep(&mut self, until: u64) {
        self.holds.iter_mut().for_each(|(_, hold)| hold.keeps(until));
    }

    /// Notes that the holds end now.
    pub(crate) fn leave(&mut self) {
        self.holds.iter_mut().for_each(|(_, hold)| hold.leaves());
    }

    /// Notes that the release of all locks succeeded.
    pub(crate) fn are_released(&self) {
        self.holds.iter().for_each(|(_, hold)| hold.is_released());
    }
}
