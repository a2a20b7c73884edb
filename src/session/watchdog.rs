//! The background task: it renews holds, ends those that are over, and sends the queued releases and settles.

use std::future::Future;
use std::ops::ControlFlow::Continue;
use std::slice::from_ref;
use std::sync::Arc;

use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::base::atomic::Ordering::SeqCst;
use crate::base::{Outcome, Spread, gated, lock, telemetry};
use crate::quorum::Stragglers;
use crate::session::clock::sleep_until;
use crate::session::session::{Session, Stage};
use crate::table::LockEntry;
use crate::wire::keys::Keys;
use crate::wire::{Pending, Rule};

type Batch = Vec<Pending>;

impl Session {
    /// Starts the background task, unless it is running: on the runtime of the connections, or on the caller's if there are none. On
    /// another runtime, the task could end before the connections do.
    pub(crate) fn ensure_watchdog(&self) {
        if self.active_watchdog.load(SeqCst) == 0 {
            self.start_watchdog(false);
        }
    }

    /// Starts the background task, in place of an active one only if it `takes_over`. Returns whether it did.
    fn start_watchdog(&self, takes_over: bool) -> bool {
        let runtime = self.runtime.clone().or_else(|| runtime::Handle::try_current().ok());
        let (Some(runtime), Some(me)) = (runtime, self.me.upgrade()) else { return false };
        let number = self.watchdogs_started.fetch_add(1, SeqCst) + 1;
        let replaces = |active| (active == 0 || takes_over).then_some(number);
        let begins = self.stage() <= Stage::Closing
            && self.active_watchdog.fetch_update(SeqCst, SeqCst, replaces).is_ok();
        if begins {
            drop(runtime.spawn(gated(Box::pin(watch(me, number)))));
        }
        begins
    }

    /// Moves the background task to the caller's runtime. The old task has not looked at what is due: its runtime lives, but
    /// nobody drives it. Once that runtime is driven again, the old task notices and ends. The commands that it has sent count as
    /// unanswered.
    pub(super) fn take_over(&self) {
        if self.start_watchdog(true) {
            let keys = lock(&self.table).keys();
            for name in keys {
                self.visit_once(self.moment(), &name, |entry, at| entry.give_up_background(at.now));
            }
        }
    }

    /// Drops a guard: its level no longer counts. If that was the last level of its hold and no other command is under way, the
    /// end is written to the sockets at once, since the program may exit after this. Otherwise the background sends the release:
    /// a thousand guards that are dropped at once would be a thousand writes, and those of one hold a thousand commands.
    pub(crate) fn let_go(&self, keys: &Arc<Keys>, hold: u64, level: u64) {
        let at_once =
            self.runtime.as_ref().filter(|_| self.stage() < Stage::Closed && self.quorum.is_unused(keys));
        let step = self.visit(keys, |entry, at| {
            let is_last = entry.hold_of_guard(hold).is_some_and(|hold| hold.count() == 1);
            let command_id = at_once.filter(|_| is_last).map(|_| self.numbers.next());
            entry.leave(hold, level, command_id, at)
        });
        if let (Continue(pending), Some(runtime), Some(me)) = (step, at_once, self.me.upgrade()) {
            let begun = self.quorum.begin(&pending);
            drop(runtime.spawn(gated(Box::pin(send(me, vec![pending], Some(begun))))));
        }
        if self.quorum.is_portable() && self.active_watchdog.load(SeqCst) == 0 {
            // There is no runtime here, and the one that drove the background has ended.
            self.send_last(from_ref(keys));
        }
    }

    /// Called when the runtime has ended, and the background with it, or none is left to send them. Writes the ends that are
    /// still owed for these locks to the sockets. Called for each lock that is visited later too, since the tasks of the runtime
    /// are dropped in any order, and a task's own drop may make another end due.
    #[cold]
    pub(super) fn send_last(&self, keys: &[Arc<Keys>]) {
        let ends: Vec<_> = keys.iter().flat_map(|keys| self.last_ends(keys)).collect();
        self.quorum.run_last(&ends);
        if self.quorum.is_portable() {
            // The next use from another runtime sends them again: nobody reads these answers.
            for pending in &ends {
                let unknown = |entry: &mut LockEntry, at| {
                    entry.conclude(pending, Err(Outcome::Unknown), Spread::default(), at)
                };
                self.visit_once(self.moment(), &pending.call.keys, unknown);
            }
            return;
        }
        // If something was written, the connection stays until the last handle is dropped: if it were closed before the server has
        // read everything, the server's answers would fail, and it would stop reading.
        if ends.is_empty() && !self.table(|table, _| table.has_holds()) {
            self.quorum.end_with_runtime();
        }
    }

    /// Handles that the background task was dropped with its runtime. If that ends everything, all waiters get an error; otherwise
    /// they are woken, and the first of them takes the task over to its own runtime.
    fn runtime_ended(&self, number: u64) {
        if !self.quorum.is_portable() {
            let held = self.table(|table, _| table.held());
            if held > 0 {
                telemetry::runtime_ended(held);
            }
            // All ends are sent together: one by one, thousands of dropped guards would be thousands of writes.
            let keys = lock(&self.table).keys();
            self.send_last(&keys);
            return self.advance(Stage::RuntimeEnded);
        }
        // Done before anybody is woken, since the woken waiters read it.
        if self.active_watchdog.compare_exchange(number, 0, SeqCst, SeqCst).is_err() {
            return; // another has taken over
        }
        let keys = lock(&self.table).keys();
        self.send_last(&keys);
        for name in keys {
            // `visit` would start the task again: the runtime that is current here is the one that ends.
            self.visit_once(self.moment(), &name, |entry, at| entry.wake_everyone(at.now));
        }
        self.progress.notify_waiters();
    }

