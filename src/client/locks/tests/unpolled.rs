//! Futures that are not polled for long: what becomes of them, and of those beside them.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::time::Duration;

use futures::poll;
use tokio::join;
use tokio::time::{Instant, sleep, timeout};

use crate::{ErrorKind, Locks, Memory, Owner};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_free_lock_is_tried_beside_a_waiter_that_was_woken_and_is_not_polled() {
    let stock = Locks::in_memory().mutex("stock");
    let guard = stock.lock().owner(&Owner::new()).await.unwrap();
    let mut waits = Box::pin(stock.lock().owner(&Owner::new()));
    assert!(poll!(&mut waits).is_pending());
    guard.release().await.unwrap(); // wakes it, and it is not polled
    sleep(Duration::from_secs(600)).await;
    let got = stock.try_lock().owner(&Owner::new()).await.unwrap();
    assert!(got.is_some(), "None on a free lock");
}

#[tokio::test(start_paused = true)]
async fn a_free_lock_is_tried_beside_a_request_whose_answer_nobody_looks_at() {
    let stock = Locks::in_memory().mutex("stock");
    let mut asks = Box::pin(stock.lock().owner(&Owner::new()));
    assert!(poll!(&mut asks).is_pending()); // granted at the store, and it is not polled again
    sleep(Duration::from_secs(600)).await;
    assert!(!stock.is_locked().await.unwrap()); // the lease is over
    let got = stock.try_lock().owner(&Owner::new()).await.unwrap();
    assert!(got.is_some(), "None on a free lock");
}

/// Such as in a `select!` whose other branch asks too.
#[tokio::test(start_paused = true)]
async fn a_command_that_is_not_polled_any_more_does_not_fail_the_next_one_of_its_hold() {
    let stock = Locks::in_memory().mutex("stock");
    let guard = stock.lock().await.unwrap();
    let nested = async { drop(stock.lock().await) };
    let checked = async { drop(guard.check().await) };
    let unpolled: [Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(checked), Box::pin(nested)];
    for mut first in unpolled {
        assert!(poll!(&mut first).is_pending()); // it has run, and its answer is not looked at
        sleep(SECOND / 100).await;
        guard.check().await.unwrap();
    }
}

/// Such as in a `select!` whose other branch closes.
#[tokio::test(start_paused = true)]
async fn close_ends_what_a_future_has_under_way_that_is_not_polled_any_more() {
    let store = Memory::new();
    for what in ["request", "release", "extension"] {
        let locks = Locks::builder(&store).connect().await.unwrap();
        let stock = locks.mutex("stock");
        let guard = if what == "request" { None } else { Some(stock.lock().await.unwrap()) };
        let mut future: Pin<Box<dyn Future<Output = ()>>> = match (what, guard) {
            ("extension", Some(guard)) => {
                Box::pin(async move { guard.extend(SECOND).await.unwrap_or_default() })
            }
            (_, Some(guard)) => Box::pin(async { guard.release().await.unwrap_or_default() }),
            _ => Box::pin(async { drop(stock.lock().await) }),
        };
        assert!(poll!(&mut future).is_pending()); // it has run, and its answer is not looked at
        let began = Instant::now();
        locks.close().await.unwrap();
        assert!(began.elapsed() < SECOND, "{what}: {:?} of the two node timeouts", began.elapsed());
        if what != "extension" {
            assert_eq!(format!("{store:?}"), "Memory { locks: {} }", "{what}");
        }
        drop(future);
    }
}

/// A request for several names waits for the second one, and is not polled any more: only its future can release the first one.
#[tokio::test(start_paused = true)]
async fn close_waits_for_several_names_of_which_some_are_held() {
    let store = Memory::new();
    let locks = Locks::builder(&store).connect().await.unwrap();
    let other = Locks::builder(&store).connect().await.unwrap();
    let held = other.mutex("b").lock().await.unwrap();
    let mut request = Box::pin(locks.mutexes(["a", "b"]).lock());
    assert!(timeout(SECOND, &mut request).await.is_err());
    let error = locks.close().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("several names"), "{error}");
    let (closed, ()) = join!(locks.close(), async { drop(request) });
    closed.unwrap();
    held.release().await.unwrap();
    assert_eq!(format!("{store:?}"), "Memory { locks: {} }");
}

