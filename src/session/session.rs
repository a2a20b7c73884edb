//! What all handles of one `Locks` share: the table, the masters and the clock, and how they work together.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use scopeguard::ScopeGuard;
use tokio::runtime;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::base::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use crate::base::meter::{self, Sample};
use crate::base::{Events, Moment, Mutex, after, boxed, lock, telemetry, unless_it_panics, wake_all};
use crate::config::Config;
use crate::error::{Error, ErrorKind};
use crate::owner::{Owner, OwnerEnds};
use crate::quorum::Quorum;
use crate::session::clock::Clock;
use crate::session::hints::Hints;
use crate::session::pulse::Pulse;
use crate::table::{
    Grant, HEAD_PATIENCE, LockEntry, LockTable, LogEvent, Numbers, Timing, VisitEffects, retry_pause,
};
use crate::wire::Pending;
use crate::wire::keys::Keys;

/// How long due work may wait for the background task before another runtime takes the task over.
const TAKEOVER: Duration = Duration::from_millis(50);

/// How many hand-overs may be declined at once.
const MOST_DECLINES: usize = 16;

/// One process's view of the locks on its masters.
pub(crate) struct Session {
    pub(crate) config: Config,
    pub(crate) quorum: Quorum,
    pub(crate) timing: Arc<Timing>,
    pub(crate) numbers: Numbers,
    /// The prefix of each field that this session writes: a label, if there is one, and random text from the operating system.
    pub(crate) uuid: String,
    /// Wakes the watchdog when something is due sooner than it knows.
    pub(super) nudge: Notify,
    /// Notified whenever the background has done something; `close` waits on it.
    pub(crate) progress: Notify,
    pub(super) table: Mutex<LockTable>,
    pub(crate) hints: Hints,
    clock: Clock,
    stage: AtomicU8,
    pub(super) me: Weak<Session>,
    /// The runtime of the connections, which also runs tasks that are begun outside a runtime. `None` if there are no connections.
    pub(super) runtime: Option<runtime::Handle>,
    /// The number of the active background task, or zero if there is none.
    pub(super) active_watchdog: AtomicU64,
    pub(super) watchdogs_started: AtomicU64,
    pub(super) pulse: Pulse,
    /// How many forced releases have not reached all masters yet.
    pub(super) forcing: AtomicU64,
    /// How many locks requests for several names hold, or have lost or are giving back, that they have not handed out.
    pub(super) gathered: AtomicU64,
    /// A permit for each hand-over that is declined now: see [`decline`](Session::decline).
    pub(super) declines: Arc<Semaphore>,
    /// The receivers of the backends' reports. The session keeps them alive, since the backends don't.
    _events: Vec<Arc<dyn Events>>,
}

/// The stage of a session's life. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Open,
    /// `close` was called, or the last handle is gone: the background finishes its queued work.
    Closing,
    /// The background has ended after its work.
    Closed,
    /// The background was dropped with its runtime.
    RuntimeEnded,
}

