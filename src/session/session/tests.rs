//! Tests state that threads share, in orders that shuttle chooses. tokio's own primitives don't yield here:
//! notifying a `Notify` is one step.
//! `scripts/lab/shuttle` runs these.

use shuttle::sync::Mutex as Turn;
use shuttle::thread;
use std::ops::ControlFlow::{Break, Continue};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::backend::{Backend, BoxFuture};
use crate::base::{Failure, Lease, MasterSet, Outcome, Spread, atomic};
use crate::memory::Memory;
use crate::table::{AcquireParams, Admission, Grantee, Meaning, NewLevel, Refusal, Waiter};
use crate::wire::{Action, Call, Pending, Reply};

fn in_all_orders(test: fn()) {
    let orders = std::env::var("SHUTTLE_ORDERS").ok().and_then(|orders| orders.parse().ok()).unwrap_or(2_000);
    shuttle::check_random(test, orders);
    shuttle::check_pct(test, orders, 3);
}

/// A master that answers nothing, and records subscriptions to a lock's messages.
#[derive(Debug, Default)]
struct Silent(Turn<Vec<bool>>);

impl Silent {
    fn note(&self, channel: &str, on: bool) {
        if channel.starts_with("redisson_lock__channel") {
            lock(&self.0).push(on);
        }
    }
}

impl Backend for Silent {
    fn run(self: Arc<Self>, _: Call) -> BoxFuture<Result<Reply, Failure>> {
        Box::pin(std::future::pending())
    }

    fn run_all(self: Arc<Self>, _: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        Box::pin(std::future::pending())
    }

    fn is_younger_than(&self, _: Duration) -> bool {
        false
    }

    fn subscribe(&self, channel: &str) {
        self.note(channel, true);
    }

    fn unsubscribe(&self, channel: &str) {
        self.note(channel, false);
    }

    fn is_portable(&self) -> bool {
        true
    }

    fn close(&self) {}
}

fn session() -> (Arc<Session>, Arc<Silent>, Arc<Keys>) {
    let silent = Arc::<Silent>::default();
    let quorum = Quorum::new(vec![silent.clone() as Arc<dyn Backend>], None);
    let (config, clock) = (Config::over(&Memory::new()), Clock::with(|| 0));
    let session = Session::new(config, quorum, "me".to_owned(), clock, Vec::new());
    (session, silent, Arc::new(Keys::new("", "stock")))
}

impl Session {
    /// Enters a request into the queue. Returns its number there, and its command if it is its turn.
    fn asks(&self, keys: &Arc<Keys>, owner: &Owner) -> (u64, Option<Pending>) {
        let lease = self.timing.lease;
        self.visit(keys, |entry, at| {
            let id = self.numbers.next();
            entry.enter_alone(Waiter::new(id, owner.clone(), true, at.now)).expect("no branches");
            let ask = AcquireParams::plain(self.numbers.next(), lease);
            match entry.admit(id, ask, at) {
                Admission::Ask(pending) => (id, Some(pending)),
                _ => (id, None),
            }
        })
    }

    fn leaves_line(&self, keys: &Arc<Keys>, id: u64) {
        drop(self.visit(keys, |entry, at| entry.leave_queue(id, at.now)));
    }

    fn is_granted(&self, keys: &Arc<Keys>, id: u64, pending: &Pending) -> u64 {
        let lease = self.timing.lease;
        self.visit(keys, |entry, at| {
            let level = self.numbers.next();
            let new = NewLevel::watched(level, lease);
            let grantee = Grantee::Waiter(id);
            assert!(entry.granted(&grantee, pending, &new, Spread::default(), at).is_ok());
            level
        })
    }
}

