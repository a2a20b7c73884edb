//! How long a request waits for another process's lock if no message will wake it.

use std::time::Duration;

use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};

use crate::base::telemetry::testing::Recorder;
use crate::{Locks, Memory};

const SECOND: Duration = Duration::from_secs(1);

/// Competing requests that each have a minority publish when they give it up. If that woke them, they would
/// ask in step, and so on for ever.
#[tokio::test(start_paused = true)]
async fn no_message_ends_the_pause_after_a_split_vote() {
    let stores: Vec<_> = (0..3).map(|_| Memory::new()).collect();
    let locks = async |stores: &[Memory]| {
        let builder = Locks::quorum(stores).lease(60 * SECOND);
        builder.retry_delay(SECOND..=SECOND).connect().await.unwrap()
    };
    let first = locks(&stores[..1]).await.mutex("stock").lock().await.unwrap();
    let second = locks(&stores[1..2]).await.mutex("stock").lock().await.unwrap();
    let begun = Instant::now();
    let waiting = tokio::spawn(locks(&stores).await.mutex("stock").lock());
    sleep(SECOND / 2).await;
    first.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(begun.elapsed() >= SECOND, "{:?}", begun.elapsed());
    guard.release().await.unwrap();
    second.release().await.unwrap();
}

/// In this order: 1. Two masters refuse a request, which sleeps. 2. The third one grants it, too late.
/// 3. That grant is ended, and the end is published. If the message woke the request, it would ask again as
/// fast as the masters answer.
#[tokio::test(start_paused = true)]
async fn a_grant_after_a_refusal_is_a_split_vote_too() {
    let stores: Vec<_> = (0..3).map(|_| Memory::new()).collect();
    let stock = async |stores: &[Memory]| {
        let builder = Locks::quorum(stores).lease(3600 * SECOND);
        builder.poll_interval(3600 * SECOND).connect().await.unwrap().mutex("stock")
    };
    let (first, second) = (stock(&stores[..1]).await, stock(&stores[1..2]).await);
    let (first, second) = (first.lock().await.unwrap(), second.lock().await.unwrap());
    let waiting = tokio::spawn(stock(&stores).await.lock());
    // The third master answers up to ten milliseconds after the others.
    let begun = Instant::now();
    while begun.elapsed() < 100 * SECOND {
        stores[2].visit(|store| {
            store.stalled_until = None;
            store.run_backlog(Instant::now());
            store.stalled_until = Some(Instant::now() + SECOND);
        });
        sleep(SECOND / 100).await;
    }
    stores[2].faults().stall(Duration::ZERO);
    first.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    // The field of the hold has a number, and each attempt uses up a few numbers.
    let number: u64 = guard.hold_id().rsplit_once(':').unwrap().1.parse().unwrap();
    assert!((100..2_000).contains(&number), "{number}");
    guard.release().await.unwrap();
    second.release().await.unwrap();
}

/// A request pauses no longer because it was woken for a lock that others took first, nor because it competed
/// long ago.
#[tokio::test(start_paused = true)]
async fn those_who_have_waited_for_long_pause_for_no_longer() {
    const PAUSE: Duration = Duration::from_millis(10);
    let stores: Vec<_> = (0..3).map(|_| Memory::new()).collect();
    let stock = async |stores: &[Memory]| {
        let builder = Locks::quorum(stores).lease(60 * SECOND);
        builder.retry_delay(PAUSE..=PAUSE).connect().await.unwrap().mutex("stock")
    };
    let (theirs, first, second) =
        ([stock(&stores).await, stock(&stores).await], stock(&stores[..1]).await, stock(&stores[1..2]).await);
    let split = (first.lock().await.unwrap(), second.lock().await.unwrap());
    let waiting = tokio::spawn(stock(&stores).await.lock());
    sleep(SECOND).await;
    let (one, other, held) = tokio::join!(split.0.release(), split.1.release(), theirs[0].lock());
    one.and(other).unwrap();
    let mut held = held.unwrap();
    for turn in 1..=10 {
        sleep(2 * SECOND).await;
        // Both are in one poll, so that the next one asks first.
        let (released, next) = tokio::join!(held.release(), theirs[turn % 2].lock());
        released.unwrap();
        held = next.unwrap();
    }
    sleep(2 * SECOND).await;
    let (released, one, other) = tokio::join!(held.release(), first.lock(), second.lock());
    released.unwrap();
    let begun = Instant::now();
    sleep(PAUSE / 2).await;
    one.unwrap().release().await.unwrap();
    other.unwrap().release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    let paused = begun.elapsed();
    assert!(PAUSE <= paused && paused < 2 * PAUSE, "it pauses once, and no longer than at first: {paused:?}");
    guard.release().await.unwrap();
}