impl Session {
    pub(crate) fn new(
        config: Config,
        quorum: Quorum,
        uuid: String,
        clock: Clock,
        events: Vec<Arc<dyn Events>>,
    ) -> Arc<Session> {
        // At least as long as a future that is polled may take. Otherwise: 1. An acquire is granted. 2. It is given up before its
        // answer is looked at, and undone. 3. It is sent again, and so on for ever. A call in a pipeline may take a node timeout
        // longer than one that is sent alone.
        let patience = config.attempt_limit().saturating_mul(2).max(HEAD_PATIENCE);
        let retry = retry_pause(config.lease);
        let (lease, drift) = (config.lease, config.drift);
        let epoch = clock.moment().now;
        let (masters, handoff, warn_after) = (quorum.size(), config.local_handoff, config.warn_after);
        let line = config.line().filter(|_| quorum.size() == 1);
        let timing =
            Arc::new(Timing { masters, lease, drift, patience, retry, epoch, handoff, warn_after, line });
        let hints = Hints::new(&config.prefix, &uuid, line);
        let takeover = quorum.is_portable().then_some(TAKEOVER);
        let runtime = runtime::Handle::try_current().ok().filter(|_| !quorum.is_portable());
        let pulse = Pulse::new(config.uses_backup_thread());
        Arc::new_cyclic(|me: &Weak<Session>| Session {
            config,
            quorum,
            timing: timing.clone(),
            numbers: Numbers::default(),
            uuid,
            nudge: Notify::new(),
            progress: Notify::new(),
            table: Mutex::new(LockTable::new(timing, takeover, me.clone())),
            hints,
            clock,
            stage: AtomicU8::new(Stage::Open as u8),
            me: me.clone(),
            runtime,
            active_watchdog: AtomicU64::new(0),
            watchdogs_started: AtomicU64::new(0),
            pulse,
            forcing: AtomicU64::new(0),
            gathered: AtomicU64::new(0),
            declines: Arc::new(Semaphore::new(MOST_DECLINES)),
            _events: events,
        })
    }

    #[inline(never)]
    pub(crate) fn moment(&self) -> Moment {
        self.clock.moment()
    }

    /// Returns the moment by tokio's clock, with the machine's sleep as last read. The moment may be too early, and so may deadlines
    /// that are counted from it: use it only for what neither extends nor ends a hold.
    pub(crate) fn glance(&self, now: Instant) -> Moment {
        self.clock.glance(now)
    }

    /// Decides something about one lock, then carries out the effects once the table is unlocked.
    pub(crate) fn visit<R>(&self, keys: &Arc<Keys>, visit: impl FnOnce(&mut LockEntry, Moment) -> R) -> R {
        self.visit_at(self.moment(), keys, visit)
    }

    /// Like [`visit`](Session::visit), at a given moment.
    pub(crate) fn visit_at<R>(
        &self,
        at: Moment,
        keys: &Arc<Keys>,
        visit: impl FnOnce(&mut LockEntry, Moment) -> R,
    ) -> R {
        self.ensure_watchdog();
        let (result, is_unattended) = self.visit_once(at, keys, visit);
        if is_unattended {
            self.take_over();
        }
        result
    }

    /// Returns how often a waiter has to check that the background task works; `None` if no other runtime may take it over.
    pub(crate) fn takeover_pause(&self) -> Option<Duration> {
        self.quorum.is_portable().then_some(TAKEOVER)
    }

    /// Visits a lock without taking over the background task. Returns the visit's result, and whether the background task does not look
    /// at what is due. Visits of all locks use this. Otherwise:
    ///
    /// 1. The machine is busy, and what is due is late.
    /// 2. A visit takes the background task over, and visits all locks.
    /// 3. That takes long, and each of these visits would take it over again, inside the one before.
    pub(super) fn visit_once<R>(
        &self,
        at: Moment,
        keys: &Arc<Keys>,
        visit: impl FnOnce(&mut LockEntry, Moment) -> R,
    ) -> (R, bool) {
        let mut effects = VisitEffects::default();
        let mut table = lock(&self.table);
        let result = table.visit(keys, at.now, &mut effects, |entry| visit(entry, at));
        if let Some(on) = effects.subscribe.take() {
            // Passed on while the table is locked. Otherwise: 1. One visit ends the subscription. 2. A later visit begins it
            // again. 3. The later one is passed on before the earlier one, and a waiter relies on messages that do not arrive.
            if on && let Some(hints) = self.hints.begin() {
                // Subscribed before the lock's channel: a request that asks after that subscription may enter the line.
                self.quorum.subscribe(hints, true);
            }
            let beside = self.hints.channels_beside(keys, on);
            let subscribe_beside = || beside.iter().for_each(|channel| self.quorum.subscribe(channel, on));
            if on {
                subscribe_beside();
            }
            self.quorum.subscribe(keys.channel(), on);
            if !on {
                subscribe_beside();
            }
        }
        let begins_to_watch = self.pulse.is_wanted() && table.is_watched(keys);
        drop(table);
        let unattended = effects.unattended;
        self.carry_out(keys, effects);
        if begins_to_watch {
            self.start_backup_thread();
        }
        if self.stage() == Stage::RuntimeEnded {
            self.send_last(std::slice::from_ref(keys));
        }
        (result, unattended)
    }

