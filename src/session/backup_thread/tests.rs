use std::future::pending;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, mpsc};

use tokio::time::advance;

use super::*;
use crate::backend::{Backend, BoxFuture};
use crate::base::{Drift, Failure, Lease, Spread};
use crate::config::Config;
use crate::memory::Memory;
use crate::owner::Owner;
use crate::quorum::Quorum;
use crate::session::clock::Clock;
use crate::table::{AcquireParams, Admission, Grantee, NewLevel, Waiter};
use crate::wire::keys::Keys;
use crate::wire::{Call, Reply};

/// If two runtimes take their first locks at the same moment, the thread has to attend both.
#[test]
fn a_session_that_begins_while_another_one_does_waits_for_it() {
    let mutex = Mutex::new(());
    let (locked, is_locked) = mpsc::channel();
    let (ready, is_ready) = mpsc::channel();
    std::thread::scope(|scope| {
        let mutex = &mutex;
        scope.spawn(move || {
            let held = mutex.lock().unwrap();
            locked.send(()).unwrap();
            is_ready.recv().unwrap();
            drop(held);
        });
        is_locked.recv().unwrap();
        let waits = scope.spawn(|| {
            ready.send(()).unwrap();
            lock_for_a_moment(mutex).is_some()
        });
        assert!(waits.join().unwrap());
    });
}

/// In the child of a fork, no thread unlocks it.
#[test]
fn what_nobody_unlocks_is_not_waited_for_for_ever() {
    let mutex = Mutex::new(());
    let _held = mutex.lock().unwrap();
    std::thread::scope(|scope| {
        assert!(scope.spawn(|| lock_for_a_moment(&mutex).is_none()).join().unwrap());
    });
}

/// The thread ends if it can't make its runtime. By the next session, what it needs may be available.
#[tokio::test]
async fn a_thread_that_has_ended_is_started_again_for_the_next_session() {
    let watched = Watched::begin();
    let (sessions, _) = unbounded_channel();
    let threads = Mutex::new(Some(Thread { process: std::process::id(), sessions }));
    watched.session.attend(threads.lock().unwrap()).unwrap();
    let is_closed = || threads.lock().unwrap().as_ref().unwrap().sessions.is_closed();
    assert!(!is_closed());
    watched.session.attend(threads.lock().unwrap()).unwrap();
    assert!(!is_closed());
}

/// A master whose unread answers a test sets.
#[derive(Debug, Default)]
struct Master {
    is_unread: AtomicBool,
    /// Whether a second connection to the master was requested. There is none.
    asked: AtomicBool,
}

impl Backend for Master {
    fn run(self: Arc<Self>, _: Call) -> BoxFuture<Result<Reply, Failure>> {
        Box::pin(pending())
    }

    fn run_all(self: Arc<Self>, _: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        Box::pin(pending())
    }

    fn is_unread(&self) -> bool {
        self.is_unread.load(Relaxed)
    }

    fn spare(&self, _: &Keys) -> Option<Spare> {
        self.asked.store(true, Relaxed);
        None
    }

    fn is_younger_than(&self, _: Duration) -> bool {
        false
    }

    fn subscribe(&self, _: &str) {}

    fn unsubscribe(&self, _: &str) {}

    fn close(&self) {}
}

/// A session with one hold, and the thread's watch over it. The test stands in for the watchdog.
struct Watched {
    session: Arc<Session>,
    master: Arc<Master>,
    watch: Watch,
    hold: u64,
}

impl Watched {
    fn begin() -> Watched {
        Watched::with(Lease::DEFAULT, 10 * Lease::DEFAULT.duration())
    }

    fn with(lease: Lease, blocked_for: Duration) -> Watched {
        let master = Arc::<Master>::default();
        let quorum = Quorum::new(vec![master.clone() as Arc<dyn Backend>], None);
        let (mut config, clock) = (Config::over(&Memory::new()), Clock::with(|| 0));
        (config.lease, config.blocked_for) = (lease, blocked_for);
        let session = Session::new(config, quorum, "me".to_owned(), clock, Vec::new());
        let lease = session.timing.lease;
        // Not `visit`, which starts the watchdog.
        let (hold, _) =
            session.visit_once(session.moment(), &Arc::new(Keys::new("", "stock")), |entry, at| {
                let id = session.numbers.next();
                assert!(entry.enter_alone(Waiter::new(id, Owner::new(), false, at.now)).is_ok());
                let ask = AcquireParams::plain(session.numbers.next(), lease);
                let Admission::Ask(pending) = entry.admit(id, ask, at) else { panic!("it is its turn") };
                let new = NewLevel::watched(session.numbers.next(), lease);
                assert!(entry.granted(&Grantee::Waiter(id), &pending, &new, Spread::default(), at).is_ok());
                pending.hold
            });
        Watched { session, master, watch: Watch::default(), hold }
    }

