//! The machine sleeps. What waits for the end of a lease happens soon after it wakes, before anybody calls
//! anything.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::Locks;
use crate::backend::testing::TestServer;
use crate::session::clock::Clock;
use crate::table::{LockEntry, Waiter};
use crate::{ErrorKind, Loss, Memory};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// How late that may happen, by a clock that stands still while any task can run.
const SOON: Duration = Duration::from_secs(2);

/// A clock of the test's own, moved on by `sleeps`.
macro_rules! clock {
    ($slept:ident) => {
        static $slept: AtomicU64 = AtomicU64::new(0);
    };
}

macro_rules! connect {
    ($builder:expr, $slept:ident) => {
        $builder.connect_by(Clock::with(|| $slept.load(SeqCst) as i64 * 1_000_000_000)).await.unwrap()
    };
}

fn sleeps(slept: &AtomicU64, length: Duration) {
    slept.fetch_add(length.as_secs(), SeqCst);
}

#[tokio::test(start_paused = true)]
async fn an_awaited_loss_is_reported_soon_after_the_machine_wakes() {
    clock!(SLEPT);
    let locks = connect!(Locks::builder(Memory::new()), SLEPT);
    let (watched, fixed) = (locks.mutex("watched"), locks.mutex("fixed"));
    let (watched, fixed) = (watched.lock().await.unwrap(), fixed.lock().fixed_lease(HOUR).await.unwrap());
    let watched = tokio::spawn(async move { (watched.lost().await, Instant::now()) });
    let fixed = tokio::spawn(async move { (fixed.lost().await, Instant::now()) });
    sleep(SECOND / 2).await;

    // Twice the first one's lease, and a small part of the second one's.
    sleeps(&SLEPT, MINUTE);
    let woke = Instant::now();
    let (loss, at) = watched.await.unwrap();
    assert!(loss == Loss::Suspended && at < woke + SOON, "{loss:?} after {:?}", at - woke);
    sleep(MINUTE).await;
    assert!(!fixed.is_finished());

    sleeps(&SLEPT, 2 * HOUR);
    let woke = Instant::now();
    let (loss, at) = fixed.await.unwrap();
    assert!(loss == Loss::Suspended && at < woke + SOON, "{loss:?} after {:?}", at - woke);
}

/// After a sleep, the timeline of holds is ahead of tokio's clock. If a pause were compared with an instant
/// of tokio's clock, it would look long past, and the next one would be as short as the first.
#[tokio::test(start_paused = true)]
async fn pauses_grow_also_once_the_machine_has_slept() {
    clock!(SLEPT);
    let stores: Vec<_> = (0..3).map(|_| Memory::new()).collect();
    let builder = |stores: &[Memory]| {
        let masters = Locks::quorum(stores);
        masters.lease(HOUR).poll_interval(HOUR).retry_delay(SECOND / 100..=SECOND / 100)
    };
    let locks = connect!(builder(&stores), SLEPT);
    sleeps(&SLEPT, MINUTE);
    let [first, second] = [&stores[..1], &stores[1..2]].map(builder);
    let (first, second) = (first.connect().await.unwrap(), second.connect().await.unwrap());
    let split = (first.mutex("stock").lock().await.unwrap(), second.mutex("stock").lock().await.unwrap());
    let waiting = tokio::spawn(locks.mutex("stock").lock());
    sleep(100 * SECOND).await;
    let (one, other) = tokio::join!(split.0.release(), split.1.release());
    one.and(other).unwrap();
    let guard = waiting.await.unwrap().unwrap();
    // The field of the hold has a number, and each attempt uses up a few numbers.
    let number: u64 = guard.hold_id().rsplit_once(':').unwrap().1.parse().unwrap();
    assert!((100..2_000).contains(&number), "{number}");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_drops_its_work_soon_after_the_machine_wakes() {
    clock!(SLEPT);
    let locks = connect!(Locks::builder(Memory::new()), SLEPT);
    let stock = locks.mutex("stock");
    for fixed in [false, true] {
        let stock = stock.clone();
        let run = tokio::spawn(async move {
            let work = std::future::pending::<()>();
            match fixed {
                true => stock.lock().fixed_lease(HOUR).run(|_| work).await,
                false => stock.run(|_| work).await,
            }
        });
        sleep(SECOND / 2).await;
        sleeps(&SLEPT, 2 * HOUR);
        let woke = Instant::now();
        let error = run.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::Suspended)));
        assert!(woke.elapsed() < SOON, "{:?}", woke.elapsed());
    }
}

