//! Futures that are polled late.

use futures::poll;
use nestlock::Owner;

use super::{Home, LONG, SECOND};
use crate::support::soon;

/// 1. The release is sent and answered. 2. It is not polled for two node timeouts while another request waits: it is given up, and the
/// background sends it again. 3. It is polled.
#[tokio::test]
async fn a_release_that_is_polled_late_reports_what_became_of_it() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).node_timeout(SECOND).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let mut release = Box::pin(guard.release());
    assert!(poll!(&mut release).is_pending());
    let next = soon("the lock", stock.lock().owner(&Owner::new())).await.unwrap();
    soon("the release", release).await.unwrap();
    next.release().await.unwrap();
}
