//! How several commands of one hold affect one another.

use std::time::Duration;

use nestlock::scope;
use tokio::time::{Instant, sleep, timeout};

use super::Home;
use crate::support::{PATIENCE, soon};

#[tokio::test]
async fn short_leases_nested_in_a_renewed_hold_do_not_put_off_its_renewal() {
    let home = Home::start().await;
    let lease = Duration::from_secs(6);
    let locks = home.builder().lease(lease).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let end = Instant::now() + lease + lease / 2;
    while Instant::now() < end {
        let inner = stock.lock().fixed_lease(Duration::from_millis(50)).await.unwrap();
        // On a busy machine this short lease may be over by now. Only the outer lease matters.
        let _ = inner.release().await;
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(outer.loss(), None);
    outer.release().await.unwrap();
}

#[tokio::test]
async fn short_extensions_of_a_renewed_hold_do_not_put_off_its_renewal() {
    let home = Home::start().await;
    let lease = Duration::from_secs(6);
    let locks = home.builder().lease(lease).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    let end = Instant::now() + lease + lease / 2;
    while Instant::now() < end {
        guard.extend(Duration::from_millis(10)).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(guard.loss(), None);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_level_released_while_another_is_asked_for_is_confirmed() {
    let home = Home::start().await;
    let locks = super::counting(&home).await;
    let stock = locks.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let second = stock.lock().await.unwrap();
    // 1. The acquire of level 3 is sent. 2. Level 2 is released. 3. The acquire is granted: the server counts 3, and this process counts 2.
    let (third, released) = soon("both", async {
        tokio::join!(biased; scope(async { stock.lock().await.unwrap() }), second.release())
    })
    .await;
    released.unwrap();
    assert_eq!(home.count("stock", outer.hold_id()).await, Some(2));
    third.release().await.unwrap();
    outer.release().await.unwrap();
}

#[tokio::test]
async fn close_counts_a_release_that_its_caller_sent() {
    let home = Home::start().await;
    let locks = home.builder().node_timeout(PATIENCE / 4).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    let both = async { tokio::join!(biased; guard.release(), locks.close()) };
    let (released, closed) = timeout(PATIENCE / 4, both).await.expect("nothing is left to wait for");
    released.unwrap();
    closed.unwrap();
}

#[tokio::test]
async fn the_last_release_after_close_ends_the_connections() {
    let home = Home::start().await;
    let locks = home.builder().lease(PATIENCE * 20).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    locks.close().await.unwrap();
    guard.release().await.unwrap();
    home.deserted().await;
    drop(locks);
}
