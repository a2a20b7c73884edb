//! The masters of a `Locks`, asked as one: a quorum of one now. What stands above does not know how many there are.

use std::sync::Arc;

use crate::backend::{Backend, Failure};
use crate::names::Names;
use crate::room::Job;
use crate::script::{Call, Reply};
use crate::step::Step;

/// Whoever has a vote on a lock.
#[derive(Debug)]
pub(crate) struct Quorum {
    master: Arc<dyn Backend>,
}

impl Quorum {
    pub(crate) fn new(master: Arc<dyn Backend>) -> Quorum {
        Quorum { master }
    }

    /// Sends one command of a hold.
    pub(crate) async fn ask(&self, names: &Names, job: &Job) -> Result<Reply, Failure> {
        let answer = self.master.run(call(names, job)).await;
        answer.map_err(|failure| about(failure, names))
    }

    /// Sends commands of many holds in pipelines; the answers come in their order.
    pub(crate) async fn ask_all(&self, jobs: &[(Arc<Names>, Job)]) -> Vec<Result<Reply, Failure>> {
        self.master.run_all(jobs.iter().map(|(names, job)| call(names, job)).collect()).await
    }

    /// Frees the lock, whoever holds it.
    pub(crate) async fn force(&self, names: &Names) -> Result<Reply, Failure> {
        let call = Call::Force { key: names.key.clone(), channel: names.channel.clone() };
        self.master.run(call).await.map_err(|failure| about(failure, names))
    }

    /// Looks whether somebody holds the lock.
    pub(crate) async fn look(&self, names: &Names) -> Result<Reply, Failure> {
        self.master.run(Call::Look { key: names.key.clone() }).await.map_err(|failure| about(failure, names))
    }

    /// Begins or ends to hear of the releases told on a channel.
    pub(crate) fn hear(&self, channel: &str, on: bool) {
        match on {
            true => self.master.subscribe(channel),
            false => self.master.unsubscribe(channel),
        }
    }

    /// Whether it works on any runtime.
    pub(crate) fn is_portable(&self) -> bool {
        self.master.is_portable()
    }

    pub(crate) fn close(&self) {
        self.master.close();
    }
}

fn about(failure: Failure, names: &Names) -> Failure {
    Failure { error: failure.error.on(&names.name), ..failure }
}

fn call(names: &Names, job: &Job) -> Call {
    let (key, channel, field) = (names.key.clone(), names.channel.clone(), job.field.clone());
    match job.step {
        Step::Acquire { count, lease } => Call::Acquire { key, field, count, lease },
        Step::Release { count } => Call::Release { key, channel, field, count },
        Step::Renew { lease } => Call::Renew { key, field, lease },
        Step::Settle { count, lease } => Call::Settle { key, channel, field, count, lease },
    }
}
