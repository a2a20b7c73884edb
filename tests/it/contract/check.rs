//! `check` asks the masters whether a hold still stands.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use nestlock::{ErrorKind, Loss};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Home, LONG, SECOND, long_lived};
use crate::errors::is;
use crate::support::{less_drift, soon};

#[tokio::test]
async fn a_hold_that_stands_is_confirmed_at_each_of_its_levels() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let stock = locks.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    for guard in [&outer, &inner] {
        guard.check().await.unwrap();
    }
    inner.release().await.unwrap();
    outer.check().await.unwrap();
    assert_eq!(home.count("stock", outer.hold_id()).await, Some(1));
    let fenced = locks.mutex("fenced").fenced().lock().await.unwrap();
    fenced.check().await.unwrap();
    outer.release().await.unwrap();
    fenced.release().await.unwrap();
}

/// Nothing but the check would find the loss within the test.
#[tokio::test]
async fn a_check_finds_a_hold_that_was_deleted() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    for fixed in [false, true] {
        let stock = locks.mutex("stock");
        let guard = match fixed {
            true => stock.lock().fixed_lease(LONG).await.unwrap(),
            false => stock.lock().await.unwrap(),
        };
        let nested = stock.lock().await.unwrap();
        home.lose("stock").await;
        let error = soon("the answer", guard.check()).await.unwrap_err();
        is(&error, ErrorKind::Lost, Some("stock"), &[]);
        assert_eq!(error.loss(), Some(Loss::Gone));
        assert_eq!(soon("the loss", nested.lost()).await, Loss::Gone);
        assert_eq!(nested.check().await.unwrap_err().loss(), Some(Loss::Gone));
        drop((guard, nested));
    }
}

#[tokio::test]
async fn a_check_finds_a_lock_that_another_process_has_by_now() {
    let home = Home::start().await;
    let (ours, theirs) = (long_lived(&home).await, long_lived(&home).await);
    let guard = ours.mutex("stock").lock().await.unwrap();
    theirs.mutex("stock").force_release().await.unwrap();
    let other = theirs.mutex("stock").lock().await.unwrap();
    assert_eq!(soon("the answer", guard.check()).await.unwrap_err().loss(), Some(Loss::Gone));
    other.check().await.unwrap();
    drop(guard);
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_check_renews_a_hold_that_is_renewed_and_leaves_a_fixed_lease_as_it_is() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let watched = locks.mutex("watched").lock().await.unwrap();
    let fixed = locks.mutex("fixed").lock().fixed_lease(60 * SECOND).await.unwrap();
    let (before, end) = (Instant::now(), fixed.valid_until());
    watched.check().await.unwrap();
    assert!(watched.valid_until() >= before + less_drift(LONG));
    fixed.check().await.unwrap();
    assert_eq!(fixed.valid_until(), end);
    assert!(home.left("fixed").await.is_some_and(|left| left <= 60 * SECOND && left > 30 * SECOND));
}

/// A fixed level is inside another fixed level with a longer lease.
#[tokio::test]
async fn a_check_of_a_shorter_level_makes_no_level_longer() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let outer = stock.lock().fixed_lease(LONG).await.unwrap();
    let inner = stock.lock().fixed_lease(4 * SECOND).await.unwrap();
    let end = Instant::now() + 4 * SECOND;
    inner.check().await.unwrap();
    outer.release().await.unwrap();
    assert!(inner.valid_until() <= end);
    sleep_until(end).await;
    assert_eq!(inner.check().await.unwrap_err().loss(), Some(Loss::Expired));
}

#[tokio::test]
async fn a_check_that_nobody_answers_is_unavailable_and_the_hold_stays() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    home.stall(LONG).await;
    let error = soon("the end of its patience", guard.check()).await.unwrap_err();
    is(&error, ErrorKind::Unavailable, Some("stock"), &[]);
    assert!(!guard.is_lost());
    home.stall(Duration::ZERO).await;
    soon("an answer", async { while guard.check().await.is_err() {} }).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_check_that_is_dropped_leaves_the_hold() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    for polls in 0..4 {
        let mut check = pin!(guard.check());
        for _ in 0..polls {
            let _ = poll_fn(|cx| Poll::Ready(check.as_mut().poll(cx))).await;
        }
    }
    let _ = timeout(Duration::ZERO, guard.check()).await;
    soon("the answer", guard.check()).await.unwrap();
    assert_eq!(home.count("stock", guard.hold_id()).await, Some(1));
    guard.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn checks_at_once_of_all_levels_are_answered() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    let all = async { tokio::join!(outer.check(), inner.check(), outer.extend(LONG), inner.check()) };
    let (one, two, three, four) = soon("the answers", all).await;
    one.and(two).and(three).and(four).unwrap();
    inner.release().await.unwrap();
    outer.release().await.unwrap();
}

#[tokio::test]
async fn a_level_whose_max_hold_is_over_is_lost_by_its_check() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock");
    let guard = stock.lock().max_hold(SECOND / 10).await.unwrap();
    soon("its end", guard.lost()).await;
    assert_eq!(guard.check().await.unwrap_err().loss(), Some(Loss::MaxHold));
}

#[tokio::test]
async fn after_a_close_nothing_is_checked() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    locks.close().await.unwrap();
    is(&guard.check().await.unwrap_err(), ErrorKind::Closed, Some("stock"), &[]);
}

#[tokio::test]
async fn a_check_of_several_names_reports_the_first_that_is_gone() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let guards = locks.mutexes(["account:1", "account:2", "account:3"]).lock().await.unwrap();
    guards.check().await.unwrap();
    home.lose("account:2").await;
    let error = soon("the answers", guards.check()).await.unwrap_err();
    assert_eq!((error.loss(), error.lock()), (Some(Loss::Gone), Some("account:2")));
    let fenced = locks.mutexes(["order:1", "order:2"]).fenced().lock().await.unwrap();
    fenced.check().await.unwrap();
}
