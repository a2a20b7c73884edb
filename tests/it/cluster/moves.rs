//! Slots that move from node to node while locks in them are held, waited for and taken.

use nestlock::Owner;

use super::{builder, channels, locks, without_timers};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::resp::Command;
use crate::support::{enlisted, eventually, soon};

const EVERYBODY: [usize; 6] = [0, 1, 2, 3, 4, 5];

#[tokio::test]
async fn a_held_lock_moves_with_its_slot_while_another_waits() {
    let cluster = Cluster::start().await;
    let (ours, theirs) = (locks(&cluster).await, without_timers(&cluster).connect().await.unwrap());
    let name = cluster.name_on(0, "held").await;
    let stock = ours.mutex(&name);
    let guard = soon("the lock", stock.lock()).await.unwrap();
    let waiting = tokio::spawn(theirs.mutex(&name).lock());
    eventually("it listens", async || !channels(&cluster, &name).await.is_empty()).await;

    cluster.begin_move(&name, 0, 1).await;
    // The key has not moved yet, so the old node serves it.
    let inner = soon("a re-entry", stock.lock()).await.unwrap();
    cluster.move_key(&name, 0, 1).await;
    // The key has moved, though the slot still belongs to the old node: the client asks the new node, with `ASKING`.
    assert_eq!(cluster.fields_on(1, &name).await, [(guard.hold_id().to_owned(), 2)]);
    soon("a longer lease", inner.extend(super::HOUR)).await.unwrap();
    inner.release().await.unwrap();
    assert_eq!(cluster.fields_on(1, &name).await, [(guard.hold_id().to_owned(), 1)]);
    let third = locks(&cluster).await.mutex(&name);
    assert!(third.try_lock().await.unwrap().is_none(), "two hold it");
    cluster.end_move(&name, 1, &[1, 0]).await;
    let inner = soon("a re-entry at the new node", stock.lock()).await.unwrap();
    assert_eq!(inner.depth(), 2);
    inner.release().await.unwrap();
    assert!(third.try_lock().await.unwrap().is_none(), "two hold it");
    assert!(!waiting.is_finished() && !guard.is_lost());

    guard.release().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert_eq!(cluster.fields_on(1, &name).await, [(next.hold_id().to_owned(), 1)]);
    next.release().await.unwrap();
    assert!(cluster.keys_on(&EVERYBODY).await.is_empty());
}

#[tokio::test]
async fn a_lock_is_taken_where_its_slot_goes() {
    let cluster = Cluster::start().await;
    let (ours, theirs) = (locks(&cluster).await, locks(&cluster).await);
    let name = cluster.name_on(2, "taken").await;
    cluster.begin_move(&name, 2, 0).await;
    // The lock has no key yet, so its key is made on the node that the slot moves to.
    let guard = soon("the lock", ours.mutex(&name).lock()).await.unwrap();
    assert_eq!(cluster.fields_on(0, &name).await, [(guard.hold_id().to_owned(), 1)]);
    assert!(theirs.mutex(&name).try_lock().await.unwrap().is_none(), "two hold it");
    // That node doesn't know the text of this script.
    cluster.node(0).ask::<()>(&["SCRIPT", "FLUSH"]).await;
    assert!(theirs.mutex(&name).is_locked().await.unwrap());
    cluster.end_move(&name, 0, &[0]).await;
    assert!(theirs.mutex(&name).try_lock().await.unwrap().is_none(), "two hold it");
    cluster.end_move(&name, 0, &[2, 1]).await;
    assert!(theirs.mutex(&name).try_lock().await.unwrap().is_none(), "two hold it");
    guard.release().await.unwrap();
    soon("theirs", theirs.mutex(&name).lock()).await.unwrap().release().await.unwrap();
    assert!(cluster.keys_on(&EVERYBODY).await.is_empty());
}

