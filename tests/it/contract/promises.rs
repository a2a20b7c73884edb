//! What a hold promises, one promise per test.

use std::time::Duration;

use nestlock::{ErrorKind, Guard, Loss};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Home, LONG};
use crate::support::{eventually, soon};

#[tokio::test]
async fn promise_3_the_count_on_the_server_is_that_of_the_live_guards() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let home = Home::start().await;
    let locks = super::counting(&home).await;
    let stock = locks.mutex("stock");
    let mut guards: Vec<Guard> = vec![stock.lock().await.unwrap()];
    for _ in 0..300 {
        match random.random_range(0..4) {
            0 | 1 if guards.len() < 12 => {
                let guard = stock.lock().await.unwrap();
                assert_eq!(guard.depth(), guards.len() + 1);
                guards.push(guard);
            }
            // Some guards are released out of order.
            2 if guards.len() > 1 => {
                let guard = guards.remove(random.random_range(0..guards.len()));
                guard.release().await.unwrap();
            }
            3 if guards.len() > 1 => drop(guards.pop()),
            _ => {}
        }
        let (field, count) = (guards[0].hold_id(), guards.len());
        eventually("the count", async || home.count("stock", field).await == Some(count)).await;
    }
    drop(guards);
    home.tidy().await;
}

#[tokio::test]
async fn promise_6_a_released_lock_goes_to_a_waiter_without_another_request() {
    let home = Home::start().await;
    // Within the test neither a poll nor the end of the lease can wake a waiter.
    let connect = async || home.builder().lease(LONG).poll_interval(Duration::MAX).connect().await.unwrap();
    let (one, two) = (connect().await, connect().await);
    for round in 0..20 {
        let guard = one.mutex("stock").lock().await.unwrap();
        let stranger = two.mutex("stock");
        let waits = tokio::spawn(async move { stranger.lock().await.unwrap().release().await });
        // In each round the release comes at another moment of the waiter's progress.
        tokio::time::sleep(Duration::from_micros(200 * round)).await;
        if round % 2 == 0 {
            drop(guard)
        } else {
            guard.release().await.unwrap()
        }
        soon("the waiter", waits).await.unwrap().unwrap();
    }
    home.tidy().await;
}

#[tokio::test]
async fn promise_6_a_force_released_lock_goes_to_a_waiter() {
    let home = Home::start().await;
    let connect = async || home.builder().lease(LONG).poll_interval(Duration::MAX).connect().await.unwrap();
    let (one, two, three) = (connect().await, connect().await, connect().await);
    let guard = one.mutex("stock").lock().await.unwrap();
    let stranger = two.mutex("stock");
    let waits = tokio::spawn(async move { stranger.lock().await });
    home.listened().await;
    assert!(three.mutex("stock").force_release().await.unwrap());
    soon("the waiter", waits).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Gone));
}

#[tokio::test]
async fn promise_9_a_re_entry_after_the_end_of_the_lease_is_an_error() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock");
    let outer = stock.lock().fixed_lease(Duration::from_millis(300)).await.unwrap();
    assert_eq!(soon("the end", outer.lost()).await, Loss::Expired);
    for error in [stock.lock().await.unwrap_err(), stock.try_lock().await.unwrap_err()] {
        assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::Expired)));
    }
    assert!(!stock.is_held());
    drop(outer);
    home.tidy().await;
    stock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn promise_9_a_release_after_the_end_of_the_lease_is_reported_and_touches_nothing() {
    let home = Home::start().await;
    let (locks, others) = (home.locks().await, home.locks().await);
    let guard = locks.mutex("stock").lock().fixed_lease(Duration::from_millis(300)).await.unwrap();
    let theirs = soon("the lock", others.mutex("stock").lock()).await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Expired));
    assert_eq!(home.fields("stock").await, [(theirs.hold_id().to_owned(), 1)]);
    theirs.release().await.unwrap();
}
