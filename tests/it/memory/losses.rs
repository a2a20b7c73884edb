//! When a loss is reported.

use futures::future::join_all;
use nestlock::{ErrorKind, Loss};
use tokio::time::{Instant, sleep};

use super::{LEASE, MILLISECOND, SECOND, assert_now, less_drift, locks, rest, stock};
use crate::support::home::memory::Home;

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_is_reported_at_the_deadline_and_not_before() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    let guard = ours.lock().await.unwrap();
    // The outage may begin at any moment between two renewals.
    for part in 0..10 {
        sleep(part * SECOND).await;
        assert!(!guard.is_lost());
    }
    home.stall(2 * LEASE).await;
    let (silent, end) = (Instant::now(), guard.valid_until());
    assert!(end >= silent + less_drift(LEASE) - LEASE / 3 - SECOND);
    let lost = guard.lost();
    tokio::select! {
        loss = lost => assert_eq!(loss, Loss::Expired),
        () = sleep(LEASE + SECOND) => panic!("it was not reported"),
    }
    assert_now(end);
    // The lock can be acquired as soon as the store answers again, since the lease is over by then.
    let next = tokio::spawn(theirs.lock().within(std::time::Duration::MAX));
    let next = next.await.unwrap();
    // `unavailable_after` was over before that.
    assert_eq!(next.unwrap_err().kind(), ErrorKind::Unavailable);
    sleep(2 * LEASE).await;
    theirs.lock().await.unwrap().release().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Expired));
}

#[tokio::test(start_paused = true)]
async fn a_silence_shorter_than_what_is_left_of_the_lease_is_survived() {
    let home = Home::start().await;
    let guard = stock(&home).await.lock().await.unwrap();
    for silence in 1..19 {
        // After a renewal at least two thirds of the lease are left, less the drift and the time of an attempt that is under way.
        home.stall(silence * SECOND).await;
        sleep(silence * SECOND).await;
        sleep(SECOND).await;
        assert!(!guard.is_lost(), "after {silence} s of silence");
        sleep(LEASE / 3).await;
    }
    assert!(guard.valid_until() > Instant::now() + LEASE / 2);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_a_deleted_lock_is_reported_at_once_to_holders_and_waiters() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    let (outer, inner) = (ours.lock().await.unwrap(), ours.lock().await.unwrap());
    let waiting = tokio::spawn(theirs.lock());
    sleep(5 * SECOND).await;
    let lost = Instant::now();
    home.lose("stock").await;
    assert_eq!(join_all([outer.lost(), inner.lost()]).await, [Loss::Gone; 2]);
    assert_now(lost);
    let next = waiting.await.unwrap().unwrap();
    assert_now(lost);
    assert_eq!(ours.lock().await.unwrap_err().kind(), ErrorKind::Lost);
    for guard in [inner, outer] {
        assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Gone));
    }
    assert_eq!(home.fields("stock").await, [(next.hold_id().to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_restart_of_a_store_is_reported_at_once_and_its_locks_are_free() {
    let home = Home::start().await;
    let (ours, theirs) = (locks(&home).await, locks(&home).await);
    let names: Vec<_> = (0..50).map(|at| format!("stock:{at}")).collect();
    let guards = join_all(names.iter().map(|name| ours.mutex(name).lock())).await;
    let waiting = names.iter().map(|name| tokio::spawn(theirs.mutex(name).lock())).collect::<Vec<_>>();
    sleep(SECOND).await;
    let restarted = Instant::now();
    home.restart_empty().await;
    for guard in &guards {
        assert_eq!(guard.as_ref().unwrap().lost().await, Loss::Gone);
    }
    for waiting in waiting {
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
    assert_now(restarted);
    drop(guards);
    rest().await;
    assert!(home.keys().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restart_ends_a_silence() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    let guard = ours.lock().await.unwrap();
    home.stall(3600 * SECOND).await;
    let asking = tokio::spawn(theirs.lock());
    sleep(100 * MILLISECOND).await;
    let restarted = Instant::now();
    home.restart_empty().await;
    assert_eq!(guard.lost().await, Loss::Gone);
    let next = asking.await.unwrap().unwrap();
    assert!(restarted.elapsed() < SECOND, "{:?}", restarted.elapsed());
    next.release().await.unwrap();
}

/// Compares `is_lost` with all other calls that report a loss without waiting, at each moment around the end.
#[tokio::test(start_paused = true)]
async fn at_the_end_of_a_lease_all_ways_to_look_agree() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    let guard = stock.lock().fixed_lease(SECOND).await.unwrap();
    let end = guard.valid_until();
    loop {
        let over = Instant::now() >= end;
        assert_eq!((guard.is_lost(), guard.loss().is_some()), (over, over));
        assert_eq!((stock.is_held(), stock.hold_count()), (!over, usize::from(!over)));
        if Instant::now() > end + 10 * MILLISECOND {
            break;
        }
        tokio::time::advance(MILLISECOND).await;
    }
    assert_eq!(guard.valid_until(), end);
}
