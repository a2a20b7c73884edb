//! A `Locks` that is used without waiting for its connections: the first requests wait for the home.

use nestlock::ErrorKind;

use super::{Home, LONG};
use crate::support::soon;

/// The first request comes before the client can have tried to connect.
#[tokio::test]
async fn a_locks_that_is_connected_lazily_works_at_once() {
    let home = Home::start().await;
    let lazily = || home.builder().lease(LONG).connect_lazily().unwrap();
    let (ours, theirs) = (lazily(), lazily());
    let stock = ours.mutex("stock");
    let guard = stock.try_lock().await.unwrap().expect("nobody else has it");
    assert!(theirs.mutex("stock").is_locked().await.unwrap());
    let waits = tokio::spawn(theirs.mutex("stock").lock());
    stock.lock().await.unwrap().release().await.unwrap();
    home.listened().await;
    guard.release().await.unwrap();
    soon("the lock", waits).await.unwrap().unwrap().release().await.unwrap();
    let fenced = lazily().mutex("fenced").fenced().try_lock().await.unwrap().expect("nobody else has it");
    fenced.release().await.unwrap();
    home.tidy().await;
}

#[tokio::test]
async fn a_locks_that_is_connected_lazily_may_be_closed_at_once_or_dropped() {
    let home = Home::start().await;
    let (closed, used) = (home.builder().connect_lazily().unwrap(), home.builder().connect_lazily().unwrap());
    closed.close().await.unwrap();
    assert_eq!(closed.mutex("stock").lock().await.unwrap_err().kind(), ErrorKind::Closed);
    let (guard, stock) = (used.mutex("stock").lock().await.unwrap(), used.mutex("stock"));
    drop((used, guard));
    soon("the lock", home.locks().await.mutex("stock").lock()).await.unwrap().release().await.unwrap();
    drop((stock, closed, home.builder().connect_lazily().unwrap()));
    home.deserted().await;
}