#[tokio::test]
async fn holds_in_a_moving_slot_are_renewed_on_both_sides() {
    let cluster = Cluster::start().await;
    let locks = builder(&cluster).lease(super::SECOND * 30).connect().await.unwrap();
    let tag = cluster.name_on(1, "tag").await;
    let name = |at: usize| format!("{{{tag}}}:{at}");
    let mut guards = Vec::new();
    for at in 0..20 {
        guards.push(soon("the lock", locks.mutex(name(at)).lock()).await.unwrap());
    }
    let elsewhere = soon("another", locks.mutex(cluster.name_on(2, "other").await).lock()).await.unwrap();
    cluster.begin_move(&tag, 1, 0).await;
    for at in (0..20).step_by(2) {
        cluster.move_key(&name(at), 1, 0).await;
    }
    for (at, guard) in guards.iter().enumerate() {
        let holder = if at % 2 == 0 { 0 } else { 1 };
        expire_soon(&cluster, holder, guard.name()).await;
    }
    // After a reconnect all holds are renewed in one pipeline. Those that have moved are renewed on the new node after it.
    cluster.node(1).ask::<i64>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    for (at, guard) in guards.iter().enumerate() {
        let holder = if at % 2 == 0 { 0 } else { 1 };
        eventually("its renewal", async || left(&cluster, holder, guard.name()).await > 20_000).await;
    }
    for at in (1..20).step_by(2) {
        cluster.move_key(&name(at), 1, 0).await;
    }
    cluster.end_move(&tag, 0, &[0, 1]).await;
    for guard in guards {
        guard.release().await.unwrap();
    }
    elsewhere.release().await.unwrap();
    assert!(cluster.keys_on(&EVERYBODY).await.is_empty());
}

/// A free lock has no key, so both nodes refuse a script that uses the lock and its counter.
#[tokio::test]
async fn a_free_fenced_lock_is_taken_while_its_slot_moves() {
    let cluster = Cluster::start().await;
    let ours = locks(&cluster).await;
    for (at, counted) in [(0, false), (1, true)] {
        let name = cluster.name_on(at, "fenced").await;
        let (stock, to) = (ours.mutex(&name).fenced(), (at + 1) % 3);
        let third = locks(&cluster).await.mutex(&name).fenced();
        let mut last = 0;
        if counted {
            last = token(&stock).await;
        }
        cluster.begin_move(&name, at, to).await;
        for _ in 0..3 {
            let guard = soon("the lock", stock.lock()).await.unwrap();
            let next = guard.token();
            assert!(next > last, "{next} after {last}");
            last = next;
            assert_eq!(cluster.fields_on(to, &name).await, [(guard.hold_id().to_owned(), 1)]);
            assert!(soon("its answer", third.try_lock()).await.unwrap().is_none(), "two hold it");
            let inner = soon("a re-entry", stock.lock()).await.unwrap();
            assert_eq!((inner.depth(), inner.token()), (2, last));
            inner.release().await.unwrap();
            guard.release().await.unwrap();
        }
        if counted {
            cluster.move_key(&counter(&name), at, to).await;
        }
        for _ in 0..2 {
            let next = token(&third).await;
            assert!(next > last, "{next} after {last}");
            last = next;
        }
        cluster.end_move(&name, to, &[to, at, (at + 2) % 3]).await;
        let next = token(&stock).await;
        assert!(next > last, "{next} after {last}");
    }
}

#[tokio::test]
async fn a_counter_that_is_none_is_reported_while_its_slot_moves_and_nothing_is_taken() {
    let cluster = Cluster::start().await;
    let name = cluster.name_on(0, "no-counter").await;
    cluster.node(0).ask::<i64>(&["RPUSH", &counter(&name), "x"]).await;
    cluster.begin_move(&name, 0, 1).await;
    let error = soon("its end", locks(&cluster).await.mutex(&name).fenced().lock()).await.unwrap_err();
    assert_eq!(error.kind(), nestlock::ErrorKind::NotALock, "{error}");
    assert_eq!(cluster.fields_on(1, &name).await, []);
}

