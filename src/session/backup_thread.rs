//! The backup thread, named `nestlock`: it stands in for a runtime that is blocked, renews its holds, and does nothing else.

use std::io;
use std::mem;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, TryLockError, Weak};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};

use crate::backend::{Link, Spare, Tasks};
use crate::base::{Moment, after, boxed, lock, telemetry};
use crate::session::session::{Session, Stage};
use crate::table::BackupRenewal;

/// After this many looks at a session without holds, the thread stops looking until the session has a hold again.
const LOOKS: u32 = 10;

/// The shortest pause between two looks. On a busy machine even a healthy runtime may not run for a moment.
const SHORTEST: Duration = Duration::from_millis(100);

/// A runtime that was silent for less than this is not reported: with a short lease the thread acts so early that the runtime may well
/// run, and only have a thousand other tasks to poll first.
const REPORTED: Duration = Duration::from_secs(1);

/// The thread that renews for the runtimes of this process.
struct Thread {
    process: u32,
    /// Closed once the thread has ended, because it could not make its runtime.
    sessions: UnboundedSender<Weak<Session>>,
}

static THREAD: std::sync::Mutex<Option<Thread>> = std::sync::Mutex::new(None);

impl Session {
    /// Makes the thread watch this session, and starts the thread if it does not run. Called when the session has a renewed hold
    /// for the first time, or again after a time without one.
    #[cold]
    pub(super) fn start_backup_thread(&self) {
        let thread = lock_for_a_moment(&THREAD);
        if self.pulse.attended.swap(true, Relaxed) {
            return;
        }
        let begun = match thread {
            Some(thread) => self.attend(thread),
            None => Err(io::Error::other("it was being started when this process was forked")),
        };
        // Not while the thread is locked: the subscriber may take locks of its own.
        if let Err(error) = begun {
            telemetry::no_backup_thread(&error);
        }
    }

    fn attend(&self, mut thread: MutexGuard<'_, Option<Thread>>) -> io::Result<()> {
        let process = std::process::id();
        if thread.as_ref().is_none_or(|thread| thread.process != process || thread.sessions.is_closed()) {
            let sessions = start()?;
            // Not dropped: in the child of a `fork`, a drop would wake the parent's thread.
            mem::forget(thread.replace(Thread { process, sessions }));
        }
        if let Some(Thread { sessions, .. }) = &*thread {
            let _ = sessions.send(self.me.clone());
        }
        Ok(())
    }

    /// Notes a renewal that the thread has made.
    fn note_renewal(&self, renewal: &BackupRenewal, sent: Moment) {
        let (keys, at) = (&renewal.call.keys, self.moment());
        let is_known = lock(&self.table).entry_of(keys).is_some();
        if let Some(lease) = renewal.call.action.lease().filter(|_| is_known) {
            self.visit_once(at, keys, |entry, at| entry.renewed_by_backup(renewal.hold, lease, sent, at));
        }
    }
}

/// Locks a mutex that others lock only for a moment: the longest thing they do under it is to start a thread.
///
/// This waits for the others. Otherwise: 1. Two sessions have their first holds at the same moment. 2. One of them leaves this to its next
/// visit. 3. Its runtime blocks, so there is no next visit, and nobody renews. But it does not wait for ever: the child of a `fork` may have
/// a copy that was locked by a thread that the child does not have.
fn lock_for_a_moment<T>(mutex: &std::sync::Mutex<T>) -> Option<MutexGuard<'_, T>> {
    // The attempts are counted and not timed: while the process is stopped, nobody can unlock it.
    for _ in 0..1000 {
        match mutex.try_lock() {
            Ok(locked) => return Some(locked),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(50)),
        }
    }
    None
}

/// Starts the thread. It is never joined, since a `Locks` may be dropped in async code, and the last one of a process in a destructor.
fn start() -> io::Result<UnboundedSender<Weak<Session>>> {
    let (sessions, begun) = unbounded_channel();
    let runs = move || match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(boxed(run(begun))),
        Err(error) => telemetry::no_backup_thread(&error),
    };
    std::thread::Builder::new().name("nestlock".to_owned()).spawn(runs)?;
    Ok(sessions)
}

