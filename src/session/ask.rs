//! Asks the masters, and waits for answers that come after the verdict.

use std::slice::from_ref;
use std::sync::Arc;

use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::base::atomic::Ordering::SeqCst;
use crate::base::{Failure, Moment, Outcome, Spread, Task, gated};
use crate::quorum::{Stragglers, Verdict};
use crate::session::session::Session;
use crate::table::{LateAnswer, LockEntry, Meaning};
use crate::wire::keys::Keys;
use crate::wire::{CallResult, Notice, Pending, Reply, Token};

/// Tasks that wait for stragglers. They start when this is dropped, which must happen after the entry got the verdict. If a
/// straggler's answer were noted before, the verdict would overwrite it, since the verdict counts the straggler among those still
/// to answer.
#[must_use = "the stragglers are polled as soon as this is dropped"]
#[derive(Default)]
pub(crate) struct StragglerTasks(Vec<Task>);

impl Drop for StragglerTasks {
    fn drop(&mut self) {
        for task in self.0.drain(..) {
            if let Ok(runtime) = runtime::Handle::try_current() {
                drop(runtime.spawn(gated(task)));
            }
        }
    }
}

/// A command of a request or a guard, under way. If it is dropped before it is answered, its outcome is unknown.
pub(crate) struct Sent<'a> {
    session: &'a Session,
    pub(crate) pending: &'a Pending,
    /// Set until it is answered: a drop then reports an unknown outcome.
    pub(crate) is_armed: bool,
}

impl Sent<'_> {
    /// Arms the undoing of a command that is about to be sent.
    pub(crate) fn new<'a>(session: &'a Session, pending: &'a Pending) -> Sent<'a> {
        Sent { session, pending, is_armed: true }
    }

    /// Reports to the entry that the command is over, but not granted.
    pub(crate) fn conclude(&self, answer: Result<&Reply, Outcome>, spread: Spread) -> Meaning {
        let pending = self.pending;
        self.session.visit(&pending.call.keys, |entry, at| entry.conclude(pending, answer, spread, at))
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            // The command may still be on its way to any master, over a connection that is replaced before the end is sent.
            let spread = Spread { given_up: self.pending.masters, ..Spread::default() };
            self.conclude(Err(Outcome::Unknown), spread);
        }
    }
}

impl Session {
    /// Sends one command of a hold. The background waits for the answers that the verdict doesn't need.
    pub(crate) async fn ask(&self, pending: &Pending) -> (Verdict, StragglerTasks) {
        let (mut verdict, stragglers) = self.quorum.ask(pending).await;
        let mut late = self.note(from_ref(pending), from_ref(&verdict), stragglers, |answer| vec![answer]);
        if let Some(Token { highest, agreed: false }) = verdict.token {
            // The token counts as known to a majority only if the lock is still held. Otherwise: 1. n1 answers 101, n2 answers 51,
            // and 101 is handed out. 2. The lock is released. 3. The next holder is granted by n2 and n3, and gets 52. 4. 101
            // reaches n2 when the next holder already has 52. Boxed, since this is rare and would otherwise take space in each task
            // that has a lock.
            let renewal = Box::pin(async move { self.ask(&pending.acknowledging(highest)).await });
            let (renewed, mut later) = renewal.await;
            late.0.append(&mut later.0);
            verdict = verdict.acknowledged(renewed);
        }
        (verdict, late)
    }

    /// Sends commands of many holds. The background waits for the answers that the verdicts don't need.
    pub(super) async fn ask_all(&self, commands: &[Pending]) -> (Vec<Verdict>, StragglerTasks) {
        let (verdicts, stragglers) = self.quorum.ask_all(commands).await;
        let late = self.note(commands, &verdicts, stragglers, |answers| answers);
        (verdicts, late)
    }

    /// Waits for the verdict on a single command whose sending has begun.
    pub(super) async fn ask_begun(
        &self,
        command: &[Pending],
        begun: Stragglers,
    ) -> (Vec<Verdict>, StragglerTasks) {
        let [pending] = command else { return Default::default() };
        let (verdict, stragglers) = self.quorum.ask_begun(pending, begun).await;
        let late = self.note(command, from_ref(&verdict), stragglers, |answer| vec![answer]);
        (vec![verdict], late)
    }