#[tokio::test]
async fn fenced_holds_are_renewed_while_one_of_their_two_keys_has_moved() {
    let cluster = Cluster::start().await;
    let locks = builder(&cluster).lease(super::SECOND * 30).connect().await.unwrap();
    let tag = cluster.name_on(0, "torn").await;
    let names = [0, 1].map(|at| format!("{{{tag}}}:{at}"));
    let mut guards = Vec::new();
    for name in &names {
        guards.push(soon("the lock", locks.mutex(name).fenced().lock()).await.unwrap());
    }
    cluster.begin_move(&tag, 0, 1).await;
    cluster.move_key(&names[0], 0, 1).await;
    cluster.move_key(&counter(&names[1]), 0, 1).await;
    for (at, name) in [(1, &names[0]), (0, &names[1])] {
        expire_soon(&cluster, at, name).await;
    }
    // After a reconnect all holds are renewed.
    cluster.node(0).ask::<i64>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    for (at, name) in [(1, &names[0]), (0, &names[1])] {
        eventually("its renewal", async || left(&cluster, at, name).await > 20_000).await;
    }
    for guard in guards {
        assert!(!guard.is_lost());
        let (stock, last) = (locks.mutex(guard.name()).fenced(), guard.token());
        guard.release().await.unwrap();
        assert!(token(&stock).await > last);
    }
}

/// While the slot moves, a lock is taken first and its token is made afterwards. In between:
/// 1. The lock is released by force.
/// 2. The next holder takes it, and its token is made.
/// 3. The earlier holder's token is made, and is greater.
#[tokio::test]
async fn a_fenced_lock_that_is_forced_away_before_its_token_is_made_is_not_handed_out() {
    let cluster = Cluster::start().await;
    let name = cluster.name_on(0, "forced").await;
    let proxy = Proxy::to(cluster.node(1)).await;
    cluster.announce(1, proxy.port()).await;
    let (ours, theirs) = (locks(&cluster).await, locks(&cluster).await);
    let (ours, theirs) = (ours.mutex(&name).fenced(), theirs.mutex(&name).fenced());
    cluster.begin_move(&name, 0, 1).await;
    token(&theirs).await;
    let key = counter(&name);
    let makes = move |command: &Command| command.names(&key) && command.names("next");
    let made = proxy.on(makes).times(1).hold();
    let mut waiting = tokio::spawn(ours.lock());
    made.seen().await;
    // The lock is taken, but its token is not made yet.
    assert_eq!(cluster.fields_on(1, &name).await.len(), 1);
    assert!(soon("it is freed", theirs.force_release()).await.unwrap());
    let guard = soon("the lock", theirs.lock()).await.unwrap();
    let again = proxy.on(|command| command.is("acquire")).watch();
    made.let_through().await;
    tokio::select! {
        _ = again.seen() => {}
        earlier = &mut waiting => {
            let (earlier, later) = (earlier.unwrap().unwrap().token(), guard.token());
            panic!("handed out with {earlier:?} though the next holder has {later:?}");
        }
    }
    assert_eq!(cluster.fields_on(1, &name).await, [(guard.hold_id().to_owned(), 1)]);
    let before = guard.token();
    guard.release().await.unwrap();
    let last = soon("the lock", waiting).await.unwrap().unwrap();
    assert!(last.token() > before);
    last.release().await.unwrap();
}

/// Returns the token of a hold that is released at once.
async fn token(stock: &nestlock::Mutex<nestlock::Fenced>) -> u64 {
    let guard = soon("the lock", stock.lock()).await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    token
}

fn counter(name: &str) -> String {
    match name.starts_with('{') {
        true => format!("redisson_lock_token:{name}"),
        false => format!("redisson_lock_token:{{{name}}}"),
    }
}

/// Slots move in a circle under load: no two holds overlap, nothing is lost, and every request is served.
#[tokio::test]
async fn nobody_overlaps_while_slots_move() {
    let cluster = Cluster::start().await;
    let processes = [locks(&cluster).await, locks(&cluster).await];
    let name = cluster.name_on(0, "round").await;
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut tasks = Vec::new();
    for at in 0..6 {
        let (stock, inside, stop) = (processes[at % 2].mutex(&name), inside.clone(), stop.clone());
        tasks.push(tokio::spawn(async move {
            let mut rounds = 0;
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let work = async {
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two are inside");
                    let second = stock.try_lock().owner(&Owner::new()).await.unwrap();
                    assert!(second.is_none(), "two hold it");
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                };
                stock.run(|_| work).await.unwrap();
                rounds += 1;
            }
            rounds
        }));
    }
    for round in 0..12 {
        let (from, to) = (round % 3, (round + 1) % 3);
        cluster.begin_move(&name, from, to).await;
        // At this moment the key may be missing because the lock is free, or it may already be on the new node.
        let port = cluster.node(to).port().to_string();
        let _ =
            cluster.node(from).try_ask::<String>(&["MIGRATE", "127.0.0.1", &port, &name, "0", "10000"]).await;
        cluster.end_move(&name, to, &[to, from, (to + 1) % 3]).await;
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    for task in tasks {
        assert!(soon("a task", task).await.unwrap() > 0);
    }
}

