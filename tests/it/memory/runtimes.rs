//! One `Locks` for many runtimes, each of which may end at any time. `#[tokio::test]` makes such a runtime for each test. These tests run
//! in real time, since each runtime has its own clock.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use nestlock::{Locks, Loss, Memory, Mutex, Owner};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use super::SECOND;
use crate::support::{enlisted, soon};

/// A static, as a program under test declares it.
static LOCKS: LazyLock<Locks> = LazyLock::new(Locks::in_memory);

/// Longer than any test: a lock that becomes free in time was released, and did not expire.
const LONG: Duration = Duration::from_secs(600);

/// Does what such tests do: some leave waiters behind, some leave guards, and all get the lock in between.
async fn visit(stock: &Mutex, inside: &'static AtomicUsize, random: &mut StdRng) {
    for _ in 0..random.random_range(1..5) {
        let guard = soon("the lock", stock.lock()).await.unwrap();
        assert_eq!(inside.fetch_add(1, SeqCst), 0, "two were inside at once");
        yield_now().await;
        let inner = soon("a re-entry", stock.lock()).await.unwrap();
        inside.fetch_sub(1, SeqCst);
        drop(inner);
        match random.random_range(0..3) {
            0 => guard.release().await.unwrap(),
            1 => drop(guard),
            // The guard is dropped when no future runs any more.
            _ => drop(tokio::spawn(async move {
                let _guard = guard;
                for _ in 0..3 {
                    yield_now().await;
                }
            })),
        }
        // Nobody awaits these tasks: they end with the runtime while they sleep, ask or hold.
        for _ in 0..random.random_range(0..3) {
            let stock = stock.clone();
            drop(tokio::spawn(async move { stock.run(|_| yield_now()).await }));
        }
    }
}

macro_rules! each_in_a_runtime_of_its_own {
    ($($name:ident)*) => {$(
        #[tokio::test]
        async fn $name() {
            static INSIDE: AtomicUsize = AtomicUsize::new(0);
            let stock = LOCKS.mutex(concat!("stock of ", stringify!($name)));
            visit(&stock, &INSIDE, &mut StdRng::from_rng(&mut rand::rng())).await;
            // All tests also want one common lock.
            static ALL: &AtomicUsize = &ALL_INSIDE;
            visit(&LOCKS.mutex("one for all"), ALL, &mut StdRng::from_rng(&mut rand::rng())).await;
        }
    )*};
}

static ALL_INSIDE: AtomicUsize = AtomicUsize::new(0);