/// Nobody awaits the loss: the background notices it.
#[tokio::test(start_paused = true)]
async fn the_background_ends_what_is_over_soon_after_the_machine_wakes() {
    clock!(SLEPT);
    let locks = connect!(Locks::builder(Memory::new()), SLEPT);
    let guard = locks.mutex("stock").lock().fixed_lease(HOUR).await.unwrap();
    let lives = || locks.handle.table(|table, _| table.entry("stock").unwrap().live().is_some());
    sleep(SECOND / 2).await;
    sleeps(&SLEPT, 2 * HOUR);
    assert!(lives());
    sleep(SOON).await;
    assert!(!lives());
    assert_eq!(guard.loss(), Some(Loss::Suspended));
}

/// Only the future itself looks at the time, since the runtime of the background has ended.
#[test]
fn an_awaited_loss_needs_no_background_to_be_reported_after_the_machine_wakes() {
    clock!(SLEPT);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let guard = first.block_on(async {
        let server = TestServer::start(&[]).await;
        let locks = connect!(Locks::builder(server.url("")), SLEPT);
        locks.mutex("stock").lock().fixed_lease(HOUR).await.unwrap()
    });
    drop(first);
    runtime().block_on(async {
        let lost = tokio::spawn(async move { guard.lost().await });
        tokio::task::yield_now().await;
        sleeps(&SLEPT, 2 * HOUR);
        let loss = timeout(MINUTE, lost).await.expect("it sleeps on for the rest of the lease");
        assert_eq!(loss.unwrap(), Loss::Suspended);
    });
}

#[tokio::test]
async fn an_awaited_loss_over_a_server_is_reported_soon_after_the_machine_wakes() {
    clock!(SLEPT);
    let server = TestServer::start(&[]).await;
    let locks = connect!(Locks::builder(server.url("")).lease(10 * MINUTE), SLEPT);
    let (watched, fixed) = (locks.mutex("watched"), locks.mutex("fixed"));
    let (watched, fixed) = (watched.lock().await.unwrap(), fixed.lock().fixed_lease(HOUR).await.unwrap());
    let lost = tokio::spawn(async move { (watched.lost().await, fixed.lost().await) });
    tokio::task::yield_now().await;
    sleeps(&SLEPT, 2 * HOUR);
    let both = timeout(MINUTE, lost).await.expect("they sleep on for the rest of their leases");
    assert_eq!(both.unwrap(), (Loss::Suspended, Loss::Suspended));
}

/// The holder crashed, and its lease ended while the machine slept. No message reports that.
#[tokio::test]
async fn a_waiter_asks_soon_after_the_machine_wakes() {
    clock!(SLEPT);
    let server = TestServer::start(&[]).await;
    let locks = connect!(Locks::builder(server.url("")).poll_interval(HOUR), SLEPT);
    server.command("HSET stock 0f3c9a44-77e0-4e0c-8d1f-2b6d7c1f5a90:1 1").await;
    server.command("PEXPIRE stock 3600000").await;
    let stock = locks.mutex("stock");
    let waits = tokio::spawn(async move { stock.lock().await });
    // The waiter sleeps for long once it was refused again after the subscription.
    let is_asleep =
        |entry: &LockEntry| entry.is_subscribed() && entry.outer_front().is_some_and(Waiter::is_asleep);
    while !locks.handle.table(|table, _| table.entry("stock").is_some_and(is_asleep)) {
        sleep(SECOND / 100).await;
    }
    server.command("DEL stock").await;
    sleeps(&SLEPT, 2 * HOUR);
    let guard = timeout(MINUTE, waits).await.expect("it sleeps on for the rest of the lease");
    guard.unwrap().unwrap().release().await.unwrap();
}

/// Nothing has looked at the clock since the machine woke. The lease of the acquire must not count from
/// before the sleep.
#[tokio::test(start_paused = true)]
async fn the_first_request_after_the_machine_wakes_is_granted_as_any_other() {
    clock!(SLEPT);
    let locks = connect!(Locks::builder(Memory::new()), SLEPT);
    let stock = locks.mutex("stock");
    stock.lock().await.unwrap().release().await.unwrap();
    sleeps(&SLEPT, 2 * HOUR);
    assert!(stock.try_lock().await.unwrap().is_some());
    sleep(SECOND).await;
    sleeps(&SLEPT, MINUTE / 3);
    assert_eq!(stock.lock().max_hold(10 * SECOND).run(async |_| 1).await.unwrap(), 1);
    sleeps(&SLEPT, MINUTE / 3);
    let guard = stock.lock().fixed_lease(25 * SECOND).await.unwrap();
    assert!(guard.valid_until() > Instant::now() + 20 * SECOND);
}
