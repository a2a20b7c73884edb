//! Failovers: another server becomes the master.

use std::time::Duration;

use std::cell::Cell;

use nestlock::{ErrorKind, Guard, Loss, Master};

use super::SECOND;
use crate::support::sentinel::{Group, NAME, Setup, is_master};
use crate::support::server::Server;
use crate::support::{eventually, options, quorum, soon};

pub(super) async fn fields(server: &Server) -> Vec<String> {
    server.ask(&["HKEYS", "stock"]).await
}

#[tokio::test]
async fn a_hold_survives_a_failover_on_demand() {
    let group = Group::with(Setup { silent: true, ..Setup::default() }).await;
    add_user(&group).await;
    let urls = group.urls("locker:secret@", "");
    let builder =
        || options(nestlock::Master::sentinel(&urls, NAME)).lease(60 * SECOND).poll_interval(3600 * SECOND);
    let locks = builder().connect().await.unwrap();
    let theirs = builder().connect().await.unwrap();
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    let old = &group.servers[0];
    let waiting = tokio::spawn(theirs.mutex("stock").lock());
    eventually("it listens", async || !old.channels().await.is_empty()).await;
    replicated(&group, &guard).await;
    group.fail_over().await;
    let new = group.failed_over(old).await;
    eventually("nobody is left with the old master", async || is_deserted(old).await).await;
    // The old master still accepts writes, but a hold that was taken there would be lost.
    assert!(is_master(old).await);
    assert_eq!(fields(new).await, [guard.hold_id()]);
    eventually("the waiter listens there", async || !new.channels().await.is_empty()).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    let next = soon("the waiter's turn, by message", waiting).await.unwrap().unwrap();
    assert_eq!(fields(new).await, [next.hold_id()]);
    next.release().await.unwrap();
    assert!(new.keys().await.is_empty());
}