each_in_a_runtime_of_its_own! {
    many_tests_share_a_static_one many_tests_share_a_static_two many_tests_share_a_static_three
    many_tests_share_a_static_four many_tests_share_a_static_five many_tests_share_a_static_six
    many_tests_share_a_static_seven many_tests_share_a_static_eight
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn runtime(random: &mut StdRng) -> Runtime {
    match random.random() {
        true => one_thread(),
        false => Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
    }
}

/// Returns a `Locks` whose leases outlive every test, and whose first runtime has ended.
fn long_lived() -> Locks {
    one_thread().block_on(Locks::builder(Memory::new()).lease(LONG).connect()).unwrap()
}

#[test]
fn runtimes_that_come_and_go_leave_nobody_waiting() {
    static INSIDE: AtomicUsize = AtomicUsize::new(0);
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let locks = long_lived();
    let threads: Vec<_> = (0..4)
        .map(|at| {
            let (stock, mut random) = (locks.mutex("stock"), StdRng::seed_from_u64(seed ^ at));
            std::thread::spawn(move || {
                for _ in 0..100 {
                    let runtime = runtime(&mut random);
                    runtime.block_on(visit(&stock, &INSIDE, &mut random));
                    match random.random() {
                        true => drop(runtime),
                        false => runtime.shutdown_background(),
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    one_thread().block_on(async {
        soon("the lock", locks.mutex("stock").lock()).await.unwrap().release().await.unwrap();
        soon("the close", locks.close()).await.unwrap();
    });
}

/// The runtime of the background task exists but is not driven, as between two calls of `block_on`.
#[test]
fn a_runtime_that_is_not_driven_keeps_nobody_waiting() {
    let first = one_thread();
    let locks = first.block_on(Locks::builder(Memory::new()).lease(LONG).connect()).unwrap();
    let stock = locks.mutex("stock");
    for round in 0..3 {
        drop(first.block_on(stock.lock()).unwrap());
        one_thread().block_on(async {
            let tried = soon("the attempt", stock.try_lock().owner(&Owner::new())).await.unwrap();
            tried.expect("its release is queued").release().await.unwrap();
        });
        let guard = first.block_on(stock.lock()).unwrap();
        // The thread waits for the lock before the guard is dropped.
        let waits = std::thread::spawn({
            let stock = stock.clone();
            move || {
                one_thread().block_on(async { soon("the lock", stock.lock()).await.unwrap().release().await })
            }
        });
        if round > 0 {
            std::thread::sleep(SECOND / 10);
        }
        drop(guard);
        waits.join().unwrap().unwrap();
    }
    // When the first runtime is driven again, its background task finds that another one does the work.
    first.block_on(async {
        soon("the lock", stock.lock()).await.unwrap().release().await.unwrap();
        soon("the close", locks.close()).await.unwrap();
    });
}

#[test]
fn a_close_goes_on_though_the_runtime_of_the_background_is_not_driven() {
    let first = one_thread();
    let builder = Locks::builder(Memory::new()).lease(LONG).node_timeout(LONG);
    let locks = first.block_on(builder.connect()).unwrap();
    drop(first.block_on(locks.mutex("stock").lock()).unwrap());
    one_thread().block_on(async { soon("the close", locks.close()).await.unwrap() });
}

#[test]
fn a_hold_is_renewed_though_its_runtime_is_not_driven() {
    let first = one_thread();
    let options = Locks::builder(Memory::new()).lease(6 * SECOND);
    let locks = first.block_on(options.connect()).unwrap();
    let guard = first.block_on(locks.mutex("held").lock()).unwrap();
    one_thread().block_on(async {
        let end = tokio::time::Instant::now() + 7 * SECOND;
        while tokio::time::Instant::now() < end {
            locks.mutex("other").run(|_| tokio::time::sleep(SECOND / 2)).await.unwrap();
        }
    });
    assert!(!guard.is_lost(), "{:?}", guard.loss());
    first.block_on(guard.release()).unwrap();
}

#[test]
fn a_hold_is_renewed_by_whichever_runtime_uses_its_locks() {
    let options = Locks::builder(Memory::new()).lease(6 * SECOND);
    let first = one_thread();
    let locks = first.block_on(options.connect()).unwrap();
    let guard = first.block_on(locks.mutex("held").lock()).unwrap();
    let begun = std::time::Instant::now();
    drop(first);
    let ends: Vec<_> = (0..4)
        .map(|_| {
            one_thread().block_on(async {
                // Any request for a lock of the same `Locks` is enough.
                locks.mutex("other").run(|_| tokio::time::sleep(5 * SECOND / 2)).await.unwrap();
                guard.valid_until()
            })
        })
        .collect();
    assert!(begun.elapsed() > 6 * SECOND && !guard.is_lost(), "{:?}", guard.loss());
    assert!(ends.windows(2).all(|two| two[0] < two[1]), "{ends:?}");
    one_thread().block_on(guard.release()).unwrap();
}

#[test]
fn a_hold_that_no_runtime_renews_is_lost_at_its_deadline() {
    let options = Locks::builder(Memory::new()).lease(SECOND);
    let first = one_thread();
    let locks = first.block_on(options.connect()).unwrap();
    let guard = first.block_on(locks.mutex("stock").lock()).unwrap();
    drop(first);
    std::thread::sleep(SECOND);
    assert_eq!(guard.loss(), Some(Loss::Expired));
    one_thread().block_on(async {
        assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
        let next = soon("the lock", locks.mutex("stock").lock().owner(&Owner::new())).await.unwrap();
        assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Expired));
        next.release().await.unwrap();
    });
}

#[test]
fn a_guard_dropped_after_its_runtime_is_released_by_the_next_one() {
    let locks = long_lived();
    let stock = locks.mutex("stock");
    for round in 0..20 {
        let first = one_thread();
        let guard = first.block_on(stock.lock().owner(&Owner::new())).unwrap();
        match round % 3 {
            0 => {
                drop(first);
                drop(guard);
            }
            1 => {
                drop(guard);
                drop(first);
            }
            // The runtime ends while a task of its own has the guard.
            _ => {
                first.spawn(async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                });
                first.block_on(yield_now());
                drop(first);
            }
        }
        one_thread().block_on(async {
            soon("the lock", stock.lock()).await.unwrap().release().await.unwrap();
        });
    }
}

/// The runtime of the background ends while a waiter on another runtime sleeps, and no other request arrives.
#[test]
fn a_waiter_goes_on_when_the_runtime_of_the_background_ends() {
    for round in 0..20 {
        let locks = long_lived();
        let stock = locks.mutex("stock");
        let (first, second) = (one_thread(), one_thread());
        let guard = first.block_on(stock.lock()).unwrap();
        let waiter = {
            let _inside = second.enter();
            enlisted(&stock)
        };
        let (sleeps, asleep) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            second.block_on(async {
                let task = tokio::spawn(waiter);
                for _ in 0..10 {
                    yield_now().await;
                }
                sleeps.send(()).unwrap();
                drop(soon("the lock", task).await.unwrap().unwrap());
            });
        });
        asleep.recv().unwrap();
        // If the guard is dropped first, its release is under way when the runtime ends.
        if round % 2 == 0 {
            drop(first);
            drop(guard);
        } else {
            drop(guard);
            drop(first);
        }
        waiting.join().unwrap();
    }
}

/// Calls on one runtime get an answer although the runtime of the background ends.
#[test]
fn a_release_and_a_close_go_on_when_the_runtime_of_the_background_ends() {
    for _ in 0..20 {
        let locks = long_lived();
        let first = one_thread();
        let guards: Vec<_> =
            (0..10).map(|at| first.block_on(locks.mutex(format!("stock:{at}")).lock()).unwrap()).collect();
        let closing = std::thread::spawn({
            let locks = locks.clone();
            move || {
                one_thread().block_on(async {
                    for guard in guards.into_iter() {
                        soon("a release", guard.release()).await.unwrap();
                    }
                    soon("the close", locks.close()).await.unwrap();
                });
            }
        });
        drop(first);
        closing.join().unwrap();
    }
}

/// Otherwise another `Locks` of the same store, as in the next test of a binary, would wait for the end of the lease.
#[test]
fn a_guard_dropped_with_its_runtime_frees_the_lock_for_others_of_the_store() {
    for drops_guard_first in [true, false] {
        let store = Memory::new();
        let runtime = one_thread();
        let (locks, guard) = runtime.block_on(async {
            let locks = Locks::builder(&store).connect().await.unwrap();
            let guard = locks.mutex("stock").lock().await.unwrap();
            (locks, guard)
        });
        if drops_guard_first {
            drop(guard);
            drop(runtime);
        } else {
            drop(runtime);
            drop(guard);
        }
        one_thread().block_on(async {
            let theirs = Locks::builder(&store).connect().await.unwrap().mutex("stock");
            assert!(theirs.try_lock().await.unwrap().is_some(), "guard first: {drops_guard_first}");
            // The first `Locks` goes on in this runtime, and its end is sent again.
            let ours = locks.mutex("stock").lock();
            soon("the lock", ours).await.unwrap().release().await.unwrap();
        });
    }
}

/// After a clock was paused anywhere in the process, tokio's clock doesn't work once tokio's own thread-locals are gone.
#[test]
fn a_guard_may_be_dropped_by_a_thread_that_ends() {
    thread_local! {
        // This thread-local is made before tokio's, so it is dropped after them.
        static KEPT: std::cell::RefCell<Option<nestlock::Guard>> = const { std::cell::RefCell::new(None) };
    }
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(yield_now());
    let stock = long_lived().mutex("stock");
    let ours = stock.clone();
    let thread = std::thread::spawn(move || {
        KEPT.take();
        KEPT.set(Some(one_thread().block_on(ours.lock()).unwrap()));
    });
    thread.join().unwrap();
    one_thread().block_on(async { soon("the lock", stock.lock()).await.unwrap().release().await.unwrap() });
}

/// The release waits for a renewal, and the task that sent the renewal is gone.
#[test]
fn a_release_after_a_command_of_a_runtime_that_ends_goes_on() {
    let store = Memory::new();
    let options = Locks::builder(&store).lease(9 * SECOND).node_timeout(60 * SECOND);
    let first = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stock = first.block_on(options.connect()).unwrap().mutex("stock");
    one_thread().block_on(async {
        let guard = stock.lock().await.unwrap();
        store.faults().stall(Duration::MAX);
        // This is a third of the lease, and the time that sending a renewal takes.
        tokio::time::sleep(3 * SECOND + SECOND / 2).await;
        let release = tokio::spawn(guard.release());
        yield_now().await;
        std::thread::spawn(move || drop(first)).join().unwrap();
        store.faults().stall(Duration::ZERO);
        soon("the release", release).await.unwrap().unwrap();
    });
}