/// Watches each session on a task of its own, so that a session whose servers don't answer delays no other, and a panic ends nothing else.
async fn run(mut sessions: UnboundedReceiver<Weak<Session>>) {
    while let Some(session) = sessions.recv().await {
        drop(tokio::spawn(boxed(async move {
            let mut watch = Watch::default();
            while let Some(pause) = watch.look(&session).await {
                tokio::time::sleep(pause).await;
            }
        })));
    }
}

/// What the thread knows about a session.
#[derive(Default)]
struct Watch {
    /// The watchdog's beats at the last look, and when they last changed.
    beats: Option<(u64, Instant)>,
    /// Whether answers were unread at the last look.
    unread: bool,
    /// How many looks in a row found no hold.
    idle: u32,
    /// What was logged since the runtime last ran.
    logged: Option<Logged>,
    links: Vec<(Spare, Link)>,
}

#[derive(PartialEq)]
enum Logged {
    Begun,
    GivenUp,
}

impl Watch {
    /// Returns when to look again, or `None` if the session is over or has had no hold for some time.
    async fn look(&mut self, session: &Weak<Session>) -> Option<Duration> {
        let session = session.upgrade().filter(|session| session.stage() == Stage::Open)?;
        let lease = session.config.lease.duration();
        let good = lease.saturating_sub(session.config.drift.of(lease));
        // Long enough for a running watchdog to look in between.
        let pause = (good / 6).max(SHORTEST);
        let (now, beats) = (Instant::now(), session.pulse.beats.load(Relaxed));
        // Answers that stay unread may be those of a blocked worker: 1. A task wakes the task that reads answers, which is then the next
        // to run in its worker. 2. The first task blocks. 3. No other worker may steal the reader, though the watchdog runs in one of
        // them. By chance answers may be unread at two looks in a row, but then no renewal is late.
        let unread = session.quorum.is_unread();
        let stuck = std::mem::replace(&mut self.unread, unread) && unread;
        match self.beats {
            Some((before, since)) if before == beats || stuck => {
                let left = if before == beats { good * 2 / 3 } else { good / 2 };
                let silent = now.saturating_duration_since(since);
                // Twice the pause, since otherwise: 1. A machine is so busy that connecting takes longer than a pause. 2. Each look's
                // attempt ends before it is connected, and nothing is ever renewed.
                let is_late = self.renew_due(&session, left, silent, after(now, 2 * pause)).await;
                // If only answers are unread, the runtime counts as silent only while its renewals are late, since a busy client
                // always has unread answers.
                if before == beats || is_late {
                    self.beats = Some((beats, since));
                } else {
                    (self.beats, self.logged) = (Some((beats, now)), None);
                }
            }
            _ => {
                (self.beats, self.logged) = (Some((beats, now)), None);
                self.links.clear();
            }
        }
        {
            let table = lock(&session.table);
            self.idle = if table.is_empty() { self.idle + 1 } else { 0 };
            if self.idle >= LOOKS {
                session.pulse.attended.store(false, Relaxed);
                return None;
            }
        }
        // Asks for a beat before the next look. On a runtime with several workers this may be all that is missing: one worker has
        // received an event and is blocked, and the others sleep until something wakes them.
        session.nudge.notify_waiters();
        Some(pause.saturating_sub(now.elapsed()))
    }