/// Once the lease of what it held is over, there is nothing left to wait for.
#[tokio::test(start_paused = true)]
async fn close_does_not_wait_for_several_names_that_are_lost() {
    let store = Memory::new();
    let locks = Locks::builder(&store).connect().await.unwrap();
    let held = Locks::builder(&store).connect().await.unwrap().mutex("b").lock().await.unwrap();
    let mut request = Box::pin(locks.mutexes(["a", "b"]).lock());
    assert!(timeout(SECOND, &mut request).await.is_err());
    locks.close().await.unwrap_err();
    sleep(60 * SECOND).await;
    locks.close().await.unwrap();
    held.release().await.unwrap();
    drop(request);
}

/// The two are in one task, so each poll of one is a poll of the other.
#[tokio::test(start_paused = true)]
async fn a_close_beside_a_request_of_its_task_waits_without_being_polled_on_and_on() {
    let store = Memory::new();
    let locks = Locks::builder(&store).connect().await.unwrap();
    store.faults().stall(Duration::MAX);
    let stock = locks.mutex("stock");
    let mut polls = 0;
    let mut both = pin!(async { join!(stock.lock(), locks.close()) });
    let (asked, _) = poll_fn(|cx| {
        polls += 1;
        assert!(polls < 1000, "the two wake each other");
        both.as_mut().poll(cx)
    })
    .await;
    assert!(asked.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_when_it_was_said_to_though_the_answer_is_looked_at_late() {
    let store = Memory::new();
    let theirs = Locks::builder(&store).connect().await.unwrap();
    let ours = Locks::builder(&store).poll_interval(3600 * SECOND).connect().await.unwrap();
    let guard = theirs.mutex("stock").lock().await.unwrap();
    // 1. Our request waits, and is subscribed.
    let mut asks = Box::pin(ours.mutex("stock").lock());
    assert!(tokio::time::timeout(5 * SECOND, &mut asks).await.is_err());
    // 2. Its sleep is over, and it asks: the lock is held for another 20 to 30 s.
    sleep(30 * SECOND).await;
    assert!(poll!(&mut asks).is_pending());
    // 3. The holder's process crashes. 4. Our future is not polled for so long that the lease ends, which no
    // message reports.
    theirs.close().await.unwrap();
    std::mem::forget(guard);
    sleep(40 * SECOND).await;
    assert!(!ours.mutex("stock").is_locked().await.unwrap());
    // 5. From now on our future is polled whenever it is woken. It must not sleep while the lock is free.
    let began = Instant::now();
    let _guard = asks.await.unwrap();
    assert!(began.elapsed() < SECOND, "{:?} beside a free lock", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_extension_whose_answer_is_looked_at_past_the_end_does_not_bring_a_hold_back() {
    let stock = Locks::in_memory().mutex("stock");
    // Valid for 11.86 ms; timers go off at whole milliseconds, so at 11.9 ms nobody has looked at its end.
    let guard = stock.lock().fixed_lease(Duration::from_millis(14)).await.unwrap();
    let mut extends = Box::pin(guard.extend(10 * SECOND));
    assert!(poll!(&mut extends).is_pending());
    // After a single poll, the clock has moved and no other task has run.
    let _ = poll!(Box::pin(tokio::time::advance(Duration::from_micros(11_900))));
    assert!(guard.valid_until() < Instant::now());
    let answer = poll!(&mut extends);
    assert!(guard.valid_until() <= Instant::now(), "{answer:?}, and good again");
}

/// In this order: 1. A hold is offered to a request that is not polled. 2. Another request begins, finds the
/// first one late, and is the first in the queue. 3. If it were granted in its first poll, a branch beside it
/// would take it for a level that it is nested in.
#[tokio::test(start_paused = true)]
async fn a_request_that_begins_beside_an_offer_does_not_take_it_at_once() {
    let locks = Locks::builder(Memory::new()).local_handoff(SECOND).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let mut waits = Box::pin(stock.lock().owner(&Owner::new()));
    assert!(poll!(&mut waits).is_pending());
    locks.handle.visit_known("stock", |entry, at| entry.wake_requests(at.now));
    sleep(Duration::from_millis(40)).await;
    drop(guard);
    sleep(Duration::from_millis(20)).await;
    let mut tries = Box::pin(stock.try_lock().owner(&Owner::new()));
    assert!(poll!(&mut tries).is_pending());
    assert!(tries.await.unwrap().is_some());
}