/// In this order: 1. The acquire of a request is on its way, over a connection that is replaced. 2. The
/// request is dropped, and its end finds nothing. 3. The acquire runs. The lock is free; there is one master,
/// or there are three.
#[tokio::test(start_paused = true)]
async fn what_an_acquire_makes_after_the_end_of_its_dropped_request_is_ended() {
    for masters in [1, 3] {
        let stores: Vec<_> = (0..masters).map(|_| Memory::new()).collect();
        let connect = async || {
            let builder = Locks::quorum(&stores).lease(60 * SECOND);
            builder.restart_delay(Duration::ZERO).connect().await.unwrap()
        };
        let (ours, theirs) = (connect().await, connect().await);
        stores.iter().for_each(|store| store.faults().stall(SECOND / 10));
        let request = tokio::spawn(ours.mutex("stock").lock());
        let late = |store: &Memory| store.visit(|store| store.backlog.pop_front());
        let mut on_the_way = Vec::new();
        for store in &stores {
            while store.visit(|store| store.backlog.is_empty()) {
                yield_now().await;
            }
            on_the_way.push(late(store).unwrap());
        }
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        // By now, the end has run.
        sleep(SECOND / 5).await;
        for (store, acquire) in stores.iter().zip(on_the_way) {
            store.visit(|store| {
                store.backlog.push_back(acquire);
                store.run_backlog(Instant::now());
            });
        }
        let theirs = theirs.mutex("stock");
        assert!(theirs.try_lock().await.unwrap().is_none(), "the acquire's key is still there");
        let begun = Instant::now();
        theirs.lock().await.unwrap().release().await.unwrap();
        assert!(begun.elapsed() < 10 * SECOND, "{masters} {:?}", begun.elapsed());
    }
}

/// The message wakes the waiter long before it would poll, and before the other's lease ends.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_subscribed_is_woken_by_the_message_of_a_release() {
    let store = Memory::new();
    let connect = async || {
        let builder = Locks::builder(&store).lease(600 * SECOND).poll_interval(600 * SECOND);
        builder.connect().await.unwrap().mutex("stock")
    };
    let (ours, theirs) = (connect().await, connect().await);
    let held = theirs.lock().await.unwrap();
    let waiting = tokio::spawn(ours.lock());
    sleep(100 * SECOND).await;
    let begun = Instant::now();
    held.release().await.unwrap();
    let _guard = waiting.await.unwrap().unwrap();
    assert!(begun.elapsed() < SECOND / 100, "{:?}", begun.elapsed());
}

/// The log tells whether a lock was waited for.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_granted_at_once_was_not_waited_for() {
    let log = Recorder::start();
    let store = Memory::new();
    let connect = async || Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let (ours, theirs) = (connect().await, connect().await);
    let guard = theirs.lock().await.unwrap();
    let waiting = tokio::spawn(ours.lock());
    sleep(SECOND / 10).await;
    assert_eq!(log.count("acquired after waiting"), 0);
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(log.count("acquired after waiting"), 1);
}

/// Such an answer costs the server twice the work, so it is requested only if it may be the last one before
/// the time is over.
#[tokio::test(start_paused = true)]
async fn a_first_attempt_asks_whose_the_lock_is_if_it_may_be_the_last_one() {
    let store = Memory::new();
    let connect = async || Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let (ours, theirs) = (connect().await, connect().await);
    let _held = theirs.lock().await.unwrap();
    let asks = async |request: JoinHandle<bool>| {
        while store.visit(|store| store.backlog.is_empty()) {
            yield_now().await;
        }
        let names = store.visit(|store| store.backlog[0].0.report_holder);
        store.faults().stall(Duration::ZERO);
        request.abort();
        sleep(SECOND / 10).await;
        store.faults().stall(SECOND);
        names
    };
    store.faults().stall(SECOND);
    for (within, expected) in [
        (None, false),
        (Some(3600 * SECOND), false),
        (Some(2 * SECOND), false),
        (Some(SECOND), true),
        (Some(SECOND / 100), true),
        (Some(Duration::ZERO), true),
    ] {
        let asked = ours.lock();
        let asked = if let Some(within) = within { asked.within(within) } else { asked };
        assert_eq!(asks(tokio::spawn(async { asked.await.is_ok() })).await, expected, "{within:?}");
    }
    // The holder is not reported to a request that only tries.
    for (within, expected) in [(None, false), (Some(SECOND / 100), true)] {
        let asked = ours.try_lock();
        let asked = if let Some(within) = within { asked.within(within) } else { asked };
        assert_eq!(asks(tokio::spawn(async { asked.await.is_ok() })).await, expected, "{within:?}");
    }
}
