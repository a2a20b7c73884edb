//! A master that is monitored again, after `SENTINEL REMOVE` and `SENTINEL MONITOR`: its configuration epoch starts from 0 again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nestlock::{Guard, Locks, Owner};

use super::SECOND;
use super::failover::{add_user, fields, is_deserted};
use crate::support::proxy::{Proxy, Which};
use crate::support::sentinel::{Group, NAME, is_master};
use crate::support::server::Server;
use crate::support::{eventually, options, soon};

/// A failover replaces the master, in an epoch that is less than the one that the client saw before.
#[tokio::test]
async fn a_master_that_is_monitored_again_is_left_before_there_is_a_new_one() {
    let group = Group::start().await;
    add_user(&group).await;
    let locks =
        options(nestlock::Master::sentinel(group.urls("locker:secret@", ""), NAME)).lease(60 * SECOND);
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
        eventually("the replica has it", async || fields(replica).await == [guard.hold_id()]).await;
    }
    assert!(!is_deserted(old).await, "nothing has changed for it");

    // A frozen replica can't be promoted, so the failover stops there. If the sentinels notice the freeze too soon, the failover doesn't
    // begin.
    let mut left = false;
    for _ in 0..10 {
        replicas.iter().for_each(|replica| replica.freeze());
        let begun = group.sentinels[0].try_ask::<()>(&["SENTINEL", "FAILOVER", NAME]).await.is_ok();
        let deserted = async {
            while !is_deserted(old).await {
                tokio::time::sleep(SECOND / 100).await;
            }
        };
        left = begun && tokio::time::timeout(8 * SECOND, deserted).await.is_ok();
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
    assert_eq!(group.master().await.port(), old.port(), "there is another master already");
    replicas.iter().for_each(|replica| replica.thaw());
    let new = group.failed_over(old).await;
    soon("a run", locks.mutex("other").run(async |_| {})).await.unwrap();
    assert!(!guard.is_lost());
    soon("the release", guard.release()).await.unwrap();
    assert!(new.keys().await.is_empty());
    // The old master is still a master, but what is written there is lost.
    assert!(is_master(old).await);
    assert_eq!(fields(old).await.len(), 1);
}

/// The leader of the failover answers first. So its report counts alone, with an epoch that is less than the one that the client saw
/// before. What is granted at the old master after the promotion is lost.
///
/// A busy machine may notice a failover too late, so of several failovers two in a row have to lose nothing, or three in all.
#[tokio::test]
async fn no_grant_is_lost_in_a_failover_whose_leader_is_the_first_to_report_it() {
    let group = Group::start().await;
    let ways = [Proxy::to_sentinel(&group.sentinels[1]).await, Proxy::to_sentinel(&group.sentinels[2]).await];
    let slow = ways.each_ref().map(|way| way.on(|command| command.is("sentinel")).delay_reply(SECOND / 20));
    let urls = [group.urls("", "").swap_remove(0), ways[0].url(), ways[1].url()];
    let locks =
        options(nestlock::Master::sentinel(urls, NAME)).lease(60 * SECOND).unavailable_after(60 * SECOND);
    let locks = locks.connect().await.unwrap();
    let mut old = &group.servers[0];
    let mut lost = Vec::new();
    for _ in 0..40 {
        // This failover makes the epoch greater than the one with which the sentinels begin again.
        group.fail_over().await;
        old = group.failed_over(old).await;
        group.settled().await;
        soon("a run", locks.mutex("before").run(async |_| {})).await.unwrap();
        group.monitor_again(old).await;
        // The client queries again, so it has the new epochs of all sentinels, not their earlier ones.
        for (way, slow) in ways.iter().zip(&slow) {
            while slow.done_now().is_some() {}
            way.reset(Which::Subscribers).await;
            slow.done().await;
            slow.done().await;
        }
        group.sentinels[0].new_lines();

        // This client doesn't use the sentinels. Its lost grants show that grants are lost at all.
        let control = options(old.url()).lease(60 * SECOND).connect().await.unwrap();
        let stop = Arc::<AtomicBool>::default();
        let ours = tokio::spawn(keep_locking(locks.clone(), "ours", stop.clone()));
        let theirs = tokio::spawn(keep_locking(control, "theirs", stop.clone()));
        eventually("a grant of each", async || old.keys().await.len() > 1).await;
        group.fail_over().await;
        let new = group.failed_over(old).await;
        soon("a run", locks.mutex("behind").run(async |_| {})).await.unwrap();
        stop.store(true, Ordering::SeqCst);
        let (ours, theirs) = (ours.await.unwrap(), theirs.await.unwrap());
        let kept = new.keys().await;
        let is_lost = |guard: &&Guard| !kept.contains(&guard.name().to_owned());
        let count = |guards: &[Guard]| guards.iter().filter(is_lost).count();
        // An old message about another master in a greater epoch may reach a sentinel late. Then the failover was not the one that this
        // test asked for.
        if !group.sentinels[0].new_lines().iter().any(|line| line.contains("+config-update-from")) {
            lost.push((count(&ours), count(&theirs)));
        }
        let kept_all = lost.iter().filter(|lost| matches!(lost, (0, 1..))).count();
        if matches!(*lost, [.., (0, 1..), (0, 1..)]) || kept_all >= 3 {
            drop(slow);
            return;
        }
        old = new;
        group.settled().await;
    }
    panic!("lost grants of the client and of the control: {lost:?}");
}

/// Takes one lock after another, and keeps them.
async fn keep_locking(locks: Locks, prefix: &str, stop: Arc<AtomicBool>) -> Vec<Guard> {
    let (mut guards, mut pace) = (Vec::new(), tokio::time::interval(Duration::from_millis(5)));
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        pace.tick().await;
        let attempt = locks.mutex(format!("{prefix}-{number}")).try_lock().owner(&Owner::new());
        guards.extend(attempt.await.ok().flatten());
    }
    guards
}
