//! Grants that count, and grants that are undone.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use nestlock::{ErrorKind, Owner};
use tokio::task::JoinSet;

use super::*;
use crate::support::proxy::Proxy;
use crate::support::{builder, eventually, soon};

#[tokio::test]
async fn a_grant_is_on_all_replicas_that_it_waits_for() {
    let (master, replicas) = master(2).await;
    let locks = builder(&master.url()).replicas(2, LONG).connect().await.unwrap();
    for _ in 0..20 {
        let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
        for replica in &replicas {
            assert_eq!(fields(replica, "stock").await, [guard.hold_id()]);
        }
        let inner = soon("the same again", locks.mutex("stock").lock()).await.unwrap();
        for replica in &replicas {
            assert_eq!(replica.ask::<Vec<String>>(&["HVALS", "stock"]).await, ["2"]);
        }
        inner.release().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn with_too_few_replicas_a_grant_is_undone_and_asked_for_again() {
    let (master, replicas) = master(2).await;
    let connect = async |count, wait| {
        let builder = builder(&master.url()).replicas(count, wait).unavailable_after(60 * SECOND);
        builder.lease(60 * SECOND).connect().await.unwrap().mutex("stock")
    };
    // Two seconds are enough for the working replica, even on a busy machine.
    let (one, both) = (connect(1, LONG).await, connect(2, 2 * SECOND).await);
    replicas[0].freeze();
    let error = soon("an answer", both.try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("1 of the 2 replicas"), "{error}");
    // The grant is undone long before the end of the lease.
    eventually("it is undone", async || master.keys().await.is_empty()).await;
    let guard = soon("the lock, with one replica", one.lock()).await.unwrap();
    assert!(soon("busy", both.try_lock()).await.unwrap().is_none());
    guard.release().await.unwrap();
    let waiting = tokio::spawn(both.lock());
    let refused = async || master.commands_run().await.get("wait").is_some_and(|run| *run > 4);
    eventually("some attempts", refused).await;
    replicas[0].thaw();
    let guard = soon("the lock, with both", waiting).await.unwrap().unwrap();
    assert_eq!(fields(&replicas[0], "stock").await, [guard.hold_id()]);
    guard.release().await.unwrap();
    assert!(master.keys().await.is_empty());
}

#[tokio::test]
async fn renewals_and_releases_go_on_while_an_acquire_waits() {
    let (master, replicas) = master(1).await;
    let builder = builder(&master.url()).replicas(1, 15 * SECOND).lease(18 * SECOND);
    let locks = builder.connect().await.unwrap();
    let kept = soon("the lock", locks.mutex("kept").lock()).await.unwrap();
    let stock = soon("another", locks.mutex("stock").lock()).await.unwrap();
    replicas[0].freeze();
    let asking = tokio::spawn(locks.mutex("other").try_lock());
    eventually("it is asked for", async || !fields(&master, "other").await.is_empty()).await;
    soon("a release", stock.release()).await.unwrap();
    let until = kept.valid_until();
    eventually("a renewal", async || kept.valid_until() > until).await;
    assert!(!asking.is_finished());
    replicas[0].thaw();
    let other = soon("the answer", asking).await.unwrap().unwrap().unwrap();
    other.release().await.unwrap();
    kept.release().await.unwrap();
}

#[tokio::test]
async fn acquires_that_come_together_wait_together() {
    let (master, _replicas) = master(1).await;
    let locks = builder(&master.url()).replicas(1, LONG).connect().await.unwrap();
    let mut asking = JoinSet::new();
    for name in 0..300 {
        asking.spawn(locks.mutex(format!("stock:{name}")).lock().owner(&Owner::new()));
    }
    let guards = soon("all of them", asking.join_all()).await;
    let waits = master.commands_run().await["wait"];
    println!("{waits} times");
    assert!(waits < 100, "{waits} times");
    for guard in guards {
        guard.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_leaves_nothing() {
    let (master, replicas) = master(1).await;
    let locks = builder(&master.url()).replicas(1, SHORT).lease(3600 * SECOND).connect().await.unwrap();
    for round in 0..60 {
        if round == 30 {
            replicas[0].freeze();
        }
        let stock = locks.mutex("stock");
        let mut asking = pin!(stock.lock().owner(&Owner::new()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(asking.as_mut().poll(&mut context).is_pending());
        // The request is dropped before it is sent, before it is answered, or while it waits for replicas.
        let pause = std::time::Duration::from_micros(300 * (round % 10));
        let _ = tokio::time::timeout(pause, asking).await;
    }
    eventually("nothing is left", async || master.keys().await.is_empty()).await;
}

#[tokio::test]
async fn what_undoes_an_acquire_does_not_overtake_it() {
    let (master, _replicas) = master(1).await;
    let proxy = Proxy::to(&master).await;
    let builder = builder(&proxy.url()).node_timeout(20 * SECOND).lease(3600 * SECOND);
    let locks = builder.replicas(1, LONG).connect().await.unwrap();
    let held = proxy.on(|c| c.is("acquire")).times(1).hold();
    let asking = tokio::spawn(locks.mutex("stock").lock());
    soon("the acquire", held.seen()).await;
    let undone = proxy.on(|c| c.is("release") || c.is("settle")).watch();
    asking.abort();
    // This is enough time for a command over the other connection.
    for _ in 0..50 {
        assert!(!locks.mutex("stock").is_locked().await.unwrap());
    }
    assert!(undone.seen_now().is_none());
    held.let_through().await;
    soon("the end", undone.seen()).await;
    eventually("nothing is left", async || master.keys().await.is_empty()).await;
}

/// If a replica that lacks the move were promoted, the claim could be used again.
#[tokio::test]
async fn a_resumed_hold_is_on_all_replicas_that_it_waits_for() {
    let (master, replicas) = master(2).await;
    let locks = builder(&master.url()).replicas(2, LONG).connect().await.unwrap();
    for _ in 0..20 {
        let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
        let claim = soon("the claim", guard.into_claim()).await.unwrap();
        let guard = soon("the hold", locks.mutex("stock").resume(&claim)).await.unwrap();
        for replica in &replicas {
            assert_eq!(fields(replica, "stock").await, [guard.hold_id()]);
        }
        guard.release().await.unwrap();
    }
}