#[tokio::test]
async fn several_holds_survive_a_failover_on_demand() {
    let group = Group::with(Setup { silent: true, ..Setup::default() }).await;
    add_user(&group).await;
    let builder =
        options(nestlock::Master::sentinel(group.urls("locker:secret@", ""), NAME)).lease(60 * SECOND);
    let locks = builder.unavailable_after(60 * SECOND).connect().await.unwrap();
    let several = locks.mutexes(["order", "stock"]);
    let guards = soon("both", several.lock()).await.unwrap();
    let old = &group.servers[0];
    eventually("the replicas have them", async || {
        let mut all = true;
        for server in &group.servers {
            all &= server.keys().await == ["order", "stock"];
        }
        all
    })
    .await;
    group.fail_over().await;
    let new = group.failed_over(old).await;
    eventually("nobody is left with the old master", async || is_deserted(old).await).await;
    assert!(!guards.is_lost());
    soon("the release", guards.release()).await.unwrap();
    assert!(new.keys().await.is_empty());
    soon("both", several.lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn sentinels_that_were_set_up_again_are_followed_although_their_epochs_restart() {
    let group = Group::start().await;
    add_user(&group).await;
    let locks =
        options(nestlock::Master::sentinel(group.urls("locker:secret@", ""), NAME)).lease(60 * SECOND);
    let locks = locks.unavailable_after(60 * SECOND).connect().await.unwrap();
    // After these failovers the client has seen a greater epoch than the new configuration will reach.
    let mut master = &group.servers[0];
    for _ in 0..2 {
        group.fail_over().await;
        master = group.failed_over(master).await;
        group.settled().await;
    }
    soon("a run", locks.mutex("stock").run(async |_| {})).await.unwrap();
    assert!(!is_deserted(master).await);
    group.set_up_again(master).await;
    group.be_silent().await;
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    for replica in group.servers.iter().filter(|server| server.port() != master.port()) {
        eventually("the replica has it", async || fields(replica).await == [guard.hold_id()]).await;
    }
    group.fail_over().await;
    let new = group.failed_over(master).await;
    eventually("nobody is left with the old master", async || is_deserted(master).await).await;
    // The old master is still a master, but what is written there would be lost.
    assert!(is_master(master).await);
    soon("the release", guard.release()).await.unwrap();
    assert!(new.keys().await.is_empty());
    assert_eq!(fields(master).await.len(), 1);
}

/// Adds a user that distinguishes the connections of this crate from those of sentinels and replicas.
pub(super) async fn add_user(group: &Group) {
    for server in &group.servers {
        let rule = ["ACL", "SETUSER", "locker", "on", ">secret", "~*", "&*", "+@all"];
        server.ask::<String>(&rule).await;
    }
}

pub(super) async fn is_deserted(server: &Server) -> bool {
    let list: String = server.ask(&["CLIENT", "LIST"]).await;
    !list.contains("user=locker")
}

#[tokio::test]
async fn a_hold_survives_the_masters_death() {
    let group = Group::start().await;
    let locks = group.builder().lease(60 * SECOND).unavailable_after(60 * SECOND).connect().await.unwrap();
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    let old = &group.servers[0];
    replicated(&group, &guard).await;
    old.kill();
    let other = soon("another lock, on the new master", locks.mutex("other").lock()).await.unwrap();
    let new = group.failed_over(old).await;
    assert_eq!(fields(new).await, [guard.hold_id()]);
    assert!(!guard.is_lost());
    soon("a release", guard.release()).await.unwrap();
    soon("a release", other.release()).await.unwrap();
    assert!(new.keys().await.is_empty());
}

/// Waits until the replicas have the hold. A failover loses a hold that no replica has.
pub(super) async fn replicated(group: &Group, guard: &Guard) {
    for replica in &group.servers[1..] {
        eventually("the replica has it", async || fields(replica).await == [guard.hold_id()]).await;
    }
}

#[tokio::test]
async fn a_failover_that_lost_the_hold_is_reported() {
    let group = Group::start().await;
    let locks = group.builder().lease(3600 * SECOND).connect().await.unwrap();
    let (old, replicas) = (&group.servers[0], &group.servers[1..]);
    // The replicas are frozen and disconnected, so no writes of the lock reach them.
    replicas.iter().for_each(Server::freeze);
    old.ask::<usize>(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    old.kill();
    replicas.iter().for_each(Server::thaw);
    let new = group.failed_over(old).await;
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let next = soon("the next one", locks.mutex("stock").lock()).await.unwrap();
    assert_eq!(fields(new).await, [next.hold_id()]);
    next.release().await.unwrap();
}

#[tokio::test]
async fn an_old_master_that_wakes_up_is_not_gone_back_to() {
    let group = Group::with(Setup { silent: true, ..Setup::default() }).await;
    let connect =
        async || group.builder().lease(60 * SECOND).unavailable_after(60 * SECOND).connect().await.unwrap();
    let (ours, theirs) = (connect().await, connect().await);
    let guard = soon("the lock", ours.mutex("stock").lock()).await.unwrap();
    let old = &group.servers[0];
    replicated(&group, &guard).await;
    old.freeze();
    let new = group.failed_over(old).await;
    old.thaw();
    // This client knows the master only from the sentinels' reports.
    assert!(soon("an answer", theirs.mutex("stock").try_lock()).await.unwrap().is_none());
    let other = soon("another", theirs.mutex("other").lock()).await.unwrap();
    assert!(is_master(old).await);
    assert_eq!(new.ask::<Vec<String>>(&["HKEYS", "other"]).await, [other.hold_id()]);
    other.release().await.unwrap();
    soon("a release", guard.release()).await.unwrap();
    eventually("free", async || new.keys().await.is_empty()).await;
}

#[tokio::test]
async fn one_of_several_masters_may_be_watched() {
    let group = Group::start().await;
    let others = [Server::start().await, Server::start().await];
    let masters = [
        Master::sentinel(group.urls("", ""), NAME),
        Master::server(others[0].url()),
        Master::server(others[1].url()),
    ];
    let builder = quorum(masters);
    let locks = builder.lease(60 * SECOND).restart_delay(Duration::ZERO).connect().await.unwrap();
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    let old = &group.servers[0];
    eventually("all have it", async || {
        !fields(old).await.is_empty()
            && !fields(&others[0]).await.is_empty()
            && !fields(&others[1]).await.is_empty()
    })
    .await;
    replicated(&group, &guard).await;
    group.fail_over().await;
    let new = group.failed_over(old).await;
    others[0].kill();
    soon("a run, on the new master and the one that is left", locks.mutex("other").run(async |_| {}))
        .await
        .unwrap();
    assert_eq!(fields(new).await, [guard.hold_id()]);
    soon("a release", guard.release()).await.unwrap();
    eventually("free", async || new.keys().await.is_empty()).await;
}

#[tokio::test]
async fn the_old_master_is_left_before_there_is_a_new_one() {
    is_left_before_there_is_a_new_one(|builder| builder).await;
}

/// If grants wait for replicas, there are two connections to the master. Grants that continued over one of them would be lost, although the
/// replica that is not promoted acknowledged them.
#[tokio::test]
async fn with_replicas_too_the_old_master_is_left_before_there_is_a_new_one() {
    is_left_before_there_is_a_new_one(|builder| builder.replicas(1, 20 * SECOND)).await;
}

/// The leader of a failover may be a second late. Meanwhile the other sentinels don't know about the failover, and name the old master.
#[tokio::test]
async fn the_old_master_is_not_gone_back_to_while_the_leader_of_a_failover_is_silent() {
    does_not_go_back(|builder| builder).await;
}

#[tokio::test]
async fn with_replicas_too_the_old_master_is_not_gone_back_to_while_the_leader_of_a_failover_is_silent() {
    does_not_go_back(|builder| builder.replicas(1, 20 * SECOND)).await;
}

async fn does_not_go_back(options_of: fn(nestlock::Builder) -> nestlock::Builder) {
    let group = Group::with(Setup { silent: true, ..Setup::default() }).await;
    add_user(&group).await;
    let builder =
        options(nestlock::Master::sentinel(group.urls("locker:secret@", ""), NAME)).lease(60 * SECOND);
    let locks = options_of(builder).unavailable_after(60 * SECOND).connect().await.unwrap();
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    let (old, leader) = (&group.servers[0], &group.sentinels[0]);
    replicated(&group, &guard).await;
    leave(&group, old).await;
    leader.freeze();
    // One of the replicas is promoted, and only the leader notices that.
    group.servers[1..].iter().for_each(Server::thaw);
    let other = &group.sentinels[1];
    let (looks, ours) = (other.connections().await, Cell::new(0));
    eventually("looks at the others, which name the old master", async || {
        assert!(is_deserted(old).await, "the client went back to a master that most sentinels name");
        ours.set(ours.get() + 1);
        other.connections().await - looks - ours.get() > 2
    })
    .await;
    let error = soon("an answer", locks.mutex("other").try_lock()).await.unwrap_err();
    assert!(error.to_string().contains("a failover of the master"), "{error}");
    leader.thaw();
    let new = group.failed_over(old).await;
    soon("another", locks.mutex("other").lock()).await.unwrap().release().await.unwrap();
    soon("a release", guard.release()).await.unwrap();
    assert!(new.keys().await.is_empty());
}

async fn is_left_before_there_is_a_new_one(options_of: fn(nestlock::Builder) -> nestlock::Builder) {
    let group = Group::with(Setup { silent: true, ..Setup::default() }).await;
    add_user(&group).await;
    let builder =
        options(nestlock::Master::sentinel(group.urls("locker:secret@", ""), NAME)).lease(60 * SECOND);
    let locks = options_of(builder).unavailable_after(60 * SECOND).connect().await.unwrap();
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    let (old, replicas) = (&group.servers[0], &group.servers[1..]);
    replicated(&group, &guard).await;
    leave(&group, old).await;
    assert_eq!(group.master().await.port(), old.port(), "there is another master already");
    let error = soon("an answer", locks.mutex("other").try_lock()).await.unwrap_err();
    assert!(error.to_string().contains("a failover of the master"), "{error}");
    replicas.iter().for_each(Server::thaw);
    soon("another", locks.mutex("other").lock()).await.unwrap().release().await.unwrap();
    soon("a release", guard.release()).await.unwrap();
}

/// Begins a failover that the first sentinel leads. Returns once that sentinel has chosen a replica and the client has left. The replicas
/// are then frozen, since a frozen replica can't be promoted.
async fn leave(group: &Group, old: &Server) {
    let (replicas, leader) = (&group.servers[1..], &group.sentinels[0]);
    // If the sentinels notice too soon that the replicas are frozen, no failover begins, or it is given up.
    for _ in 0..10 {
        leader.new_lines();
        replicas.iter().for_each(Server::freeze);
        if leader.try_ask::<()>(&["SENTINEL", "FAILOVER", NAME]).await.is_ok() {
            let chosen = Cell::new(false);
            eventually("a replica, or none", async || {
                let lines = leader.new_lines();
                let is_logged = |what: &str| lines.iter().any(|line| line.contains(what));
                chosen.set(is_logged("+failover-state-send-slaveof-noone"));
                chosen.get() || is_logged("-failover-abort")
            })
            .await;
            if chosen.get() {
                return eventually("nobody is left with the old master", async || is_deserted(old).await)
                    .await;
            }
        }
        replicas.iter().for_each(Server::thaw);
        group.settled().await;
    }
    panic!("no failover has begun");
}