    /// Renews the hold, as its watchdog would.
    fn renew(&self) {
        let at = self.session.moment();
        self.session.visit_once(at, &Arc::new(Keys::new("", "stock")), |entry, at| {
            entry.renewed_by_backup(self.hold, self.session.timing.lease, at, at);
        });
    }

    /// Lets the thread look once, after the watchdog did if `beats`. Returns whether it stands in.
    async fn look(&mut self, beats: bool, is_unread: bool) -> bool {
        if beats {
            self.session.pulse.beats.fetch_add(1, Relaxed);
        }
        self.master.is_unread.store(is_unread, Relaxed);
        assert!(self.watch.look(&Arc::downgrade(&self.session)).await.is_some());
        self.master.asked.swap(false, Relaxed)
    }
}

/// Even on a healthy runtime, answers are unread for a moment, and the thread may look just then.
#[tokio::test(start_paused = true)]
async fn answers_that_are_unread_at_one_look_are_no_reason_to_stand_in() {
    let mut watched = Watched::begin();
    advance(watched.session.config.lease.duration() * 3 / 5).await;
    for is_unread in [true, false, true, false, true] {
        assert!(!watched.look(true, is_unread).await);
    }
    assert!(watched.look(true, true).await, "unread at two looks in a row");
}

/// A watchdog that runs renews every third of a lease. So two looks that find answers unread by chance change
/// nothing while its renewals are in time.
#[tokio::test(start_paused = true)]
async fn unread_answers_are_no_reason_to_stand_in_until_a_renewal_is_late_too() {
    let mut watched = Watched::begin();
    let lease = watched.session.config.lease.duration();
    advance(lease * 2 / 5).await;
    for _ in 0..4 {
        assert!(!watched.look(true, true).await);
    }
    assert!(watched.look(false, true).await, "the watchdog has not looked");
    advance(lease / 5).await;
    assert!(watched.look(true, true).await, "the renewal is late");
}

/// A busy client has unread answers at every look. That is no silence while its renewals are in time.
#[tokio::test(start_paused = true)]
async fn unread_answers_do_not_use_up_the_time_for_which_a_runtime_may_be_blocked() {
    let lease = Lease::DEFAULT.duration();
    let mut watched = Watched::with(Lease::DEFAULT, lease / 3);
    for _ in 0..3 {
        assert!(!watched.look(true, true).await);
        advance(lease / 6).await;
    }
    assert!(watched.look(false, true).await, "now it is blocked");
    assert!(watched.watch.logged != Some(Logged::GivenUp));
}

/// In this order: 1. A runtime was blocked for too long. 2. It runs again, renews, and always has unread
/// answers. 3. It is blocked again.
#[tokio::test(start_paused = true)]
async fn a_busy_runtime_that_was_blocked_for_too_long_is_stood_in_for_when_it_is_blocked_again() {
    let lease = Lease::DEFAULT.duration();
    let mut watched = Watched::with(Lease::DEFAULT, lease / 2);
    for stands_in in [false, false, true, false] {
        assert_eq!(watched.look(false, true).await, stands_in);
        advance(lease / 5).await;
    }
    assert!(watched.watch.logged == Some(Logged::GivenUp));
    watched.renew();
    for _ in 0..2 {
        assert!(!watched.look(true, true).await);
        advance(lease / 5).await;
    }
    assert!(watched.watch.logged.is_none());
    assert!(watched.look(false, true).await);
}

/// Before the first look, the watchdog was not asked for a sign of life.
#[tokio::test(start_paused = true)]
async fn the_thread_stands_in_after_a_second_look_without_a_sign_of_life_and_stops_at_the_next_sign() {
    let mut watched = Watched::begin();
    advance(watched.session.config.lease.duration() * 2 / 5).await;
    assert!(!watched.look(false, false).await);
    for _ in 0..2 {
        assert!(watched.look(false, false).await);
        assert!(!watched.look(true, false).await);
    }
}

/// With a lease of less than a few seconds the thread looks again before a busy runtime has polled the watchdog.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_silent_for_a_moment_is_stood_in_for_but_not_reported() {
    let lease = Duration::from_secs(3);
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    let mut watched = Watched::with(Lease::new("lease", lease, drift).unwrap(), 10 * lease);
    advance(lease * 2 / 5).await;
    assert!(!watched.look(true, false).await);
    advance(lease / 6).await;
    assert!(watched.look(false, false).await);
    assert!(watched.watch.logged.is_none(), "it may only be busy");
    advance(lease / 6).await;
    assert!(watched.look(false, false).await);
    assert!(watched.watch.logged == Some(Logged::Begun));
}
