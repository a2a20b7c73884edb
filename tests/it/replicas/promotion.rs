//! A replica that lacks a hold becomes the master.

use nestlock::ErrorKind;

use super::*;
use crate::support::{builder, soon};

async fn promote(master: &Server, replica: &Server) {
    // The master is frozen before the replica continues. Otherwise the replica would receive what it lacks.
    master.freeze();
    replica.thaw();
    replica.ask::<String>(&["REPLICAOF", "NO", "ONE"]).await;
}

/// This is the limit that the guide describes: a single master guarantees nothing if it is replaced by a replica that lacks writes.
#[tokio::test]
async fn without_an_acknowledgement_two_may_hold_a_lock() {
    let (old, replicas) = master(1).await;
    let ours = builder(&old.url()).lease(60 * SECOND).connect().await.unwrap();
    cut_off(&old, &replicas[0]).await;
    let first = soon("the lock", ours.mutex("stock").lock()).await.unwrap();
    promote(&old, &replicas[0]).await;
    let theirs = builder(&replicas[0].url()).connect().await.unwrap();
    let second = soon("the same lock", theirs.mutex("stock").lock()).await.unwrap();
    assert!(!first.is_lost() && !second.is_lost(), "without an acknowledgement both should hold it");
    assert!(first.valid_until() > tokio::time::Instant::now() + 20 * SECOND);
}

#[tokio::test]
async fn what_no_replica_has_is_not_granted() {
    let (old, replicas) = master(1).await;
    let ours = builder(&old.url()).replicas(1, SHORT).lease(60 * SECOND).connect().await.unwrap();
    cut_off(&old, &replicas[0]).await;
    let error = soon("an answer", ours.mutex("stock").try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of the 1 replicas"), "{error}");
    promote(&old, &replicas[0]).await;
    let theirs = builder(&replicas[0].url()).connect().await.unwrap();
    soon("the lock", theirs.mutex("stock").lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_the_replica_has_is_held_there() {
    let (old, replicas) = master(1).await;
    let ours = builder(&old.url()).replicas(1, LONG).lease(60 * SECOND).connect().await.unwrap();
    let first = soon("the lock", ours.mutex("stock").lock()).await.unwrap();
    cut_off(&old, &replicas[0]).await;
    promote(&old, &replicas[0]).await;
    let theirs = builder(&replicas[0].url()).connect().await.unwrap();
    assert!(soon("an answer", theirs.mutex("stock").try_lock()).await.unwrap().is_none());
    assert_eq!(fields(&replicas[0], "stock").await, [first.hold_id()]);
}
