//! Of a session: the masters are asked, and answers that come after the verdict are waited for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime;

use crate::base::atomic::Ordering::SeqCst;
use crate::base::{Failure, Moment, Outcome, gated};
use crate::quorum::{Reported, Stragglers, Verdict};
use crate::session::session::Session;
use crate::table::{LateAnswer, LockEntry};
use crate::wire::keys::Keys;
use crate::wire::{Pending, Reply, Token};

/// Tasks that wait for stragglers. They start when this goes, which has to be after the verdict was brought to the entry: what
/// a straggler answers before would be overwritten by the verdict, which counts it among those that are still to come.
#[must_use = "the stragglers are polled as soon as this is dropped"]
#[derive(Default)]
pub(crate) struct StragglerTasks([Option<StragglerTask>; 2]);

type StragglerTask = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Drop for StragglerTasks {
    fn drop(&mut self) {
        for task in self.0.iter_mut().filter_map(Option::take) {
            if let Ok(runtime) = runtime::Handle::try_current() {
                drop(runtime.spawn(gated(task)));
            }
        }
    }
}

impl Session {
    /// Sends one command of a hold. Answers that its verdict does not wait for are waited for in the background.
    pub(crate) async fn ask(&self, pending: &Pending) -> (Verdict, StragglerTasks) {
        let mut late = StragglerTasks::default();
        let mut verdict = self.ask_once(pending, &mut late.0[0]).await;
        if let Some(Token { highest, agreed: false }) = verdict.token {
            // 1. n1 answers 101, n2 answers 51, and 101 is handed out. 2. It is released. 3. The next holder is granted by n2 and
            // n3, and gets 52. Only who still holds the lock may get the answer that its token is known: else 4. the next holder
            // has 52 already when 101 reaches n2.
            let late = &mut late.0[1];
            // Boxed: it is rare, and would have its room in each task that has a lock.
            let renewal = Box::pin(async move { self.ask_once(&pending.acknowledging(highest), late).await });
            verdict = verdict.acknowledged(renewal.await);
        }
        (verdict, late)
    }

    async fn ask_once(&self, pending: &Pending, late: &mut Option<StragglerTask>) -> Verdict {
        let (verdict, stragglers) = self.quorum.ask(pending).await;
        self.note(pending, &verdict);
        *late = self.task(stragglers, || vec![pending.clone()], |answer| vec![answer]);
        verdict
    }

    /// The same for commands of many holds.
    pub(super) async fn ask_all(&self, commands: &[Pending]) -> (Vec<Verdict>, StragglerTasks) {
        let (verdicts, stragglers) = self.quorum.ask_all(commands).await;
        for (pending, verdict) in commands.iter().zip(&verdicts) {
            self.note(pending, verdict);
        }
        let late = self.task(stragglers, || commands.to_vec(), |answers| answers);
        (verdicts, StragglerTasks([late, None]))
    }

    fn note(&self, pending: &Pending, verdict: &Verdict) {
        if let Err(failure) = &verdict.result {
            self.note_failure(pending, &failure.error);
        }
    }

    fn task<T: Send + 'static>(
        &self,
        stragglers: Stragglers<T>,
        commands: impl FnOnce() -> Vec<Pending>,
        answers: fn(T) -> Vec<Reported>,
    ) -> Option<StragglerTask> {
        if stragglers.is_empty() {
            return None;
        }
        let me = self.me.upgrade()?;
        // Dropped with its runtime, maybe before its first poll: what was sent may have run.
        let missing = scopeguard::guard((me, commands(), stragglers.masters()), |(me, commands, masters)| {
            for master in masters.iter() {
                me.straggled(&commands, master, |_| LateAnswer::Unknown);
            }
        });
        Some(Box::pin(async move {
            let mut missing = missing;
            let polled = stragglers.poll_all(|master, answered| {
                let (me, commands, masters) = &mut *missing;
                masters.remove(master);
                let mut answered = answers(answered).into_iter();
                me.straggled(commands, master, |_| {
                    answered.next().map_or(LateAnswer::Unknown, |answer| late_answer(&answer))
                });
            });
            polled.await;
        }))
    }

    /// Frees the lock on all masters, whoever holds it.
    pub(crate) async fn force(&self, keys: &Arc<Keys>) -> Reported {
        let (reply, stragglers) = self.quorum.force(keys).await;
        // 1. All masters are asked, and do not know the script. 2. Two are sent its text and answer, which is the verdict. 3. Were
        // the third one's future dropped, a dead holder's field would stay there for its lease.
        if let (false, Ok(runtime), Some(me)) =
            (stragglers.is_empty(), runtime::Handle::try_current(), self.me.upgrade())
        {
            me.forcing.fetch_add(1, SeqCst);
            let over = scopeguard::guard(me, |me| {
                me.forcing.fetch_sub(1, SeqCst);
                me.nudge.notify_waiters();
            });
            drop(runtime.spawn(gated(async move {
                stragglers.poll_all(|_, _| {}).await;
                drop(over);
            })));
        }
        reply
    }

    /// Whether a forced release has still to reach some master.
    pub(crate) fn is_forcing(&self) -> bool {
        self.forcing.load(SeqCst) > 0
    }

    /// A master has answered those of these commands that were for it, or never will.
    fn straggled(&self, commands: &[Pending], master: usize, mut answer: impl FnMut(&Pending) -> LateAnswer) {
        for pending in commands.iter().filter(|pending| pending.masters.contains(master)) {
            let (keys, answer) = (&pending.call.keys, answer(pending));
            let note = |entry: &mut LockEntry, at: Moment| entry.straggled(pending, master, answer, at.now);
            match answer {
                // Also where nothing of that lock is left here.
                LateAnswer::There | LateAnswer::Unknown if pending.call.action.creates() => {
                    self.visit(keys, |entry, _, at| note(entry, at))
                }
                _ => drop(self.visit_known(&keys.name, |entry, _, at| note(entry, at))),
            }
        }
    }
}

/// What a straggler's answer means for the field.
fn late_answer(answer: &Reported) -> LateAnswer {
    match answer {
        Ok(Reply::Done | Reply::Longer(..) | Reply::Ended(_) | Reply::Token(_) | Reply::Deferred(_)) => {
            LateAnswer::There
        }
        Ok(_) => LateAnswer::Missing,
        Err(Failure { outcome: Outcome::NotRun, .. }) => LateAnswer::Unsent,
        Err(_) => LateAnswer::Unknown,
    }
}

#[cfg(test)]
mod tests;