    /// Begins the ends that are still owed for this lock. Called after the runtime has ended.
    pub(super) fn last_ends(&self, keys: &Arc<Keys>) -> Vec<Pending> {
        let (now, mut effects) = (self.moment().now, VisitEffects::default());
        let ends =
            lock(&self.table).visit(keys, now, &mut effects, |entry| entry.last_ends(&self.numbers, now));
        self.carry_out(keys, effects);
        ends
    }

    /// Grants a nested level to this new owner, if neither a command nor a visit is needed: see [`LockEntry::nest`]. Called inside
    /// a runtime.
    pub(crate) fn nest(&self, keys: &Arc<Keys>, owner: &Owner, fenced: bool) -> Option<Arc<Grant>> {
        self.ensure_watchdog();
        let granted = {
            let mut table = lock(&self.table);
            table.standing(keys)?.nest(owner, fenced, &self.numbers, || {
                let known = self.quorum.is_connected(keys) && !self.quorum.is_copied();
                known.then(|| self.moment())
            })?
        };
        if meter::ON {
            self.measure(&keys.name, Sample::Nested);
        }
        Some(granted)
    }

    /// Removes a nested level, if its release needs neither a command nor a visit. Returns whether it did.
    pub(crate) fn unnest(&self, grant: &Grant) -> bool {
        self.table(|table, at| table.standing(&grant.keys)?.unnest(grant, at)).is_some()
    }

    /// Visits a lock if its entry is known, and does nothing otherwise.
    pub(crate) fn visit_known<R>(
        &self,
        name: &str,
        visit: impl FnOnce(&mut LockEntry, Moment) -> R,
    ) -> Option<R> {
        let keys = lock(&self.table).entry(name).map(|entry| entry.keys.clone())?;
        Some(self.visit(&keys, visit))
    }

    /// Gives access to the table without a visit: for looks, and for changes that have no effects (see [`LockTable::standing`]).
    pub(crate) fn table<R>(&self, look: impl FnOnce(&mut LockTable, Moment) -> R) -> R {
        let at = self.moment();
        look(&mut lock(&self.table), at)
    }

    #[inline(never)]
    fn carry_out(&self, keys: &Keys, effects: VisitEffects) {
        let sooner = effects.sooner;
        // Most visits have no effects.
        let events = effects.out.map_or_else(Vec::new, |out| {
            // Counted before anybody is notified: code that reads the metrics after `lost()` finds the loss counted.
            for event in &out.log {
                if let LogEvent::Measured(lost @ Sample::Lost { .. }) = event {
                    self.measure(&keys.name, *lost);
                }
            }
            // Wakers are the program's code, and the visit may have granted a lock.
            for grant in out.resolve {
                unless_it_panics(|| grant.signal.notify());
            }
            wake_all(out.wake);
            out.log
        });
        // On a closed session, `close` or the watchdog's end may wait for a visit that makes nothing due: the one after the
        // answer to a release that its caller sent.
        if sooner || self.stage() > Stage::Open {
            self.nudge.notify_waiters();
        }
        for event in events {
            // The program's subscriber may panic, and the visit may have granted a lock.
            unless_it_panics(|| self.log(&keys.name, &event));
        }
    }

