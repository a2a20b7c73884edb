//! What a lock does on a cluster in which nothing fails.

use std::collections::BTreeSet;

use nestlock::{ErrorKind, Owner};

use super::{channels, locks, without_timers};
use crate::support::cluster::Cluster;
use crate::support::{enlisted, eventually, soon};

const MASTERS: [usize; 3] = [0, 1, 2];

#[tokio::test]
async fn locks_of_all_names_are_kept_each_by_the_node_of_its_slot() {
    let cluster = Cluster::shared().await;
    let locks = locks(cluster).await;
    let names: Vec<String> = (0..60).map(|at| format!("spread-{at}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(soon("the lock", locks.mutex(name).lock()).await.unwrap());
    }
    let mut owners = BTreeSet::new();
    for (name, guard) in names.iter().zip(&guards) {
        let owner = cluster.owner(name).await;
        assert_eq!(cluster.fields_on(owner, name).await, [(guard.hold_id().to_owned(), 1)]);
        owners.insert(owner);
    }
    assert_eq!(owners, BTreeSet::from(MASTERS));
    for guard in guards {
        guard.release().await.unwrap();
    }
    let left = cluster.keys_on(&MASTERS).await;
    assert!(left.iter().all(|key| !names.contains(key)), "{left:?}");
}

#[tokio::test]
async fn several_names_are_held_each_by_the_node_of_its_slot() {
    let cluster = Cluster::shared().await;
    let (ours, theirs) = (locks(cluster).await, locks(cluster).await);
    let mut names = Vec::new();
    for at in MASTERS {
        names.push(cluster.name_on(at, "several").await);
    }
    let several = ours.mutexes(&names);
    let guards = soon("all", several.lock()).await.unwrap();
    for (at, name) in MASTERS.into_iter().zip(&names) {
        assert_eq!(cluster.fields_on(at, name).await.len(), 1);
    }
    let names_backwards: Vec<&String> = names.iter().rev().collect();
    let waiting = tokio::spawn(theirs.mutexes(names_backwards).lock());
    guards.release().await.unwrap();
    soon("theirs", waiting).await.unwrap().unwrap().release().await.unwrap();
    let left = cluster.keys_on(&MASTERS).await;
    assert!(left.iter().all(|key| !names.contains(key)), "{left:?}");
}

#[tokio::test]
async fn a_lock_is_entered_again_and_by_nobody_else() {
    let cluster = Cluster::shared().await;
    let (ours, theirs) = (locks(cluster).await, locks(cluster).await);
    for at in 0..10 {
        let name = format!("nested-{at}");
        let (stock, other) = (ours.mutex(&name), theirs.mutex(&name));
        let depth = stock.run(|_| {
            stock.run(async |_| {
                assert!(other.try_lock().await.unwrap().is_none());
                assert!(other.is_locked().await.unwrap());
                stock.hold_count()
            })
        });
        assert_eq!(soon("the run", depth).await.unwrap().unwrap(), 2);
        other.try_lock().await.unwrap().expect("it is free").release().await.unwrap();
    }
}

#[tokio::test]
async fn waiters_are_woken_by_messages_whichever_node_has_the_lock() {
    let cluster = Cluster::shared().await;
    let ours = without_timers(cluster).connect().await.unwrap();
    let theirs = without_timers(cluster).connect().await.unwrap();
    for at in MASTERS {
        for braces in [false, true] {
            let name = cluster.name_on(at, "woken").await;
            let name = if braces { format!("{{{name}}}:part") } else { name };
            for _ in 0..3 {
                let guard = soon("ours", ours.mutex(&name).lock()).await.unwrap();
                let waiting = tokio::spawn(theirs.mutex(&name).lock());
                eventually("it listens", async || !channels(cluster, &name).await.is_empty()).await;
                guard.release().await.unwrap();
                soon("theirs", waiting).await.unwrap().unwrap().release().await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn many_tasks_of_two_processes_never_overlap() {
    let cluster = Cluster::shared().await;
    let processes = [locks(cluster).await, locks(cluster).await];
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for at in 0..20 {
        let (stock, inside) = (processes[at % 2].mutex("crowd"), inside.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                let work = async {
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                };
                stock.run(|_| work).await.unwrap();
            }
        }));
    }
    for task in tasks {
        soon("a task", task).await.unwrap();
    }
}

#[tokio::test]
async fn holds_on_all_nodes_are_renewed() {
    // The test has its own cluster, since it would kill the connections of other tests too.
    let cluster = Cluster::start().await;
    let locks = super::builder(&cluster).lease(super::SECOND * 30).connect().await.unwrap();
    let mut guards = Vec::new();
    for at in 0..30 {
        let name = format!("renewed-{at}");
        guards.push((cluster.owner(&name).await, soon("the lock", locks.mutex(&name).lock()).await.unwrap()));
    }
    // After a reconnect all holds are renewed at once, in pipelines.
    for (owner, guard) in &guards {
        let renewed = cluster.node(*owner);
        renewed.ask::<i64>(&["PEXPIRE", guard.name(), "20000"]).await;
    }
    cluster.node(0).ask::<i64>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    for (owner, guard) in &guards {
        eventually("its renewal", async || {
            cluster.node(*owner).ask::<i64>(&["PTTL", guard.name()]).await > 20_000
        })
        .await;
        assert!(!guard.is_lost());
    }
    for (_, guard) in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_script_that_a_node_does_not_know_is_sent_as_text() {
    let cluster = Cluster::shared().await;
    let locks = locks(cluster).await;
    for at in MASTERS {
        let name = cluster.name_on(at, "flushed").await;
        // After this run the node knows the script by its hash.
        soon("the first run", locks.mutex(&name).run(async |_| {})).await.unwrap();
        cluster.node(at).ask::<()>(&["SCRIPT", "FLUSH"]).await;
        soon("the run", locks.mutex(&name).run(async |_| {})).await.unwrap();
    }
}

#[tokio::test]
async fn a_queue_of_strangers_is_served() {
    let cluster = Cluster::shared().await;
    let stock = locks(cluster).await.mutex("queue");
    let guard = soon("the lock", stock.lock()).await.unwrap();
    let waiting: Vec<_> = (0..5).map(|_| tokio::spawn(enlisted(&stock))).collect();
    guard.release().await.unwrap();
    for one in waiting {
        soon("the next", one).await.unwrap().unwrap().release().await.unwrap();
    }
    let owned = stock.lock().owner(&Owner::new()).await.unwrap();
    stock.force_release().await.unwrap();
    soon("its loss", owned.lost()).await;
}

#[tokio::test]
async fn tokens_grow_whichever_node_has_lock_and_counter() {
    let cluster = Cluster::shared().await;
    let (ours, theirs) = (locks(cluster).await, locks(cluster).await);
    for name in ["fenced", "{fenced}:part", "fenced:{part}"] {
        let mut last = 0;
        for locks in [&ours, &theirs, &ours] {
            let guard = soon("the lock", locks.mutex(name).fenced().lock()).await.unwrap();
            let token = guard.token();
            assert!(token > last, "{token} after {last}");
            last = token;
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_name_that_puts_a_lock_and_its_counter_in_different_slots_is_an_error() {
    let cluster = Cluster::shared().await;
    let locks = locks(cluster).await;
    for name in ["a}b", "a{}b"] {
        let error = locks.mutex(name).fenced().lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("different slots"), "{error}");
        // A lock without a counter has only one key, so the name works.
        soon("the run", locks.mutex(name).run(async |_| {})).await.unwrap();
    }
}

/// A free lock has no key yet, so it is made on the node that its slot moves to.
#[tokio::test]
async fn a_free_lock_in_a_moving_slot_is_acknowledged_by_the_replicas_of_the_node_that_it_goes_to() {
    let cluster = Cluster::start().await;
    let locks = super::builder(&cluster).replicas(1, 25 * super::SECOND).connect().await.unwrap();
    for at in MASTERS {
        let (name, to) = (cluster.name_on(at, "moving").await, (at + 1) % 3);
        let replica = cluster.node(to + 3);
        cluster.begin_move(&name, at, to).await;
        // That node doesn't know the text of the script.
        cluster.node(to).ask::<()>(&["SCRIPT", "FLUSH"]).await;
        let guard = soon("the lock", locks.mutex(&name).lock()).await.unwrap();
        assert!(replica.keys().await.contains(&name));
        // The connection stays in use for other commands: none of them is taken for the command after an `ASKING`.
        let crowd = (0..10).map(|_| async {
            let other = cluster.name_on(to, "standing").await;
            soon("a run", locks.mutex(other).run(async |_| {})).await.unwrap();
            soon("a refusal", locks.mutex(&name).try_lock().owner(&nestlock::Owner::new()))
                .await
                .unwrap()
                .is_some()
        });
        assert!(!futures::future::join_all(crowd).await.contains(&true), "two hold it");
        guard.release().await.unwrap();
        let fenced = locks.mutex(&name).fenced();
        let mut last = 0;
        for _ in 0..3 {
            let guard = soon("the lock, and its token", fenced.lock()).await.unwrap();
            let token = guard.token();
            assert!(token > last, "{token} after {last}");
            last = token;
            let keys = replica.keys().await;
            assert!(
                keys.contains(&name) && keys.contains(&format!("redisson_lock_token:{{{name}}}")),
                "{keys:?}"
            );
            guard.release().await.unwrap();
        }
        cluster.end_move(&name, to, &[to, at, (at + 2) % 3]).await;
        let guard = soon("the lock", fenced.lock()).await.unwrap();
        assert!(guard.token() > last);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_grant_that_replicas_have_to_acknowledge_is_on_one() {
    let cluster = Cluster::start().await;
    let locks = super::builder(&cluster).replicas(1, 25 * super::SECOND).connect().await.unwrap();
    for at in MASTERS {
        let name = cluster.name_on(at, "acknowledged").await;
        let guard = soon("the lock", locks.mutex(&name).lock()).await.unwrap();
        assert!(cluster.node(at + 3).keys().await.contains(&name));
        guard.release().await.unwrap();
    }
    let short = super::builder(&cluster).replicas(1, super::SECOND / 10).connect().await.unwrap();
    cluster.node(3).freeze();
    assert_eq!(cluster.node(0).ask::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]).await, 1);
    let name = cluster.name_on(0, "alone").await;
    let error = soon("its end", short.mutex(&name).try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    eventually("its undoing", async || cluster.node(0).keys().await.is_empty()).await;
    cluster.node(3).thaw();
}

#[tokio::test]
async fn who_holds_a_lock_is_reported_by_the_node_of_its_slot() {
    let cluster = Cluster::shared().await;
    let ours = locks(cluster).await;
    let theirs = without_timers(cluster).holder_name("billing@web-7").connect().await.unwrap();
    for at in MASTERS {
        let name = cluster.name_on(at, "named").await;
        let guard = soon("the lock", theirs.mutex(&name).lock()).await.unwrap();
        let holder = soon("the answer", ours.mutex(&name).holder()).await.unwrap().expect("it is held");
        assert_eq!((holder.name(), holder.hold_id()), (Some("billing@web-7"), guard.hold_id()));
        let error = ours.mutex(&name).lock().within(std::time::Duration::ZERO).await.unwrap_err();
        assert_eq!(error.holder().map(|holder| holder.hold_id()), Some(guard.hold_id()));
        // A waiter of the same process gets the lock after the release, as it does without a label.
        let waiting = tokio::spawn(theirs.mutex(&name).lock().owner(&Owner::new()));
        guard.release().await.unwrap();
        soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
}