#[tokio::test]
async fn a_slot_that_nobody_lets_in_is_given_up_in_time() {
    let cluster = Cluster::start().await;
    let locks = builder(&cluster).node_timeout(super::SECOND).connect().await.unwrap();
    let name = cluster.name_on(0, "lost").await;
    // Each node says that the slot belongs to the other one, as after an operator's mistake.
    cluster.end_move(&name, 1, &[0]).await;
    let error = soon("its end", locks.mutex(&name).try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), nestlock::ErrorKind::Unavailable);
    assert!(error.to_string().contains("to each other"), "{error}");
    cluster.end_move(&name, 0, &[0, 1, 2]).await;
    let queued = enlisted(&locks.mutex(&name));
    soon("the lock", queued).await.unwrap().release().await.unwrap();
}

/// Slots move in a circle under load. The two keys of a fenced lock move one after the other. The token of each hold is greater than all
/// tokens before it.
#[tokio::test]
async fn tokens_grow_while_slots_move() {
    let cluster = Cluster::start().await;
    let processes = [locks(&cluster).await, locks(&cluster).await];
    let name = cluster.name_on(0, "counted").await;
    let last = std::sync::Arc::new(std::sync::Mutex::new((0, 0)));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut tasks = Vec::new();
    for at in 0..6 {
        let (stock, last, stop) = (processes[at % 2].mutex(&name).fenced(), last.clone(), stop.clone());
        tasks.push(tokio::spawn(async move {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let guard = stock.lock().owner(&Owner::new()).await.unwrap();
                let token = guard.token();
                {
                    let mut last = last.lock().unwrap();
                    assert!(token > last.0, "{token} after {}", last.0);
                    *last = (token, last.1 + 1);
                }
                tokio::task::yield_now().await;
                assert_eq!(last.lock().unwrap().0, token, "two hold it");
                guard.release().await.unwrap();
            }
        }));
    }
    let grants = || last.lock().unwrap().1;
    for round in 0..9 {
        let (from, to) = (round % 3, (round + 1) % 3);
        let port = cluster.node(to).port().to_string();
        let migrate = async |key: &str| {
            // At this moment the key may be missing, or it may already be on the new node.
            let command = ["MIGRATE", "127.0.0.1", &port, key, "0", "10000"];
            let _ = cluster.node(from).try_ask::<String>(&command).await;
        };
        let some_more = async || {
            let before = grants();
            eventually("grants while the slot moves", async || grants() > before + 2).await;
        };
        cluster.begin_move(&name, from, to).await;
        some_more().await;
        let keys = [name.clone(), counter(&name)];
        migrate(&keys[round % 2]).await;
        some_more().await;
        migrate(&keys[(round + 1) % 2]).await;
        // Moves each key that was made on the old node during the move.
        migrate(&keys[round % 2]).await;
        cluster.end_move(&name, to, &[to, from, (to + 1) % 3]).await;
        some_more().await;
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    for task in tasks {
        soon("a task", task).await.unwrap();
    }
}

async fn expire_soon(cluster: &Cluster, node: usize, key: &str) {
    let mut admin = cluster.node(node).admin().await;
    let mut pipe = redis::pipe();
    pipe.cmd("ASKING").ignore().cmd("PEXPIRE").arg(key).arg(20_000);
    assert_eq!(pipe.query_async::<(i64,)>(&mut admin).await.unwrap().0, 1);
}

async fn left(cluster: &Cluster, node: usize, key: &str) -> i64 {
    let mut admin = cluster.node(node).admin().await;
    redis::pipe()
        .cmd("ASKING")
        .ignore()
        .cmd("PTTL")
        .arg(key)
        .query_async::<(i64,)>(&mut admin)
        .await
        .unwrap()
        .0
}
