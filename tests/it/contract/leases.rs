//! How long a hold is valid, and what ends it.

use nestlock::{ErrorKind, Loss};
use tokio::time::{Instant, sleep_until};

use super::{Home, SECOND, less_drift};
use crate::support::{eventually, soon};

#[tokio::test]
async fn a_hold_is_lost_at_its_deadline_and_not_before() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let guard = stock.lock().fixed_lease(SECOND).await.unwrap();
    let end = guard.valid_until();
    assert!(!guard.is_lost() || Instant::now() >= end);
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert!(Instant::now() >= end);
    assert!(guard.is_lost() && !stock.is_held() && stock.hold_count() == 0);
}

#[tokio::test]
async fn an_extension_of_a_fixed_lease_moves_its_end() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let guard = stock.lock().fixed_lease(4 * SECOND).await.unwrap();
    let end = guard.valid_until();
    let before = Instant::now();
    guard.extend(8 * SECOND).await.unwrap();
    let extended = guard.valid_until();
    assert!(extended >= before + less_drift(8 * SECOND));
    sleep_until(end).await;
    assert!(!guard.is_lost());
    assert_eq!(soon("its end", guard.lost()).await, Loss::Expired);
    assert!(Instant::now() >= extended);
    assert_eq!(guard.extend(SECOND).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn an_extension_never_shortens() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let guard = stock.lock().fixed_lease(120 * SECOND).await.unwrap();
    let end = guard.valid_until();
    guard.extend(SECOND).await.unwrap();
    assert_eq!(guard.valid_until(), end);
    assert!(home.left("stock").await > Some(80 * SECOND));
}

/// No command shortens a TTL: once the longer level is gone, the client ends the key itself.
#[tokio::test]
async fn a_hold_whose_longer_level_went_is_ended_by_its_client_at_the_shorter_ones_end() {
    let home = Home::start().await;
    let (ours, strangers) = (home.locks().await, home.locks().await);
    let stock = ours.mutex("stock");
    let outer = stock.lock().fixed_lease(4 * SECOND).await.unwrap();
    let end = outer.valid_until();
    let inner = stock.lock().fixed_lease(120 * SECOND).await.unwrap();
    assert!(outer.valid_until() > end + 60 * SECOND, "a hold ends with the latest of its levels");
    inner.release().await.unwrap();
    assert_eq!(outer.valid_until(), end);
    assert!(home.left("stock").await > Some(60 * SECOND));
    let waiting = tokio::spawn(strangers.mutex("stock").lock());
    assert_eq!(soon("its end", outer.lost()).await, Loss::Expired);
    assert!(Instant::now() >= end);
    soon("the stranger, long before the TTL", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn an_inner_lease_never_shortens_an_outer_one() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let outer = stock.lock().fixed_lease(120 * SECOND).await.unwrap();
    let end = outer.valid_until();
    let inner = stock.lock().fixed_lease(5 * SECOND).await.unwrap();
    assert!(home.left("stock").await > Some(80 * SECOND));
    assert_eq!((outer.valid_until(), inner.valid_until()), (end, end));
    inner.release().await.unwrap();
    assert!(home.left("stock").await > Some(80 * SECOND));
    let watched = stock.lock().await.unwrap();
    assert!(home.left("stock").await > Some(80 * SECOND));
    watched.release().await.unwrap();
    assert!(home.left("stock").await > Some(80 * SECOND));
    assert_eq!(outer.valid_until(), end);
    outer.release().await.unwrap();
}

#[tokio::test]
async fn a_short_fixed_level_inside_a_watched_hold_does_not_end_it() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let inner = stock.lock().fixed_lease(SECOND).await.unwrap();
    sleep_until(Instant::now() + SECOND).await;
    assert!(!inner.is_lost() && !outer.is_lost() && stock.hold_count() == 2);
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn an_outer_fixed_lease_stays_good_while_an_inner_level_is_renewed_and_ends_with_it() {
    let home = Home::start().await;
    let stock = home.builder().lease(6 * SECOND).connect().await.unwrap().mutex("stock");
    let outer = stock.lock().fixed_lease(4 * SECOND).await.unwrap();
    let end = outer.valid_until();
    let inner = stock.lock().await.unwrap();
    eventually("a renewal", async || outer.valid_until() > end + 3 * SECOND).await;
    sleep_until(end).await;
    assert!(!outer.is_lost() && outer.valid_until() > end);
    inner.release().await.unwrap();
    assert_eq!(soon("the outer end", outer.lost()).await, Loss::Expired);
    eventually("the key's end", async || home.keys().await.is_empty()).await;
    assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
}
