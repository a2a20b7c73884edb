//! What the renewal thread does not renew, and what the answers to it do not change.

use std::time::Duration;

use nestlock::{Guard, Loss};
use tokio::time::Instant;
use tracing::Level;

use super::{Blocked, LEASE, Runtime, SECOND};
use crate::support::proxy::Proxy;
use crate::support::sentinel::{Group, Setup};
use crate::support::server::Server;
use crate::support::{builder, eventually, log, soon};

#[tokio::test]
async fn a_runtime_that_is_blocked_for_too_long_loses_its_locks() {
    log::capture();
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let strangers = builder(&server.url()).connect().await.unwrap();
    let renewals = proxy.on(|c| c.is("renew") || c.is("renew_all")).watch();
    let builder = builder(&proxy.url()).lease(LEASE).blocked_for(2 * LEASE);
    let blocked = Blocked::begin(builder, Runtime::OneThread).await;
    // The thread renews: nothing else runs here.
    renewals.seen().await;
    let given_up = log::recorded(|event| event.level == Level::ERROR && event.mentions("blocked_for")).await;
    assert!(given_up.message.contains("off its workers"));
    for name in ["stock", "neighbour"] {
        drop(soon("the lock of a runtime that never runs", strangers.mutex(name).lock()).await.unwrap());
    }
    for guard in blocked.go_on().await {
        assert_eq!(guard.loss(), Some(Loss::Expired));
    }
}

/// 1. A renewal is sent and runs on the server. 2. Its answer arrives 2 s later. 3. The deadline counts from before the send.
#[tokio::test]
async fn the_deadline_counts_from_before_the_thread_has_sent() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let late = proxy.on(|c| c.is("renew") || c.is("renew_all")).times(1).hold_reply();
    // The lease is so long that the thread waits for the answer throughout the test.
    let lease = 60 * SECOND;
    let blocked = Blocked::begin(builder(&proxy.url()).lease(lease), Runtime::OneThread).await;
    let guard = &blocked.guards[0];
    let first = guard.valid_until();
    late.seen().await;
    let sent_before = Instant::now();
    tokio::time::sleep(2 * SECOND).await;
    late.let_through().await;
    eventually("its answer", async || guard.valid_until() > first).await;
    assert!(guard.valid_until() < sent_before + lease, "counted from before the send");
    blocked.go_on().await;
}

/// Making the connection takes longer than the thread's pause between two looks.
#[tokio::test]
async fn a_connection_of_the_thread_that_takes_long_to_be_made_is_not_given_up_with_each_look() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let lease = 3 * LEASE;
    let builder = builder(&proxy.url()).lease(lease).node_timeout(lease / 2);
    let blocked = Blocked::begin(builder, Runtime::OneThread).await;
    let _slow = proxy.on(|c| c.is("info")).delay_reply(lease / 4);
    let first = blocked.guards[0].valid_until();
    eventually("a renewal", async || blocked.guards[0].valid_until() > first).await;
    assert!(!blocked.is_lost());
    blocked.go_on().await;
}

/// The thread leaves a hold that is gone to the runtime, and does not touch the hold that another process has got by then.
#[tokio::test]
async fn a_hold_that_was_ended_meanwhile_is_not_revived() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let strangers = builder(&server.url()).lease(60 * SECOND).connect().await.unwrap();
    let renewals = proxy.on(|c| c.is("renew") || c.is("renew_all")).watch();
    let blocked = Blocked::begin(builder(&proxy.url()).lease(LEASE), Runtime::OneThread).await;
    renewals.seen().await;
    assert_eq!(server.ask::<i64>(&["DEL", "stock"]).await, 1);
    strangers.mutex("neighbour").force_release().await.unwrap();
    let theirs = [
        soon("the lock", strangers.mutex("stock").lock()).await.unwrap(),
        soon("the lock", strangers.mutex("neighbour").lock()).await.unwrap(),
    ];
    let taken = Instant::now();
    for _ in 0..3 {
        renewals.seen().await;
    }
    // An answer to a renewal that ran before the other process took the lock may be counted only now.
    assert!(blocked.guards.iter().all(|guard| guard.valid_until() < taken + LEASE), "revived");
    for (name, guard) in ["stock", "neighbour"].into_iter().zip(&theirs) {
        assert_eq!(server.ask::<Vec<String>>(&["HKEYS", name]).await, [guard.hold_id()]);
    }
    for guard in blocked.go_on().await {
        assert!(guard.loss().is_some());
    }
    for guard in theirs {
        guard.release().await.unwrap();
    }
}

/// The thread renews neither a fixed lease nor a hold that is over by `max_hold`, although the runtime has not noticed that yet.
#[tokio::test]
async fn what_has_an_end_of_its_own_is_not_renewed_beyond_it() {
    let server = Server::start().await;
    let strangers = builder(&server.url()).connect().await.unwrap();
    let builder = builder(&server.url()).lease(LEASE).blocked_for(Duration::MAX);
    let blocked = Blocked::with(builder, Runtime::OneThread, async |locks| {
        let fixed = locks.mutex("fixed").lock().fixed_lease(LEASE).await.unwrap();
        [fixed, locks.mutex("limited").lock().max_hold(2 * LEASE).await.unwrap()]
    })
    .await;
    for name in ["fixed", "limited"] {
        let guard: Guard = soon("what is over", strangers.mutex(name).lock()).await.unwrap();
        guard.release().await.unwrap();
    }
    let [fixed, limited] = blocked.go_on().await;
    assert_eq!((fixed.loss(), limited.loss()), (Some(Loss::Expired), Some(Loss::MaxHold)));
}

#[tokio::test]
async fn with_zero_only_the_runtime_renews() {
    let server = Server::start().await;
    let strangers = builder(&server.url()).connect().await.unwrap();
    let builder = builder(&server.url()).lease(LEASE).blocked_for(Duration::ZERO);
    let blocked = Blocked::begin(builder, Runtime::OneThread).await;
    drop(soon("the lock", strangers.mutex("stock").lock()).await.unwrap());
    assert!(blocked.is_lost());
    assert_eq!(blocked.go_on().await[0].loss(), Some(Loss::Expired));
}

/// The old master still accepts writes, and the runtime that would follow the sentinels does not run.
#[tokio::test]
async fn an_old_master_renews_nothing() {
    let group = Group::with(Setup { silent: true, ..Setup::default() }).await;
    let strangers = group.builder().lease(LEASE).unavailable_after(60 * SECOND).connect().await.unwrap();
    let blocked = Blocked::begin(group.builder().lease(LEASE), Runtime::OneThread).await;
    let old = &group.servers[0];
    let first = blocked.guards[0].valid_until();
    eventually("a renewal", async || blocked.guards[0].valid_until() > first).await;
    group.fail_over().await;
    group.failed_over(old).await;
    let theirs = soon("the lock, by the new master", strangers.mutex("stock").lock()).await.unwrap();
    assert!(blocked.guards[0].is_lost(), "two hold it");
    blocked.go_on().await;
    assert!(!theirs.is_lost());
    theirs.release().await.unwrap();
}
