//! How long requests wait, to the millisecond.

use std::time::Duration;

use nestlock::{ErrorKind, Locks, Owner};
use tokio::time::{Instant, sleep, timeout};
use tracing::Level;

use super::{HOUR, LEASE, MILLISECOND, NODE_TIMEOUT, SECOND, assert_now, locks, options, rest, stock};
use crate::support::home::memory::Home;
use crate::support::{enlisted, log};

#[tokio::test(start_paused = true)]
async fn a_limited_wait_ends_with_its_limit() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    let _held = theirs.lock().await.unwrap();
    for limit in [MILLISECOND, 7 * SECOND, LEASE, HOUR] {
        let begun = Instant::now();
        assert_eq!(ours.lock().within(limit).await.unwrap_err().kind(), ErrorKind::Timeout);
        assert_now(begun + limit);
        let begun = Instant::now();
        assert!(ours.try_lock().within(limit).await.unwrap().is_none());
        assert_now(begun + limit);
    }
    let begun = Instant::now();
    assert!(ours.try_lock().await.unwrap().is_none());
    assert_eq!(ours.lock().within(Duration::ZERO).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_now(begun);
}

#[tokio::test(start_paused = true)]
async fn a_released_lock_is_the_next_ones_at_that_moment() {
    let home = Home::start().await;
    // This is not a multiple of the poll interval, at which the waiters would ask without a message.
    let work = LEASE + 1_234 * MILLISECOND;
    let guard = stock(&home).await.lock().await.unwrap();
    // A waiter of the same process would be woken directly. These waiters are notified by messages.
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(tokio::spawn(stock(&home).await.run(move |_| sleep(work))));
    }
    sleep(work).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    for run in waiting {
        run.await.unwrap().unwrap();
    }
    assert!(released.elapsed() < 20 * work + SECOND, "{:?}", released.elapsed() - 20 * work);
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_crashed_holder_is_granted_when_its_lease_ends_and_not_before() {
    let home = Home::start().await;
    let (crashed, ours) = (locks(&home).await, stock(&home).await);
    let begun = Instant::now();
    let guard = crashed.mutex("stock").lock().await.unwrap();
    crashed.close().await.unwrap();
    std::mem::forget(guard);
    drop(crashed);
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(enlisted(&ours))).collect();
    for one in waiting {
        one.await.unwrap().unwrap().release().await.unwrap();
        assert_now(begun + LEASE);
    }
}

