//! The one background task: it renews what is held, ends what is over, and sends what was left to be released or settled.

use std::future::Future;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::base::{Outcome, telemetry};
use crate::quorum::{Question, Verdict};
use crate::session::clock::sleep_until;
use crate::session::session::{Session, Stage};
use crate::table::LockEntry;
use crate::wire::Job;
use crate::wire::keys::Keys;

type Batch = Vec<(Arc<Keys>, Job)>;

/// Runs until the session is closed, or nobody has a handle of it, and nothing is left to be sent. `number`: which of the
/// session's background tasks it is.
pub(crate) fn watch(session: Arc<Session>, number: u64) -> impl Future<Output = ()> + Send {
    // Dropped with its runtime, maybe before its first poll: nobody is left to wake those who wait.
    let orphaned = scopeguard::guard(session.clone(), move |session| session.orphaned(number));
    async move {
        let ended = attend(&session, number).await;
        let session = scopeguard::ScopeGuard::into_inner(orphaned);
        if ended {
            session.advance(Stage::Closed);
            session.quorum.close();
        }
    }
}

/// Whether the session has ended. If not, another task has taken over.
async fn attend(session: &Arc<Session>, number: u64) -> bool {
    let mut sent = JoinSet::new();
    while session.is_watched_by(number) {
        // Made before the look: what becomes due between is not missed.
        let nudged = session.nudge.notified();
        let (batch, next) = due(session);
        if !batch.is_empty() {
            // On tasks of their own: a server that does not answer must not keep the watchdog from declaring a loss, nor one that
            // has a orphan, whose answer is waited for, keep a renewal from being told.
            let remains = |job: &Job| Question::of(job.step, job.masters, job.repeated) == Question::Remains;
            let (orphans, batch): (Batch, Batch) = batch.into_iter().partition(|(_, job)| remains(job));
            for batch in [batch, orphans].into_iter().filter(|batch| !batch.is_empty()) {
                sent.spawn(send(session.clone(), batch));
            }
            continue;
        }
        session.progress.notify_waiters();
        if session.stage() > Stage::Open && sent.is_empty() && session.table(|table, _| table.is_empty()) {
            return true;
        }
        tokio::select! {
            () = nudged => {}
            // Without a timer where nothing is due.
            () = sleep_until(next.unwrap_or_else(Instant::now), || session.moment()), if next.is_some() => {}
            Some(_) = sent.join_next() => {}
        }
    }
    false
}

/// What has to be sent now; if nothing, when to look again, on the line of holds.
fn due(session: &Session) -> (Batch, Option<Instant>) {
    loop {
        let (keys, next) = session.table(|table, at| table.due(at.now));
        if keys.is_empty() {
            return (Batch::new(), next);
        }
        let mut batch = Batch::new();
        let renews = session.stage() == Stage::Open;
        for keys in keys {
            // Who is away is looked at inside: a return is told of to the entry behind this, or was seen here.
            let check = |entry: &mut LockEntry, number: &mut dyn FnMut() -> u64, at| {
                entry.check(at, renews, session.quorum.away(), number)
            };
            let jobs = session.visit(&keys, check);
            batch.extend(jobs.into_iter().map(|job| (keys.clone(), job)));
        }
        if !batch.is_empty() {
            return (batch, next);
        }
    }
}

fn send(session: Arc<Session>, batch: Batch) -> impl Future<Output = ()> + Send {
    // Dropped with its runtime, maybe before its first poll: what was sent may have run, and whoever watches next has to know.
    let sent = scopeguard::guard((session, batch), |(session, batch)| {
        for (keys, job) in batch {
            session.visit(&keys, |entry, _, at| entry.unanswered(&job, at.now));
        }
    });
    async move {
        // Dropped at the end, behind what is told to the entries.
        let (verdicts, _latecomers) = sent.0.ask_all(&sent.1).await;
        let (session, batch) = scopeguard::ScopeGuard::into_inner(sent);
        for ((keys, job), verdict) in batch.into_iter().zip(verdicts) {
            note(&session, &keys, &job, verdict);
        }
        session.progress.notify_waiters();
    }
}

fn note(session: &Session, keys: &Arc<Keys>, job: &Job, Verdict { result, spread, .. }: Verdict) {
    let failure = match result {
        Ok(reply) => {
            session.visit(keys, |entry, _, at| entry.answered(job, &reply, spread, at));
            return;
        }
        Err(failure) => failure,
    };
    telemetry::background_failed(&keys.name, &failure.error);
    session.visit(keys, |entry, _, at| {
        match failure.outcome {
            Outcome::NotRun => entry.postponed(job, at.now),
            Outcome::Unknown => entry.unanswered(job, at.now),
        }
        entry.lacks(job, spread, at.now);
    });
}