    fn log(&self, name: &str, event: &LogEvent) {
        match event {
            LogEvent::Lost { field, loss } => telemetry::lost(name, field, *loss),
            LogEvent::OutOfOrder { field } => telemetry::out_of_order(name, field),
            LogEvent::SelfWait { asks, holds } => telemetry::self_wait(name, asks, holds),
            LogEvent::Settled { field } => telemetry::settled(name, field),
            LogEvent::RenewedLate { field, failures } => {
                telemetry::renewed_late(name, field, *failures);
                self.measure(name, Sample::RenewedLate);
            }
            // Losses were counted above.
            LogEvent::Measured(Sample::Lost { .. }) => {}
            LogEvent::Measured(sample) => self.measure(name, *sample),
            LogEvent::Waits(wait) => {
                let by = wait.by.as_ref().map(|by| (&by.holder, by.here, by.held));
                let context = wait.context.as_deref();
                telemetry::still_waiting(name, (wait.waited, wait.location), by, wait.waiting, context);
            }
        }
    }

    /// Visits every entry, in no particular order.
    pub(crate) fn visit_all(&self, mut visit: impl FnMut(&mut LockEntry, Moment)) {
        let keys = lock(&self.table).keys();
        for name in keys {
            self.visit(&name, |entry, at| visit(entry, at));
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(SeqCst) {
            0 => Stage::Open,
            1 => Stage::Closing,
            2 => Stage::Closed,
            _ => Stage::RuntimeEnded,
        }
    }

    /// Moves on to a later stage. All waiters fail with an error; queued commands are finished.
    pub(crate) fn advance(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, SeqCst);
        self.table(|table, _| table.closed = true);
        self.visit_all(|entry, at| {
            entry.withdraw_offer(at.now);
            entry.wake_requests(at.now);
        });
        self.nudge.notify_waiters();
        self.progress.notify_waiters();
    }

    /// Returns the error of a request that is made too late.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        let why = match self.stage() {
            Stage::Open => return Ok(()),
            Stage::Closing | Stage::Closed => "this `Locks` was closed; connect a new one",
            Stage::RuntimeEnded => {
                "the tokio runtime that this `Locks` was connected on has ended; connect a new one on a living runtime"
            }
        };
        Err(Error::new(ErrorKind::Closed, why))
    }

    /// Returns the error of a call that is made too late, or outside a runtime, where its timers would panic.
    pub(crate) fn check_call(&self) -> Result<(), Error> {
        self.check_open()?;
        check_runtime()
    }

    /// Waits for the first attempts to connect, until `limit` and for one node timeout at most. Awaited before the first command to
    /// several masters. Otherwise a single attempt at the start of a program would find none of them connected; and a command must
    /// not wait for a connection once it is sent, for the reason given in `Role`.
    pub(crate) async fn opening(&self, limit: Option<Instant>) -> Result<(), Error> {
        if self.quorum.is_opening() {
            let longest = after(Instant::now(), self.config.node_timeout);
            let until = limit.map_or(longest, |limit| limit.min(longest));
            // Boxed, since it is rarely needed and would otherwise take space in each task that has a lock.
            let attempts = boxed(timeout_at(until, self.quorum.first_attempts()));
            if attempts.await.is_ok() || until == longest {
                self.quorum.opened();
            }
            // It may have been closed meanwhile, and `close` waits for no command that begins later.
            self.check_open()?;
        }
        Ok(())
    }

    /// Returns OpenTelemetry's name of the system that keeps the locks, or `None` if this process keeps them.
    pub(crate) fn system(&self) -> Option<&'static str> {
        (!self.quorum.is_portable()).then_some("redis")
    }

    /// Counts an event of one lock. Must not be called while anything is locked.
    pub(crate) fn measure(&self, name: &str, sample: Sample) {
        meter::record(name, self.config.grouping.as_ref(), sample);
    }

    /// Notes that a command of a lock failed.
    pub(super) fn note_failure(&self, pending: &Pending, error: &Error) {
        let name = &pending.call.keys.name;
        if error.kind() == ErrorKind::Unavailable && !pending.is_end() {
            let age = self.outage_age();
            self.visit_known(name, |entry, _| entry.outage.goes_on(error.clone(), age, Instant::now()));
        }
        self.measure_failure(name, error);
    }

    /// Counts a missing answer, or the refusal of a command that needs no special right.
    pub(crate) fn measure_failure(&self, name: &str, error: &Error) {
        if error.kind() == ErrorKind::Unavailable {
            self.measure(name, Sample::Unavailable);
        }
    }

    /// Returns the last failure of a command of this lock, if it is no older than `age` and no answer has come since.
    pub(crate) fn outage(&self, keys: &Keys, age: Duration) -> Option<Error> {
        self.table(|table, _| table.entry_of(keys)?.outage.last(age, Instant::now()))
    }

    /// Returns the error of a request for this lock that began at `began`, if its commands have failed for too long since.
    pub(crate) fn outage_since(&self, keys: &Keys, began: Instant) -> Option<Error> {
        let (patience, now) = (self.config.unavailable_after, Instant::now());
        let age = self.outage_age();
        self.table(|table, _| table.entry_of(keys)?.outage.fresh(age, now)?.outlast(patience, began, now))
    }

    /// Returns the age from which a failure proves nothing, since nobody may have asked since. No request pauses for longer.
    fn outage_age(&self) -> Duration {
        self.timing.patience.max(self.config.unavailable_after).saturating_add(self.longest_pause())
    }

    /// Returns a random pause. Both bounds double from pause to pause.
    pub(crate) fn pause(&self, pauses: u32) -> Duration {
        let (low, high) = self.config.retry_delay.clone().into_inner();
        let doubled = |bound: Duration| bound.saturating_mul(1 << pauses.min(16));
        let longest = doubled(high).min(self.longest_pause());
        // The pause stays random, however narrow the range is. Otherwise: 1. Three clients ask three masters at once, and each
        // gets one. 2. All pause for the same time, ask at once again, and so on without end.
        let shortest = doubled(low).min(low.max(longest / 2));
        random_between(shortest, longest).max(Duration::from_millis(1))
    }

    /// Returns the limit to which the upper bound grows.
    pub(crate) fn longest_pause(&self) -> Duration {
        self.config.retry_delay.end().saturating_mul(2).max(Duration::from_secs(1))
    }
}