    /// Returns whether requests for several names hold locks that they have not handed out. Lost holds are not waited for.
    pub(crate) fn has_gathered(&self) -> bool {
        self.gathered.load(SeqCst) > 0 && self.table(|table, _| table.held()) > 0
    }

    /// Returns what `close` waits for: whether ends are unconfirmed, whether other commands are left to be sent, and whether
    /// nothing is held or requested.
    pub(crate) fn left_to_do(&self) -> (bool, bool, bool) {
        let forcing = self.is_forcing();
        self.table(|table, _| {
            (table.has_unconfirmed_ends(), table.has_orphans() || forcing, table.is_empty())
        })
    }
}

/// Runs until the session is closed or has no handle left, and nothing is left to be sent. `number` identifies this background task
/// within its session.
fn watch(session: Arc<Session>, number: u64) -> impl Future<Output = ()> + Send {
    // If the task is dropped with its runtime, maybe before its first poll, nothing else wakes the waiters.
    let ended = scopeguard::guard(session.clone(), move |session| session.runtime_ended(number));
    async move {
        let is_done = attend(&session, number).await;
        let session = scopeguard::ScopeGuard::into_inner(ended);
        if is_done {
            session.advance(Stage::Closed);
            session.quorum.close();
        }
    }
}

/// Returns whether the session has ended. If not, another task has taken over.
async fn attend(session: &Arc<Session>, number: u64) -> bool {
    let (mut sent, mut left) = (JoinSet::new(), None);
    while session.active_watchdog.load(SeqCst) == number {
        session.pulse.beat();
        // Made before the look, so that nothing that becomes due in between is missed.
        let nudged = session.nudge.notified();
        let (batch, next) = due(session);
        if !batch.is_empty() {
            // Each part is sent on a task of its own. A server that does not answer must not keep the watchdog from declaring a
            // loss, and an awaited answer about an orphan must not delay the report of a renewal.
            let (orphans, batch): (Batch, Batch) =
                batch.into_iter().partition(|pending| pending.rule() == Rule::Remains);
            for batch in [batch, orphans].into_iter().filter(|batch| !batch.is_empty()) {
                sent.spawn(gated(Box::pin(send(session.clone(), batch, None))));
            }
            continue;
        }
        // `close` is notified only of a change. Otherwise: 1. A task awaits `close` and a request. 2. Each of its polls polls the
        // request, which wakes this task. 3. This task notifies `close`, and so on without a pause until the masters answer.
        let now_left = (session.stage() > Stage::Open).then(|| session.left_to_do());
        if now_left.is_none() || now_left != left {
            left = now_left;
            session.progress.notify_waiters();
        }
        let at_rest =
            || sent.is_empty() && !session.is_forcing() && session.table(|table, _| table.is_empty());
        if session.stage() > Stage::Open && at_rest() {
            return true;
        }
        tokio::select! {
            // In a fixed order, so that a simulation can be repeated. Finished tasks go first: otherwise a watchdog that is woken
            // all the time would never remove them.
            biased;
            Some(_) = sent.join_next() => {}
            () = nudged => {}
            // No timer if nothing is due.
            () = sleep_until(next.unwrap_or_else(Instant::now), || session.moment()), if next.is_some() => {}
        }
    }
    false
}

/// Returns the commands to send now or, if there are none, when to look again, by the clock of the holds.
fn due(session: &Session) -> (Batch, Option<Instant>) {
    loop {
        let (keys, next) = session.table(|table, at| table.due(at.now));
        if keys.is_empty() {
            return (Batch::new(), next);
        }
        let mut batch = Batch::new();
        for keys in keys {
            // `away` is read inside the visit: a master that becomes reachable is either reported to the entry after this, or seen here.
            batch.extend(
                session.visit(&keys, |entry, at| entry.check(at, session.quorum.away(), &session.numbers)),
            );
        }
        if !batch.is_empty() {
            return (batch, next);
        }
    }
}

/// Sends a batch, and reports the outcomes to the entries. `begun` is set if the single command of the batch was already sent.
fn send(session: Arc<Session>, batch: Batch, begun: Option<Stragglers>) -> impl Future<Output = ()> + Send {
    // If the task is dropped with its runtime, maybe before its first poll, its commands may have run, and the next watchdog has to know.
    let sent = scopeguard::guard((session, batch), |(session, batch)| {
        for pending in batch {
            session.visit(&pending.call.keys, |entry, at| {
                entry.conclude(&pending, Err(Outcome::Unknown), Spread::default(), at);
            });
        }
    });
    async move {
        // The stragglers are dropped last, after the verdicts are reported to the entries.
        let (verdicts, _stragglers) = match begun {
            Some(begun) => sent.0.ask_begun(&sent.1, begun).await,
            None => sent.0.ask_all(&sent.1).await,
        };
        let (session, batch) = scopeguard::ScopeGuard::into_inner(sent);
        for (pending, verdict) in batch.into_iter().zip(verdicts) {
            let keys = &pending.call.keys;
            if let Err(failure) = &verdict.result {
                telemetry::background_failed(&keys.name, &failure.error);
            }
            session.visit(keys, |entry, at| entry.conclude(&pending, verdict.answer(), verdict.spread, at));
        }
        session.progress.notify_waiters();
    }
}