#[tokio::test(start_paused = true)]
async fn a_crashed_holder_blocks_others_for_one_lease_and_no_longer() {
    let home = Home::start().await;
    let (crashed, ours) = (locks(&home).await, stock(&home).await);
    let guard = crashed.mutex("stock").lock().await.unwrap();
    // The lease has been renewed many times, the last time within the last third.
    sleep(HOUR + 5 * SECOND).await;
    crashed.close().await.unwrap();
    std::mem::forget(guard);
    let begun = Instant::now();
    ours.lock().await.unwrap().release().await.unwrap();
    assert!(begun.elapsed() > LEASE * 2 / 3 - SECOND && begun.elapsed() < LEASE + SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_store_that_does_not_answer_ends_with_its_patience() {
    let home = Home::start().await;
    for patience in [SECOND, 10 * SECOND, 100 * SECOND] {
        let locks = options(&home).unavailable_after(patience).connect().await.unwrap();
        home.stall(HOUR).await;
        let begun = Instant::now();
        let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(enlisted(&locks.mutex("stock")))).collect();
        for one in waiting {
            assert_eq!(one.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
            assert!(begun.elapsed() >= patience, "{:?}", begun.elapsed());
            // An attempt may have been under way, and a pause of at most a second may have followed it.
            let late = begun.elapsed() - patience;
            assert!(late <= 2 * NODE_TIMEOUT + SECOND, "{late:?} too late");
        }
        home.stall(Duration::ZERO).await;
        locks.mutex("stock").lock().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_attempt_waits_for_a_node_timeout_and_no_longer() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    home.stall(HOUR).await;
    let begun = Instant::now();
    assert_eq!(stock.try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_now(begun + NODE_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_the_lock_when_an_outage_ends() {
    let home = Home::start().await;
    let locks = options(&home).unavailable_after(Duration::MAX).connect().await.unwrap();
    let stock = locks.mutex("stock");
    home.stall(10 * LEASE).await;
    let begun = Instant::now();
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(enlisted(&stock))).collect();
    for one in waiting {
        one.await.unwrap().unwrap().release().await.unwrap();
    }
    // A pause between two attempts may have begun just before the outage ended.
    assert!(
        begun.elapsed() >= 10 * LEASE && begun.elapsed() < 10 * LEASE + 2 * SECOND,
        "{:?}",
        begun.elapsed()
    );
    rest().await;
    assert!(home.keys().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn strangers_are_served_in_the_order_of_their_arrival_however_long_each_stays() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let guard = stock.lock().owner(&Owner::new()).await.unwrap();
    let requests: Vec<_> = (0..50).map(|_| enlisted(&stock)).collect();
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let tasks = requests.into_iter().enumerate().map(|(number, request)| {
        let order = order.clone();
        tokio::spawn(async move {
            let guard = request.await.unwrap();
            order.lock().unwrap().push(number);
            sleep(2 * LEASE).await;
            guard.release().await.unwrap();
        })
    });
    let tasks: Vec<_> = tasks.collect();
    rest().await;
    drop(guard);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
}

/// A head that is not polled delays the next one by 50 ms twice: once before it is woken, once before it is passed over.
#[tokio::test(start_paused = true)]
async fn a_head_that_is_not_polled_keeps_the_next_one_for_moments_only() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let guard = stock.lock().owner(&Owner::new()).await.unwrap();
    let parked = enlisted(&stock);
    let second = tokio::spawn(enlisted(&stock));
    sleep(SECOND).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(released.elapsed() <= 110 * MILLISECOND, "{:?}", released.elapsed());
    second.release().await.unwrap();
    parked.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_nested_request_goes_on_as_soon_as_its_hold_is_settled() {
    let home = Home::start().await;
    // With a third of the lease, a look after each node timeout would coincide with a renewal each time.
    let timeout = LEASE / 3;
    let locks = home.builder().lease(LEASE).node_timeout(timeout).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let _outer = stock.lock().await.unwrap();
    home.drop_replies(1).await;
    let begun = Instant::now();
    // 1. The nested acquire gets no answer. 2. Its settle is answered late, when the request's own pause is already over.
    let slow = async {
        sleep(timeout - MILLISECOND).await;
        home.stall(SECOND).await;
    };
    let (inner, ()) = tokio::join!(stock.lock(), slow);
    assert_eq!(inner.unwrap().depth(), 2);
    assert!(begun.elapsed() < timeout + 2 * SECOND, "{:?}", begun.elapsed());
}

/// Nothing shows that the task is awaited. After five seconds its wait is logged, with advice on what may help.
#[tokio::test(start_paused = true)]
async fn a_spawned_task_that_is_awaited_under_the_lock_is_warned_of_after_five_seconds() {
    log::capture();
    let stock = Locks::in_memory().mutex("awaited-under-the-lock");
    let warnings = || log::all(|event| event.mentions(stock.name()) && event.level == Level::WARN);
    let nested = stock.clone();
    let held = stock.run(async |_| tokio::spawn(async move { nested.lock().await.map(drop) }).await);
    assert!(timeout(5 * SECOND + 100 * MILLISECOND, held).await.is_err());
    let warnings = warnings();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert_eq!((&*warning.fields["waited"], &*warning.fields["held"]), ("5 s", "for 5 s"));
    assert!(warning.fields["holder"].starts_with("another owner of this process, "), "{warning:?}");
    assert!(
        warning.mentions("if it awaits the task")
            && warning.mentions("Owner::current().child()")
            && warning.mentions("`join!`"),
        "{warning:?}"
    );
}