fn random_between(low: Duration, high: Duration) -> Duration {
    #[cfg(test)]
    if let Some(drawn) = crate::base::testing::simulation::chance() {
        let steps = (high - low).as_micros() as u64 + 1;
        return low + Duration::from_micros(drawn % steps);
    }
    rand::random_range(low..=high)
}

/// Returns the error of a call outside a runtime.
pub(crate) fn check_runtime() -> Result<(), Error> {
    let message = "this call works inside a tokio runtime only; use `block_on` of a runtime";
    runtime::Handle::try_current().map(drop).map_err(|_| Error::new(ErrorKind::Misuse, message))
}

impl OwnerEnds for Session {
    fn owner_ended(&self, name: &Arc<str>, owner: &Owner) {
        self.visit_known(name, |entry, at| entry.owner_ended(owner, at.now));
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("quorum", &self.quorum)
            .field("stage", &self.stage())
            .finish_non_exhaustive()
    }
}

/// A handle's share in a session. When the last one is dropped, the background ends once its work is done.
#[derive(Clone, Debug)]
pub(crate) struct Handle(Arc<Share>);

#[derive(Debug)]
struct Share(Arc<Session>);

impl Handle {
    pub(crate) fn new(session: Arc<Session>) -> Handle {
        Handle(Arc::new(Share(session)))
    }

    /// Counts a lock that a request for several names holds while it waits for another one. `close` waits until the result is dropped:
    /// only the request itself can release that lock, and its future may be neither polled nor dropped.
    pub(crate) fn count_gathered(&self) -> ScopeGuard<Handle, fn(Handle)> {
        self.gathered.fetch_add(1, SeqCst);
        scopeguard::guard(self.clone(), |session| {
            session.gathered.fetch_sub(1, SeqCst);
            session.progress.notify_waiters();
        })
    }
}

impl std::ops::Deref for Handle {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.0.0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.advance(Stage::Closing);
    }
}

#[cfg(all(test, shuttle))]
mod tests;
