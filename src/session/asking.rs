//! Of a session: the masters are asked, and those heard out whose answers came after the verdict.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime;

use crate::base::{Failure, Moment, Outcome};
use crate::quorum::{Reported, Stragglers, Verdict};
use crate::session::session::Session;
use crate::table::{Late, Room};
use crate::wire::names::Names;
use crate::wire::{Job, Reply, Token};

/// Tasks that hear stragglers out. They start when this goes, which has to be after the verdict was brought to the room: what
/// a straggler says before would be overwritten by the verdict, which counts it among those that are still to come.
#[must_use = "the stragglers are heard as soon as this is dropped"]
#[derive(Default)]
pub(crate) struct Latecomers([Option<Hearing>; 2]);

type Hearing = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Drop for Latecomers {
    fn drop(&mut self) {
        for hearing in self.0.iter_mut().filter_map(Option::take) {
            if let Ok(runtime) = runtime::Handle::try_current() {
                drop(runtime.spawn(hearing));
            }
        }
    }
}

impl Session {
    /// Sends one command of a hold. Answers that its verdict does not wait for are heard out in the background.
    pub(crate) async fn ask(&self, names: &Arc<Names>, job: &Job) -> (Verdict, Latecomers) {
        let mut late = Latecomers::default();
        let mut verdict = self.ask_once(names, job, &mut late.0[0]).await;
        if let Some(Token { highest, agreed: false }) = verdict.token {
            // 1. n1 answers 101, n2 answers 51, and 101 is handed out. 2. It is released. 3. The next holder is granted by n2 and
            // n3, and is told 52. Only who still holds the lock may be told that its token is known: else 4. the next holder
            // has 52 already when n2 hears of 101.
            let acknowledging = job.acknowledging(highest);
            let acknowledged = Box::pin(self.ask_once(names, &acknowledging, &mut late.0[1])).await;
            verdict = verdict.acknowledged(acknowledged);
        }
        (verdict, late)
    }

    async fn ask_once(&self, names: &Arc<Names>, job: &Job, late: &mut Option<Hearing>) -> Verdict {
        let (verdict, stragglers) = self.quorum.ask(names, job).await;
        self.heard(&verdict.result);
        *late = self.hearing(stragglers, || vec![(names.clone(), job.clone())], |answer| vec![answer]);
        verdict
    }

    /// The same for commands of many holds.
    pub(crate) async fn ask_all(&self, jobs: &[(Arc<Names>, Job)]) -> (Vec<Verdict>, Latecomers) {
        let (verdicts, stragglers) = self.quorum.ask_all(jobs).await;
        verdicts.iter().for_each(|verdict| self.heard(&verdict.result));
        let late = self.hearing(stragglers, || jobs.to_vec(), |answers| answers);
        (verdicts, Latecomers([late, None]))
    }

    fn hearing<T: Send + 'static>(
        &self,
        stragglers: Stragglers<T>,
        jobs: impl FnOnce() -> Vec<(Arc<Names>, Job)>,
        answers: fn(T) -> Vec<Reported>,
    ) -> Option<Hearing> {
        if stragglers.is_empty() {
            return None;
        }
        let me = self.me.upgrade()?;
        // Dropped with its runtime, maybe before its first poll: what was sent may have run.
        let missing = scopeguard::guard((me, jobs(), stragglers.nodes()), |(me, jobs, nodes)| {
            for node in nodes.iter() {
                me.straggled(&jobs, node, |_| Late::Unknown);
            }
        });
        Some(Box::pin(async move {
            let mut missing = missing;
            let heard = stragglers.hear(|node, told| {
                let (me, jobs, nodes) = &mut *missing;
                nodes.remove(node);
                let mut told = answers(told).into_iter();
                me.straggled(jobs, node, |_| told.next().map_or(Late::Unknown, |answer| late(&answer)));
            });
            heard.await;
        }))
    }

    /// Frees the lock on all masters, whoever holds it.
    pub(crate) async fn force(&self, names: &Names) -> Reported {
        let (reply, stragglers) = self.quorum.force(names).await;
        // 1. All masters are asked, and do not know the script. 2. Two are sent its text and answer, which is the verdict. 3. Were
        // the third one's future dropped, a dead holder's field would stay there for its lease.
        if let (false, Ok(runtime)) = (stragglers.is_empty(), runtime::Handle::try_current()) {
            drop(runtime.spawn(stragglers.hear(|_, _| {})));
        }
        reply
    }

    /// A master has answered what it was asked to do of these jobs, or never will.
    fn straggled(&self, jobs: &[(Arc<Names>, Job)], node: usize, mut answer: impl FnMut(&Job) -> Late) {
        for (names, job) in jobs.iter().filter(|(_, job)| job.nodes.contains(node)) {
            let answer = answer(job);
            let told = |room: &mut Room, at: Moment| room.straggled(job, node, answer, at.now);
            match answer {
                // Also where nothing of that lock is left here.
                Late::There | Late::Unknown if job.step.creates() => {
                    self.visit(names, |room, _, at| told(room, at))
                }
                _ => drop(self.visit_known(&names.name, |room, _, at| told(room, at))),
            }
        }
    }
}

/// What a straggler's answer says of the field.
fn late(answer: &Reported) -> Late {
    match answer {
        Ok(Reply::Done | Reply::Token(_) | Reply::Deferred(_)) => Late::There,
        Ok(_) => Late::Missing,
        Err(Failure { outcome: Outcome::NotRun, .. }) => Late::Unsent,
        Err(_) => Late::Unknown,
    }
}
