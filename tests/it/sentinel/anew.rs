//! A master that is monitored again, by `SENTINEL REMOVE` and `SENTINEL MONITOR`: its configuration epoch is 0 again.

use std::collections::HashMap;

use super::SECOND;
use super::failover::{add_user, fields, is_deserted};
use crate::support::sentinel::{Group, NAME, is_master};
use crate::support::server::Server;
use crate::support::{eventually, options, soon};

/// A failover leads away from it in an epoch that is less than the one that the client saw before.
#[tokio::test]
async fn a_master_that_is_monitored_again_is_left_before_there_is_a_new_one() {
    let group = Group::start().await;
    add_user(&group).await;
    let locks = options().sentinel(group.urls("locker:secret@", ""), NAME).lease(60 * SECOND);
    let locks = locks.unavailable_after(60 * SECOND).connect().await.unwrap();
    let mut old = &group.servers[0];
    for _ in 0..2 {
        group.fail_over().await;
        old = group.failed_over(old).await;
        group.settled().await;
    }
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    assert!(!is_deserted(old).await, "it has seen the new epoch if it is here");
    group.monitor_again(old).await;
    group.be_silent().await;
    let replicas: Vec<&Server> = group.servers.iter().filter(|server| server.port() != old.port()).collect();
    for replica in &replicas {
        eventually("the replica has it", async || fields(replica).await == [guard.field()]).await;
    }
    assert!(!is_deserted(old).await, "nothing has changed for it");

    // One that is frozen can't be promoted: the failover stops there. The sentinels may find out too soon; then it does not begin.
    let mut left = false;
    for _ in 0..10 {
        replicas.iter().for_each(|replica| replica.freeze());
        let begun = group.sentinels[0].try_ask::<()>(&["SENTINEL", "FAILOVER", NAME]).await.is_ok();
        let deserted = async {
            while !is_deserted(old).await {
                tokio::time::sleep(SECOND / 100).await;
            }
        };
        left = begun && tokio::time::timeout(3 * SECOND, deserted).await.is_ok();
        if left {
            break;
        }
        let reported: HashMap<String, String> =
            group.sentinels[0].try_ask(&["SENTINEL", "MASTER", NAME]).await.unwrap();
        assert!(
            !reported["flags"].contains("failover_in_progress"),
            "it stays connected to a master that is about to be replaced"
        );
        replicas.iter().for_each(|replica| replica.thaw());
        group.settled().await;
    }
    assert!(left);
    assert_eq!(group.master().await.port(), old.port(), "there is no other yet");
    replicas.iter().for_each(|replica| replica.thaw());
    let new = group.failed_over(old).await;
    soon("a run", locks.mutex("other").run(async {})).await.unwrap();
    assert!(!guard.is_lost());
    soon("the release", guard.release()).await.unwrap();
    assert!(new.keys().await.is_empty());
    // What is written there is lost.
    assert!(is_master(old).await);
    assert_eq!(fields(old).await.len(), 1);
}