    /// Notes which commands failed, and which messages were denied. Returns the task that waits for the stragglers, if there are any.
    fn note<T: Send + 'static>(
        &self,
        commands: &[Pending],
        verdicts: &[Verdict],
        stragglers: Stragglers<T>,
        answers: fn(T) -> Vec<CallResult>,
    ) -> StragglerTasks {
        for (pending, verdict) in commands.iter().zip(verdicts) {
            match &verdict.result {
                Ok(Reply::Ended(Notice::Denied)) => self.hints.may_not_publish(),
                Err(failure) => self.note_failure(pending, &failure.error),
                Ok(_) => {}
            }
        }
        let me = if stragglers.is_empty() { None } else { self.me.upgrade() };
        let Some(me) = me else { return StragglerTasks::default() };
        // If the task is dropped with its runtime, maybe before its first poll, its commands may have run.
        let commands = commands.to_vec();
        let unreported =
            scopeguard::guard((me, commands, stragglers.masters()), |(me, commands, masters)| {
                for master in masters.iter() {
                    me.straggled(&commands, master, |_| LateAnswer::Unknown);
                }
            });
        StragglerTasks(vec![Box::pin(async move {
            let mut unreported = unreported;
            let polled = stragglers.poll_all(|master, answered| {
                let (me, commands, masters) = &mut *unreported;
                masters.remove(master);
                let mut answered = answers(answered).into_iter();
                me.straggled(commands, master, |_| {
                    answered.next().map_or(LateAnswer::Unknown, |answer| late_answer(&answer))
                });
            });
            polled.await;
        })])
    }

    /// Frees the lock on all masters, whoever holds it.
    pub(crate) async fn force(&self, keys: &Arc<Keys>) -> CallResult {
        let (reply, stragglers) = self.quorum.force(keys, self.timing.line).await;
        // The stragglers are polled to the end:
        // 1. All masters are asked, and don't know the script.
        // 2. Two are sent its text and answer, which is the verdict.
        // 3. If the third one's future were dropped, a dead holder's field would stay there for its lease.
        if let (false, Ok(callers), Some(me)) =
            (stragglers.is_empty(), runtime::Handle::try_current(), self.me.upgrade())
        {
            let (connections, longest) =
                (me.runtime.clone().unwrap_or_else(|| callers.clone()), me.timing.patience);
            me.forcing.fetch_add(1, SeqCst);
            let over = scopeguard::guard(me, |me| {
                me.forcing.fetch_sub(1, SeqCst);
                me.nudge.notify_waiters();
            });
            let (running, ended) = oneshot::channel::<()>();
            drop(callers.spawn(gated(Box::pin(async move {
                stragglers.poll_all(|_, _| {}).await;
                drop(running);
            }))));
            // The caller's runtime, to which their timers belong, may not be driven any more.
            drop(connections.spawn(gated(Box::pin(async move {
                let _ = timeout(longest, ended).await;
                drop(over);
            }))));
        }
        reply
    }

    /// Returns whether a forced release has not reached all masters yet.
    pub(crate) fn is_forcing(&self) -> bool {
        self.forcing.load(SeqCst) > 0
    }

    /// Reports that a master has answered those of these commands that were meant for it, or never will.
    fn straggled(&self, commands: &[Pending], master: usize, mut answer: impl FnMut(&Pending) -> LateAnswer) {
        for pending in commands.iter().filter(|pending| pending.masters.contains(master)) {
            let (keys, answer) = (&pending.call.keys, answer(pending));
            let note = |entry: &mut LockEntry, at: Moment| entry.straggled(pending, master, answer, at.now);
            match answer {
                // Visited even if nothing of that lock is left in this process.
                LateAnswer::Done | LateAnswer::Unknown if pending.call.action.creates() => {
                    self.visit(keys, |entry, at| note(entry, at))
                }
                _ => drop(self.visit_known(&keys.name, |entry, at| note(entry, at))),
            }
        }
    }
}

/// Returns what a straggler's answer means for the field.
fn late_answer(answer: &CallResult) -> LateAnswer {
    match answer {
        Ok(Reply::Done | Reply::Longer(..) | Reply::Ended(_) | Reply::Token(_) | Reply::Deferred(_)) => {
            LateAnswer::Done
        }
        Ok(_) => LateAnswer::Missing,
        Err(Failure { outcome: Outcome::NotRun, .. }) => LateAnswer::Unsent,
        Err(_) => LateAnswer::Unknown,
    }
}

#[cfg(test)]
mod tests;