/// In this order: 1. One visit wants the messages. 2. Another does not. 3. The second visit's wish is passed
/// on before the first one's.
#[test]
fn the_backend_is_notified_of_subscriptions_in_the_order_of_the_visits() {
    in_all_orders(|| {
        let (session, silent, keys) = session();
        let threads = [(); 2].map(|()| {
            let (session, keys) = (session.clone(), keys.clone());
            thread::spawn(move || {
                let (id, asked) = session.asks(&keys, &Owner::new());
                if let Some(pending) = asked {
                    session.visit(&keys, |entry, at| {
                        let (busy, until) =
                            (Reply::busy(Duration::from_secs(1)), at.now + Duration::from_secs(1));
                        entry.conclude(&pending, Ok(&busy), Spread::default(), at);
                        entry.refused(id, Refusal::until(until));
                    });
                }
                session.leaves_line(&keys, id);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("it panics nowhere"));
        assert!(lock(&session.table).is_empty());
        let notices = lock(&silent.0);
        let alternates = notices.iter().enumerate().all(|(at, on)| *on == (at % 2 == 0));
        assert!(alternates && notices.last() != Some(&true), "{:?}", *notices);
    });
}

/// What a child requests and gets while its last scope ends belongs to its parent, in every order of the two.
#[test]
fn nothing_is_left_to_an_owner_that_has_ended() {
    in_all_orders(|| {
        let (session, _, keys) = session();
        let parent = Owner::new();
        parent.enter();
        let child = parent.child();
        child.enter();
        let ends = {
            let child = child.clone();
            thread::spawn(move || child.leave())
        };
        let asks = {
            let (session, keys, child) = (session.clone(), keys.clone(), child.clone());
            thread::spawn(move || {
                let (id, pending) = session.asks(&keys, &child);
                let pending = pending.expect("nobody is before it");
                (session.is_granted(&keys, id, &pending), pending)
            })
        };
        ends.join().expect("it panics nowhere");
        let (level, pending) = asks.join().expect("it panics nowhere");
        session.visit(&keys, |entry, at| {
            let live = entry.live().expect("it is held");
            assert!(live.levels_of(&child).all(|level| level.owner == parent), "{entry:?}");
            let waits = session.numbers.next();
            entry.enter_alone(Waiter::new(waits, child.clone(), true, at.now)).expect("no branches");
            let again = entry.leave_queue(waits, at.now).expect("it is in the queue");
            assert!(format!("{again:?}").contains(&format!("owner: {parent:?}")), "{again:?}");
            let Continue(end) = entry.leave(pending.hold, level, Some(session.numbers.next()), at) else {
                panic!("it is held")
            };
            entry.conclude(&end, Ok(&Reply::Done), Spread::default(), at);
        });
        assert!(lock(&session.table).is_empty());
        parent.leave();
    });
}

fn runtime() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime")
}

/// The runtime of the background task ends while one thread visits a lock and another finds the task idle.
/// Afterwards only one task is driven, and no task that is gone counts as active.
#[test]
fn one_background_task_is_active_and_it_lives() {
    in_all_orders(|| {
        let (session, _, keys) = session();
        let (first, second) = (runtime(), runtime());
        {
            let _inside = first.enter();
            session.ensure_watchdog();
        }
        assert_eq!(session.active_watchdog.load(SeqCst), 1);
        {
            let _inside = second.enter();
            let ends = thread::spawn(move || drop(first));
            let visits = {
                let (session, keys) = (session.clone(), keys.clone());
                thread::spawn(move || session.visit(&keys, |_, _| ()))
            };
            let takes_over = {
                let session = session.clone();
                thread::spawn(move || session.take_over())
            };
            for thread in [ends, visits, takes_over] {
                thread.join().expect("it panics nowhere");
            }
            session.visit(&keys, |_, _| ());
            let active = session.active_watchdog.load(SeqCst);
            assert!(active > 0 && active <= session.watchdogs_started.load(SeqCst), "{active}");
        }
        // The active task runs on a live runtime; when it is dropped with that runtime, it reports its end.
        drop(second);
        assert_eq!(session.active_watchdog.load(SeqCst), 0);
    });
}

/// In this order: 1. The background sends a command. 2. Another runtime takes over, and gives the command up.
/// 3. The answer arrives. In every interleaving the end is sent again at most once, and one answer to it is
/// final.
#[test]
fn what_the_background_sent_is_answered_or_given_up_once() {
    in_all_orders(|| {
        let (session, _, keys) = session();
        let (id, pending) = session.asks(&keys, &Owner::new());
        let pending = pending.expect("nobody is before it");
        let level = session.is_granted(&keys, id, &pending);
        let end = session.visit(&keys, |entry, at| {
            let left = entry.leave(pending.hold, level, None, at);
            assert!(matches!(left, Break(Meaning::Void)));
            entry.check(at, MasterSet::NONE, &session.numbers).pop().expect("the end is due")
        });
        assert_eq!(end.call.action, Action::END);
        let answered = {
            let (session, keys) = (session.clone(), keys.clone());
            thread::spawn(move || {
                session.visit(&keys, |entry, at| {
                    entry.conclude(&end, Ok(&Reply::Done), Spread::default(), at);
                });
            })
        };
        let abandons = {
            let session = session.clone();
            thread::spawn(move || session.visit_all(|entry, at| entry.give_up_background(at.now)))
        };
        let asks = {
            let (session, keys) = (session.clone(), keys.clone());
            thread::spawn(move || session.asks(&keys, &Owner::new()))
        };
        answered.join().expect("it panics nowhere");
        abandons.join().expect("it panics nowhere");
        let (id, asked) = asks.join().expect("it panics nowhere");
        // If the end was given up before it was answered, it is sent again, and then finds nothing.
        let again = session.visit(&keys, |entry, at| entry.check(at, MasterSet::NONE, &session.numbers));
        assert!(again.len() <= 1, "{again:?}");
        for end in again {
            session.visit(&keys, |entry, at| entry.conclude(&end, Ok(&Reply::Gone), Spread::default(), at));
        }
        if let Some(pending) = asked {
            session.visit(&keys, |entry, at| {
                entry.conclude(&pending, Err(Outcome::NotRun), Spread::default(), at);
            });
        }
        session.leaves_line(&keys, id);
        assert!(lock(&session.table).is_empty());
    });
}

/// What was reported to a client of a store, and whether the lock was free by then.
#[derive(Default)]
struct Notices(Turn<Vec<(&'static str, bool)>>, atomic::AtomicBool);

impl Notices {
    fn note(&self, what: &'static str) {
        let free = self.1.load(SeqCst);
        lock(&self.0).push((what, free));
    }
}

impl Events for Notices {
    fn reconnected(&self) {}

    fn subscribed(&self, _: &str) {
        self.note("subscribed");
    }

    fn message(&self, _: &str, _: &str) {
        self.note("message");
    }

    fn not_subscribed(&self, _: &str) {}

    fn subscriptions_lost(&self) {}
}

/// Notices are delivered while the store is unlocked, so they may overtake each other. The last one is no
/// older than the release, and each makes a waiter ask again.
#[test]
fn a_client_of_a_store_is_notified_after_each_release() {
    in_all_orders(|| {
        let (memory, notices, now) = (Memory::new(), Arc::<Notices>::default(), Instant::now());
        let lease = Lease::DEFAULT;
        let client = memory.visit(|store| store.join(Arc::downgrade(&notices) as Weak<dyn Events>));
        let call = |action| Call::of("stock", "theirs:1", action);
        let acquire = call(Action::Acquire { count: 1, lease });
        memory.visit(|store| store.receive(acquire, now));
        let subscribes = {
            let memory = memory.clone();
            thread::spawn(move || {
                memory.visit(|store| store.subscribe(client, Keys::new("", "stock").channel()));
                memory.visit(|store| store.run_backlog(now));
                // The client asks after its confirmation, as a waiter does.
                memory.visit(|store| !store.live(now).is_empty())
            })
        };
        let releases = {
            let (memory, notices, end) = (memory.clone(), notices.clone(), call(Action::END));
            thread::spawn(move || {
                memory.visit(|store| {
                    notices.1.store(true, SeqCst);
                    store.receive(end, now)
                });
            })
        };
        let held = subscribes.join().expect("it panics nowhere");
        releases.join().expect("it panics nowhere");
        let notices = lock(&notices.0);
        assert!(!held || notices.last().is_some_and(|(_, free)| *free), "{:?}", *notices);
    });
}
