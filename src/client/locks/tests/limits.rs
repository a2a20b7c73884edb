//! Holds that end by `max_hold`, beside those that end by themselves; and requests that end within their
//! time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{ErrorKind, Guard, Locks, Loss, Memory, Mutex, Owner};

const SECOND: Duration = Duration::from_secs(1);

/// This holds even if the background has not looked yet.
#[tokio::test(start_paused = true)]
async fn a_level_counts_until_its_end_and_no_longer() {
    let stock = Locks::in_memory().mutex("stock");
    let asked = [stock.lock().max_hold(5 * SECOND), stock.lock().fixed_lease(5 * SECOND)];
    for asked in asked {
        let guard = asked.await.unwrap();
        let end = guard.valid_until();
        let step = Duration::from_nanos(1);
        // After a single poll the clock has moved, and no other task has run.
        let _ = futures::poll!(Box::pin(tokio::time::advance(end - Instant::now() - step)));
        assert_eq!((stock.hold_count(), Instant::now()), (1, end - step));
        let _ = futures::poll!(Box::pin(tokio::time::advance(step)));
        assert_eq!((stock.hold_count(), Instant::now()), (0, end));
        assert!(guard.is_lost());
        drop(guard);
    }
}

/// In this order: 1. A fixed lease of 5 s is granted, with a limit of 1 s. 2. A nested hold makes the key live for 30 s, and
/// ends. 3. The limit is over. 4. The lease is over.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_when_it_was_said_to_also_after_its_max_hold() {
    let stock = Locks::in_memory().mutex("stock");
    let _guard = stock.lock().fixed_lease(5 * SECOND).max_hold(SECOND).await.unwrap();
    stock.lock().await.unwrap().release().await.unwrap();
    sleep(6 * SECOND).await;
    assert!(stock.try_lock().owner(&Owner::new()).await.unwrap().is_some(), "its field outlives the lease");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_over_is_not_good_again_when_a_max_hold_is_noticed() {
    let stock = Locks::in_memory().mutex("stock");
    let outer = stock.lock().fixed_lease(5 * SECOND).max_hold(SECOND).await.unwrap();
    stock.lock().await.unwrap().release().await.unwrap();
    let inner = stock.lock().fixed_lease(2 * SECOND).await.unwrap();
    let _ = futures::poll!(Box::pin(tokio::time::advance(6 * SECOND)));
    assert!(inner.valid_until() < Instant::now());
    let _ = outer.is_lost();
    assert!(
        inner.valid_until() <= Instant::now(),
        "good again for {:?}",
        inner.valid_until() - Instant::now()
    );
    assert!(inner.is_lost());
}

/// In this order: 1. Two requests wait in the queue for longer than `unavailable_after`. 2. The first one is
/// granted, and its fixed lease ends. 3. That wakes the second one, before the end of that hold is sent.
#[tokio::test(start_paused = true)]
async fn who_has_waited_for_long_still_waits_for_the_end_of_the_hold_before_it() {
    let store = Memory::new();
    let theirs = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let ours = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let guard = theirs.lock().await.unwrap();
    let first = async {
        let first = ours.lock().fixed_lease(SECOND).await.unwrap();
        assert_eq!(first.lost().await, Loss::Expired);
    };
    let others = async {
        let ours = ours.clone();
        let second = tokio::spawn(async move { ours.lock().await?.release().await });
        sleep(20 * SECOND).await;
        guard.release().await.unwrap();
        second.await.unwrap().unwrap();
    };
    tokio::join!(first, others);
}

