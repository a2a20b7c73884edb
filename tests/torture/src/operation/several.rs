//! What a task does with several locks at once.

use std::time::Duration;

use futures::future::try_join_all;
use nestlock::{Fenced, Guards, Hold};
use tokio::time::sleep;

use super::{Operation, Way, update};
use crate::hold::User;
use crate::holds::Requests;
use crate::{Result, clock};

impl Operation {
    pub(super) async fn several(&self, user: &User) -> Result<()> {
        let mutexes = user.locks.mutexes(self.names.iter().copied());
        let asked = Requests::of(user, &self.names, self.how());
        // Some of the locks are kept. A time that is not longer than the drift would be refused.
        let is_kept = self.time.as_millis().is_multiple_of(8) && self.time > Duration::from_millis(40);
        let at_least = if is_kept { self.time / 4 } else { Duration::ZERO };
        let (guards, before) = match self.way {
            Way::TrySeveral => clock::before(mutexes.try_lock().at_least(at_least)).await,
            _ => {
                let (guards, before) = clock::before(mutexes.lock().at_least(at_least)).await;
                (guards.map(Some), before)
            }
        };
        let Some(guards) = guards? else { return Ok(()) };
        let mut holds = asked.granted(user, &guards);
        if !at_least.is_zero() {
            holds.keep(before + clock::nanos(at_least));
        }
        if self.depth == 4 {
            holds.check(&guards).await;
        }
        holds.stay(&guards, self.stay).await;
        let was_lost = !holds.look(&guards);
        holds.leave();
        if self.leave.free(guards, Guards::release).await? {
            if was_lost {
                user.wrong(format!("{}: the release of a lost hold succeeded", self.how()));
            }
            holds.are_released();
        }
        Ok(())
    }

    pub(super) async fn run_several(&self, user: &User) -> Result<()> {
        let asked = Requests::of(user, &self.names, self.how());
        let work = async |_| asked.run(user, |_| None).work(self.stay).await;
        Ok(user.locks.mutexes(self.names.iter().copied()).run(work).await?)
    }

    pub(super) async fn run_several_fenced(&self, user: &User) -> Result<()> {
        let asked = Requests::of(user, &self.names, self.how());
        let work = async |holds: Vec<Hold<Fenced>>| {
            let mut entered =
                asked.run(user, |name| holds.iter().find(|hold| hold.name() == name).map(Hold::token));
            let registers =
                holds.iter().map(|hold| update(user, hold.name(), hold.token(), sleep(self.stay)));
            let (updated, ()) = tokio::join!(try_join_all(registers), entered.work(self.stay));
            updated.map(drop)
        };
        user.locks.mutexes(self.names.iter().copied()).fenced().run(work).await?
    }
}
