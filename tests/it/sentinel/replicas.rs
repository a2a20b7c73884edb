//! Grants that replicas acknowledge, with sentinels that name the master.

use super::SECOND;
use super::failover::replicated;
use crate::support::sentinel::Group;
use crate::support::soon;

#[tokio::test]
async fn the_connection_for_acquires_follows_a_failover_too() {
    let group = Group::start().await;
    let locks = group
        .builder()
        .replicas(1, 20 * SECOND)
        .lease(60 * SECOND)
        .unavailable_after(60 * SECOND)
        .connect()
        .await
        .unwrap();
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    let old = &group.servers[0];
    // One of the replicas must have the hold, but the other one may be promoted. So this waits for both.
    replicated(&group, &guard).await;
    group.fail_over().await;
    let new = group.failed_over(old).await;
    let other = soon("another, once a replica has caught up", locks.mutex("other").lock()).await.unwrap();
    assert_eq!(new.ask::<Vec<String>>(&["HKEYS", "other"]).await, [other.hold_id()]);
    soon("its release", other.release()).await.unwrap();
    soon("the release", guard.release()).await.unwrap();
    assert!(new.keys().await.is_empty());
}