    /// Renews the holds that are good for no longer than `left`, unless the time for that is used up, and returns whether there were any.
    /// Called when the watchdog has not looked for as long as `silent`, though it was asked to.
    async fn renew_due(
        &mut self,
        session: &Arc<Session>,
        left: Duration,
        silent: Duration,
        until: Instant,
    ) -> bool {
        if session.pulse.paused.load(Relaxed) {
            return true;
        }
        if silent >= session.config.blocked_for {
            let held = lock(&session.table).held();
            if held > 0 && self.logged != Some(Logged::GivenUp) {
                self.logged = Some(Logged::GivenUp);
                telemetry::blocked_for_too_long(silent, held);
            }
            self.links.clear();
            // A runtime that renews in time runs. Otherwise: 1. A runtime was blocked for too long. 2. It runs again, and is busy:
            // answers are unread at each look, so that it still counts as blocked. 3. It is blocked once more, and nobody renews for it.
            return lock(&session.table).has_late(left, session.moment().now);
        }
        let at = session.moment();
        let longest = until.saturating_duration_since(Instant::now());
        let due = lock(&session.table).begin_backup_renewals(left, longest, at.now);
        if due.is_empty() {
            return false;
        }
        let (due, renewed) = (due.len(), self.renew(session, due.into(), until).await);
        if self.logged.is_none() && silent >= REPORTED {
            self.logged = Some(Logged::Begun);
            telemetry::blocked(silent, due, renewed);
        }
        true
    }

    /// Renews these holds. Returns how many were renewed.
    async fn renew(&mut self, session: &Arc<Session>, due: Arc<[BackupRenewal]>, until: Instant) -> usize {
        let mut parts: Vec<(usize, Spare, Vec<usize>)> = Vec::new();
        for (at, renewal) in due.iter().enumerate() {
            for (master, spare) in session.quorum.spares(&renewal.call.keys) {
                match parts.iter_mut().find(|(index, known, _)| *index == master && known.is_same(&spare)) {
                    Some((_, _, part)) => part.push(at),
                    None => parts.push((master, spare, vec![at])),
                }
            }
        }
        let mut links = mem::take(&mut self.links);
        let mut asked = Tasks::new();
        for (_, spare, part) in parts {
            let known = links.iter().position(|(known, _)| known.is_same(&spare));
            let link = known.map(|at| links.swap_remove(at).1);
            asked.spawn(ask(session.clone(), due.clone(), spare, link, part, until));
        }
        // For each hold: how many masters have renewed it, and the moment from which the renewal counts.
        let mut votes: Vec<(usize, Option<Moment>)> = vec![(0, None); due.len()];
        let majority = session.quorum.size() / 2 + 1;
        while let Some(answered) = asked.join_next().await {
            let Some(Some(Answered { spare, link, sent, renewed })) = answered else { continue };
            // A connection that has ended is replaced, if it is still needed.
            let is_good = !renewed.is_empty();
            // The master may be connected to another server by now, and then only that server's answers count.
            for at in renewed.into_iter().filter(|_| spare.is_current()) {
                let (count, since) = &mut votes[at];
                *count += 1;
                let sent = since.filter(|since| since.now < sent.now).unwrap_or(sent);
                *since = Some(sent);
                if *count == majority {
                    session.note_renewal(&due[at], sent);
                }
            }
            if is_good {
                self.links.push((spare, link));
            }
        }
        votes.into_iter().filter(|(count, _)| *count >= majority).count()
    }
}

struct Answered {
    spare: Spare,
    link: Link,
    /// The moment before the renewals were sent.
    sent: Moment,
    renewed: Vec<usize>,
}

/// Asks one server to renew those of the holds that it keeps. Returns `None` if the server has not answered in time.
async fn ask(
    session: Arc<Session>,
    due: Arc<[BackupRenewal]>,
    spare: Spare,
    link: Option<Link>,
    part: Vec<usize>,
    until: Instant,
) -> Option<Answered> {
    let asked = async {
        let link = match link {
            Some(link) => {
                spare.check_master().await?;
                link
            }
            None => spare.connect().await?,
        };
        let sent = session.moment();
        let calls: Vec<_> = part.iter().map(|at| due[*at].call.clone()).collect();
        let answers = spare.renew(&link, &calls, until).await;
        let renewed = part.iter().zip(answers).filter(|(_, renewed)| *renewed).map(|(at, _)| *at).collect();
        Ok::<_, crate::Error>(Answered { spare: spare.clone(), link, sent, renewed })
    };
    timeout_at(until, asked).await.ok()?.ok()
}

#[cfg(test)]
mod tests;