/// A command that asks for a longer lease is under way when a fixed lease ends: it has run, and its answer is
/// lost. The guard is kept.
async fn a_longer_lease_is_asked_for_at_the_end(ask: impl AsyncFnOnce(&Mutex, &Guard)) {
    let store = Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().fixed_lease(2 * SECOND).await.unwrap();
    sleep(SECOND * 9 / 5).await;
    store.faults().drop_replies(1);
    ask(&stock, &guard).await;
    assert_eq!(guard.loss(), Some(Loss::Expired));
    assert_eq!(format!("{store:?}"), "Memory { locks: {} }", "the key outlives its hold");
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_fixed_lease_does_not_outlive_it_by_an_extension_that_is_under_way() {
    a_longer_lease_is_asked_for_at_the_end(async |_, guard| {
        assert_eq!(guard.extend(20 * SECOND).await.unwrap_err().kind(), ErrorKind::Unavailable);
        sleep(SECOND).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_fixed_lease_does_not_outlive_it_by_a_nested_request_that_is_under_way() {
    a_longer_lease_is_asked_for_at_the_end(async |stock, _| {
        let nested = stock.lock().fixed_lease(1000 * SECOND);
        assert_eq!(nested.await.unwrap_err().loss(), Some(Loss::Expired));
        sleep(SECOND).await;
    })
    .await;
}

/// An extension has run, and its answer is lost, as those of all that is sent until the lease is over. The guard is kept.
#[tokio::test(start_paused = true)]
async fn the_key_of_a_renewed_hold_does_not_outlive_it_by_an_extension_whose_answer_is_lost() {
    let store = Memory::new();
    let stock = Locks::builder(&store).lease(2 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    store.faults().drop_replies(20);
    assert_eq!(guard.extend(1000 * SECOND).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(guard.lost().await, Loss::Expired);
    sleep(20 * SECOND).await;
    assert_eq!(format!("{store:?}"), "Memory { locks: {} }", "the key outlives its hold");
}

#[tokio::test(start_paused = true)]
async fn a_nested_release_that_waits_for_a_command_reports_the_loss_of_its_hold() {
    let store = Memory::new();
    let stock = Locks::builder(&store).lease(2 * SECOND).connect().await.unwrap().mutex("stock");
    let outer = stock.lock().await.unwrap();
    let inner = stock.lock().await.unwrap();
    store.faults().stall(60 * SECOND);
    sleep(SECOND * 3 / 2).await;
    assert_eq!(inner.release().await.unwrap_err().loss(), Some(Loss::Expired));
    assert!(outer.is_lost());
}

/// The level around it is over, but the hold is not yet.
#[tokio::test(start_paused = true)]
async fn the_key_of_a_fixed_lease_does_not_outlive_it_by_a_nested_grant_that_does_not_enter() {
    let store = Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().fixed_lease(2 * SECOND).max_hold(SECOND).await.unwrap();
    sleep(SECOND * 9 / 10).await;
    store.faults().stall(SECOND / 5);
    let nested = stock.lock().fixed_lease(1000 * SECOND);
    assert_eq!(nested.await.unwrap_err().loss(), Some(Loss::MaxHold));
    sleep(2 * SECOND).await;
    assert_eq!(guard.loss(), Some(Loss::MaxHold));
    assert_eq!(format!("{store:?}"), "Memory { locks: {} }", "the key outlives its hold");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_runs_when_the_lease_is_over_reports_that_it_ran_out() {
    let store = Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().fixed_lease(SECOND).await.unwrap();
    sleep(SECOND * 9 / 10).await;
    store.faults().stall(SECOND / 5);
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Expired));
}

/// Returns how long a call takes if the masters do not answer.
async fn took(call: impl Future<Output = crate::Result<()>>) -> Duration {
    let began = Instant::now();
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Unavailable);
    began.elapsed()
}

/// A request that waits for a command of this process has its time for that command and its own.
#[tokio::test(start_paused = true)]
async fn a_request_ends_in_the_time_for_it_though_no_master_answers() {
    let few = Duration::from_millis(50);
    let one_attempt = Duration::from_millis(510);
    for behind in ["nothing", "a dropped guard", "a nested release"] {
        for count in [1, 3] {
            let stores = [(); 3].map(|()| Memory::new());
            let builder = Locks::quorum(stores.iter().take(count).map(crate::Master::memory));
            let locks = builder.unavailable_after(60 * SECOND).connect().await.unwrap();
            for (limit, way) in
                [(few, 0), (few, 1), (few, 2), (2 * SECOND, 0), (one_attempt, 3), (one_attempt, 4)]
            {
                let stock = locks.mutex("stock");
                let held =
                    (behind == "a dropped guard" || behind == "a nested release").then(|| stock.lock());
                let held = match held {
                    Some(asks) => Some(asks.await.unwrap()),
                    None => None,
                };
                let nested =
                    if behind == "a nested release" { Some(stock.lock().await.unwrap()) } else { None };
                stores.iter().for_each(|store| store.faults().stall(600 * SECOND));
                let mut kept = None;
                match (behind, nested) {
                    ("a nested release", Some(nested)) => {
                        let mut release = Box::pin(nested.release());
                        assert!(futures::poll!(&mut release).is_pending());
                        kept = Some((held, release));
                    }
                    _ => drop(held),
                }
                let several = locks.mutexes(["stock", "order"]);
                let took = match way {
                    0 => took(async { stock.lock().within(limit).await.map(drop) }).await,
                    1 => took(async { stock.try_lock().within(limit).await.map(drop) }).await,
                    2 => took(async { several.lock().within(limit).await.map(drop) }).await,
                    3 => took(async { stock.try_lock().await.map(drop) }).await,
                    _ => took(async { several.try_lock().await.map(drop) }).await,
                };
                // Timers go off at whole milliseconds.
                assert!(
                    took <= limit + Duration::from_millis(2),
                    "{behind} {count} {way}: {took:?} of {limit:?}"
                );
                stores.iter().for_each(|store| store.faults().stall(Duration::ZERO));
                drop(kept);
                sleep(120 * SECOND).await;
            }
            locks.close().await.unwrap();
            stores.iter().for_each(|store| assert_eq!(format!("{store:?}"), "Memory { locks: {} }"));
        }
    }
}

/// The last answer to the request was that another process has the lock.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_refused_before_is_busy_though_its_last_attempt_has_no_answer() {
    let store = Memory::new();
    let locks = Locks::builder(&store).poll_interval(SECOND).connect().await.unwrap();
    let theirs = Locks::builder(&store).connect().await.unwrap();
    let _guard = theirs.mutex("stock").lock().await.unwrap();
    let stock = locks.mutex("stock");
    let asks = tokio::spawn(stock.lock().within(10 * SECOND));
    sleep(9 * SECOND + SECOND * 4 / 5).await;
    store.faults().stall(600 * SECOND);
    assert!(theirs.mutex("other").try_lock().await.is_err());
    assert_eq!(asks.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
}
