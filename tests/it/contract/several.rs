//! Several locks at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use nestlock::{ErrorKind, Fenced, Guards, Hold, Locks, Loss, Owner, Result};
use tokio::time::Instant;

use super::{HOUR, Home, Inside, LONG, SECOND, foreign_guard, less_drift, without_timers};
use crate::support::{SOON_OVER, eventually, soon};

/// Waits until exactly these locks are held.
async fn held(home: &Home, names: &[&str]) {
    eventually("what is held", async || home.keys().await == names).await;
}

/// Checks that each of these locks is free: a stranger takes it and releases it.
async fn are_free(locks: &Locks, names: &[&str]) {
    for name in names {
        let guard = soon(name, locks.mutex(name).lock().owner(&Owner::new())).await.unwrap();
        guard.release().await.unwrap();
    }
}

/// Spawns a task that requests all of these locks.
fn asking(locks: &Locks, names: &[&str]) -> tokio::task::JoinHandle<Result<Guards>> {
    tokio::spawn(locks.mutexes(names).lock().owner(&Owner::new()))
}

#[tokio::test]
async fn several_names_are_held_and_released_together() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let several = locks.mutexes(["c", "a", "b", "a"]);
    assert!(several.names().eq(["a", "b", "c"]));
    let guards = soon("all", several.lock()).await.unwrap();
    assert!(guards.names().eq(["a", "b", "c"]));
    assert_eq!(home.keys().await, ["a", "b", "c"]);
    assert!(["a", "b", "c"].iter().all(|name| locks.mutex(name).hold_count() == 1));
    assert!(!guards.is_lost() && guards.loss().is_none() && guards.valid_until() > Instant::now());
    guards.release().await.unwrap();
    assert!(home.keys().await.is_empty());
    // A drop and the end of a run also release the locks.
    drop(several.try_lock().await.unwrap().expect("they are free"));
    held(&home, &[]).await;
    assert_eq!(several.run(async |_| home.keys().await.len()).await.unwrap(), 3);
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn no_name_and_a_name_that_cannot_work_are_refused_before_anything_is_sent() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let before = home.asked().await;
    let long = "x".repeat(2000);
    for (names, lock, why) in [
        (vec![], None, "no name was given"),
        (vec!["a", ""], Some(""), "must not be empty"),
        (vec!["a", &long], Some(&*long), "at most 1024"),
    ] {
        let several = locks.mutexes(&names);
        for error in [
            several.lock().await.unwrap_err(),
            several.try_lock().await.unwrap_err(),
            several.run(async |_| {}).await.unwrap_err(),
            several.clone().fenced().lock().await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.lock()), (ErrorKind::InvalidInput, lock));
            assert!(error.to_string().contains(why), "{error}");
        }
    }
    let short = locks.mutexes(["a", "b"]).lock().fixed_lease(Duration::from_nanos(1));
    assert_eq!(short.await.unwrap_err().kind(), ErrorKind::Config);
    assert_eq!(home.asked().await, before);
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn where_one_is_busy_none_is_held() {
    let home = Home::start().await;
    let (ours, theirs) = (home.locks().await, home.locks().await);
    let names = ["a", "b", "c"];
    for busy in names {
        let foreign = theirs.mutex(busy).lock().await.unwrap();
        let several = ours.mutexes(names);
        assert!(soon("an attempt", several.try_lock()).await.unwrap().is_none());
        held(&home, &[busy]).await;
        let never = several.try_lock().run(async |_| panic!("it ran"));
        assert!(soon("an attempt", never).await.unwrap().is_none());
        held(&home, &[busy]).await;
        let limit = SOON_OVER;
        let error = soon("the limit", several.lock().within(limit)).await.unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Timeout, Some(busy)));
        assert!(error.to_string().contains(&format!("{limit:?}")), "{error}");
        held(&home, &[busy]).await;
        assert!(soon("the limit", several.try_lock().within(limit)).await.unwrap().is_none());
        held(&home, &[busy]).await;
        foreign.release().await.unwrap();
    }
    // The limit applies to all names together.
    let foreign = [foreign_guard(&home, "a").await, foreign_guard(&home, "b").await];
    let (begun, limit) = (Instant::now(), 8 * SECOND);
    let request = tokio::spawn(ours.mutexes(names).lock().within(limit));
    let [first, last] = foreign;
    tokio::time::sleep_until(begun + limit / 2).await;
    first.release().await.unwrap();
    let error = soon("the limit", request).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Timeout, Some("b")));
    assert!(begun.elapsed() >= limit && begun.elapsed() < limit + limit / 2, "{:?}", begun.elapsed());
    last.release().await.unwrap();
}

#[tokio::test]
async fn nothing_is_held_behind_a_name_that_is_waited_for() {
    let home = Home::start().await;
    let (ours, theirs) = (home.locks().await, home.locks().await);
    let foreign = foreign_guard(&home, "c").await;
    let request = asking(&ours, &["e", "d", "c", "b", "a"]);
    held(&home, &["a", "b", "c"]).await;
    are_free(&theirs, &["d", "e"]).await;
    are_free(&ours, &["d", "e"]).await;
    foreign.release().await.unwrap();
    let guards = soon("all", request).await.unwrap().unwrap();
    assert_eq!(home.keys().await, ["a", "b", "c", "d", "e"]);
    guards.release().await.unwrap();
}

#[tokio::test]
async fn a_name_that_is_waited_for_is_waited_for_in_its_line() {
    let home = Home::start().await;
    let locks = without_timers(&home).connect().await.unwrap();
    let foreign = foreign_guard(&home, "b").await;
    let before = home.asked().await;
    let several = asking(&locks, &["a", "b", "c"]);
    home.asleep(before + 2).await;
    held(&home, &["a", "b"]).await;
    let one = tokio::spawn(locks.mutex("b").lock().owner(&Owner::new()));
    home.listened().await;
    foreign.release().await.unwrap();
    let guards = soon("the first request", several).await.unwrap().unwrap();
    assert!(!one.is_finished());
    guards.release().await.unwrap();
    soon("the second request", one).await.unwrap().unwrap().release().await.unwrap();
}

/// Each client holds one account when it asks for the other, in the opposite order of its partner: if two waited for each other, both would
/// wait for ever.
#[tokio::test]
async fn requests_in_opposite_orders_from_eight_clients_do_not_deadlock() {
    let home = Home::start().await;
    let accounts: Arc<Vec<(String, Inside)>> =
        Arc::new((0..4).map(|number| (format!("account:{number}"), Inside::default())).collect());
    let processes = join_all((0..8).map(|_| home.locks())).await;
    let moves = processes.into_iter().enumerate().map(|(process, locks)| {
        let accounts = accounts.clone();
        tokio::spawn(async move {
            for round in 0..12 {
                let from = (process + round) % 4;
                let to = (from + 1 + (process + round / 4) % 3) % 4;
                let both = [&accounts[from], &accounts[to]];
                let moved = locks.mutexes(both.map(|(name, _)| name));
                let moved = moved.run(async |_| tokio::join!(both[0].1.stay(), both[1].1.stay()));
                soon("both accounts", moved).await.unwrap();
            }
        })
    });
    for moves in moves.collect::<Vec<_>>() {
        moves.await.unwrap();
    }
    assert_eq!(accounts.iter().map(|(_, inside)| inside.ever()).sum::<usize>(), 8 * 12 * 2);
    home.tidy().await;
}

#[tokio::test]
async fn a_holder_of_one_name_gets_both() {
    let home = Home::start().await;
    let locks = super::counting(&home).await;
    let one = locks.mutex("b").lock().await.unwrap();
    let foreign = foreign_guard(&home, "a").await;
    // The request has the same owner, so it re-enters.
    let several = locks.mutexes(["a", "b"]);
    let mut request = Box::pin(several.lock());
    assert!(poll!(&mut request).is_pending());
    foreign.release().await.unwrap();
    let both = soon("both", request).await.unwrap();
    assert_eq!((locks.mutex("a").hold_count(), locks.mutex("b").hold_count()), (1, 2));
    assert_eq!(home.count("b", one.hold_id()).await, Some(2));
    both.release().await.unwrap();
    assert_eq!((home.keys().await, home.count("b", one.hold_id()).await), (vec!["b".to_owned()], Some(1)));
    one.release().await.unwrap();
}

#[tokio::test]
async fn what_runs_under_several_names_reenters_each_of_them() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let (a, b) = (locks.mutex("a"), locks.mutex("b"));
    let all = locks.mutexes(["a", "b", "c"]);
    let some = locks.mutexes(["b", "c"]);
    let counts = all.run(async |_| {
        let inner = b.run(async |_| (a.hold_count(), b.hold_count())).await.unwrap();
        let nested = some.run(async |_| (a.hold_count(), b.hold_count())).await.unwrap();
        // Branches exclude each other.
        let inside = Inside::default();
        let (one, two) =
            tokio::join!(some.run(|_| inside.stay()), locks.mutexes(["c", "a"]).run(|_| inside.stay()));
        one.and(two).unwrap();
        // Another owner has to wait.
        assert!(some.try_lock().owner(&Owner::new()).await.unwrap().is_none());
        (inner, nested, b.hold_count())
    });
    assert_eq!(soon("the run", counts).await.unwrap(), ((1, 2), (1, 2), 1));
    let guards = all.lock().await.unwrap();
    // The owner stays the same when the futures move to another task.
    let there = {
        let some = some.clone();
        async move { guards.scope(some.run(async |_| {})).await.map(|()| guards) }
    };
    let guards = soon("a run in another task", tokio::spawn(there)).await.unwrap().unwrap();
    guards.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn branches_of_one_task_that_ask_for_several_names_exclude_each_other() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let (inside, orders) = (Inside::default(), [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "d"]]);
    for _ in 0..5 {
        let runs = orders.iter().map(|names| locks.mutexes(names).run(|_| inside.stay()));
        for done in soon("all branches", join_all(runs)).await {
            done.unwrap();
        }
    }
    assert_eq!(inside.ever(), 15);
    // Bare guards work too if all of them ask at once.
    let bare = orders.iter().map(async |names| {
        let guards = locks.mutexes(names).lock().await.unwrap();
        inside.stay().await;
        guards.release().await.unwrap();
    });
    soon("all bare branches", join_all(bare)).await;
    assert_eq!(inside.ever(), 18);
}

/// 1. One branch asks for two names, and has to wait for the first: it is in no queue of the second.
/// 2. Another branch gets the second name.
/// 3. The first branch asks for the second name.
#[tokio::test]
async fn a_branch_that_asks_for_a_name_again_does_not_enter_the_hold_of_another_branch() {
    let home = Home::start().await;
    let (locks, theirs) = (home.locks().await, home.locks().await);
    let first = theirs.mutex("a").lock().await.unwrap();
    let before = home.asked().await;
    let mut both = Box::pin(locks.mutexes(["a", "b"]).lock());
    let one = locks.mutex("b");
    // The first branch waits, and has given the second name back.
    let waits = async {
        home.asleep(before + 2).await;
        held(&home, &["a"]).await;
    };
    tokio::select! { _ = &mut both => panic!("the first name is held"), () = waits => {} }
    let guard = tokio::select! {
        _ = &mut both => panic!("the first name is held"),
        guard = one.lock() => guard.unwrap(),
    };
    first.release().await.unwrap();
    // The first branch may hold the first name by now, but not the second.
    let entered = tokio::time::timeout(SECOND / 2, &mut both).await;
    assert!(entered.is_err(), "it entered the other branch's hold");
    assert_eq!((locks.mutex("a").hold_count(), one.hold_count()), (1, 1));
    guard.release().await.unwrap();
    let both = soon("both", both).await.unwrap();
    both.release().await.unwrap();
    home.tidy().await;
}

#[tokio::test]
async fn the_first_loss_is_the_loss_of_all() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).connect().await.unwrap();
    let several = locks.mutexes(["a", "b", "c"]);
    let guards = several.lock().await.unwrap();
    let mut lost = Box::pin(guards.lost());
    assert!(poll!(&mut lost).is_pending());
    locks.mutex("b").force_release().await.unwrap();
    assert_eq!(soon("the loss", lost).await, Loss::Gone);
    assert_eq!((guards.is_lost(), guards.loss()), (true, Some(Loss::Gone)));
    assert!(guards.valid_until() <= Instant::now());
    // The other locks stay held until the guards are dropped, since the work may go on.
    assert_eq!(home.keys().await, ["a", "c"]);
    assert_eq!(guards.extend(LONG).await.unwrap_err().lock(), Some("b"));
    let error = guards.release().await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Lost, Some("b")));
    assert!(home.keys().await.is_empty());

    let force = locks.mutex("c");
    let (dropped, flag) = (Arc::new(AtomicU32::new(0)), Arc::new(()));
    let (marked, kept) = (dropped.clone(), flag.clone());
    let stopped = several.run(async move |_| {
        let _kept = scopeguard::guard(kept, |_| {
            marked.fetch_add(1, SeqCst);
        });
        force.force_release().await.unwrap();
        std::future::pending::<()>().await;
    });
    let error = soon("the end of the run", stopped).await.unwrap_err();
    assert_eq!((error.loss(), error.lock()), (Some(Loss::Gone), Some("c")));
    assert_eq!((dropped.load(SeqCst), Arc::strong_count(&flag)), (1, 1));
    home.tidy().await;
}

#[tokio::test]
async fn a_name_that_is_lost_while_another_is_waited_for_is_asked_for_again_with_all_behind_it() {
    let home = Home::start().await;
    // The request pauses for 3 s before it asks again.
    let ours = home.builder().retry_delay(3 * SECOND..=3 * SECOND).lease(LONG).connect().await.unwrap();
    let theirs = home.builder().lease(LONG).connect().await.unwrap();
    let foreign = theirs.mutex("d").lock().await.unwrap();
    let request = asking(&ours, &["a", "b", "c", "d"]);
    held(&home, &["a", "b", "c", "d"]).await;
    let before = (home.fields("a").await, home.fields("b").await);
    // Another process waits for `b`, so that it gets the lock once that is released by force.
    let taking = tokio::spawn(theirs.mutex("b").lock().owner(&Owner::new()));
    home.listened().await;
    ours.mutex("b").force_release().await.unwrap();
    let taken = soon("what was released by force", taking).await.unwrap().unwrap();
    // The locks after `b` are free, and those before it are still held.
    are_free(&theirs, &["c"]).await;
    assert_eq!(home.fields("a").await, before.0);
    assert!(!request.is_finished());
    taken.release().await.unwrap();
    foreign.release().await.unwrap();
    let guards = soon("all", request).await.unwrap().unwrap();
    assert!(!guards.is_lost());
    assert_eq!(home.keys().await, ["a", "b", "c", "d"]);
    assert_eq!(home.fields("a").await, before.0);
    assert_ne!(home.fields("b").await, before.1);
    guards.release().await.unwrap();
}

#[tokio::test]
async fn a_fixed_lease_that_ends_while_another_name_is_waited_for_is_asked_for_again() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let foreign = foreign_guard(&home, "b").await;
    let several = locks.mutexes(["a", "b"]);
    let request = tokio::spawn(several.lock().fixed_lease(SECOND).owner(&Owner::new()));
    held(&home, &["a", "b"]).await;
    let first = home.fields("a").await;
    eventually("another hold", async || {
        let fields = home.fields("a").await;
        !fields.is_empty() && fields != first
    })
    .await;
    foreign.release().await.unwrap();
    let guards = soon("both", request).await.unwrap().unwrap();
    // The lock that was granted first ends first, and nothing renews it.
    assert!(guards.valid_until() <= Instant::now() + less_drift(SECOND));
    assert_eq!(soon("the end", guards.lost()).await, Loss::Expired);
    drop(guards);
    home.tidy().await;
}

#[tokio::test]
async fn options_are_those_of_each_name() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let several = locks.mutexes(["a", "b"]);
    let owner = Owner::new();
    let begun = Instant::now();
    let guards = several.lock().owner(&owner).fixed_lease(LONG).await.unwrap();
    assert!(!locks.mutex("a").is_held() && !locks.mutex("b").is_held());
    assert!(owner.scope(async { locks.mutex("a").is_held() && locks.mutex("b").is_held() }).await);
    assert!(guards.valid_until() >= begun + less_drift(LONG));
    guards.extend(2 * LONG).await.unwrap();
    assert!(guards.valid_until() >= begun + less_drift(2 * LONG));
    for name in ["a", "b"] {
        assert!(home.left(name).await.is_some_and(|left| left > LONG));
    }
    guards.release().await.unwrap();
    let guards = several.lock().max_hold(SECOND).await.unwrap();
    assert_eq!(soon("the end", guards.lost()).await, Loss::MaxHold);
    drop(guards);
    let hung = several.lock().max_hold(SECOND).run(|_| std::future::pending::<()>());
    assert_eq!(soon("the end", hung).await.unwrap_err().loss(), Some(Loss::MaxHold));
    home.tidy().await;
}

#[tokio::test]
async fn each_name_has_a_token_of_its_own() {
    let home = Home::start().await;
    let names = if home.has_slots() { ["{a}", "{b}"] } else { ["a", "b"] };
    let (ours, theirs) = (home.locks().await, home.locks().await);
    let several = ours.mutexes(names).fenced();
    assert!(several.names().eq(names));
    let guards = several.lock().await.unwrap();
    let first: Vec<u64> = guards.tokens().map(|(_, token)| token).collect();
    assert!(guards.tokens().map(|(name, _)| name).eq(names));
    for (at, name) in names.into_iter().enumerate() {
        assert_eq!(guards.token(name), ours.mutex(name).fenced().token());
        assert_eq!(guards.token(name), Some(first[at]));
    }
    assert_eq!(guards.token("c"), None);
    let tokens = async |holds: Vec<Hold<Fenced>>| {
        assert!(holds.iter().map(Hold::name).eq(names));
        holds.iter().map(Hold::token).collect::<Vec<u64>>()
    };
    // A re-entry has the tokens of the holds that it enters.
    assert_eq!(several.run(tokens).await.unwrap(), first);
    guards.release().await.unwrap();
    let theirs = theirs.mutexes(names).fenced();
    let second = soon("their run", theirs.run(tokens)).await.unwrap();
    let third = several.try_lock().run(tokens).await.unwrap().expect("they are free");
    for at in 0..names.len() {
        assert!(first[at] < second[at] && second[at] < third[at]);
    }
    assert!(home.keys().await.is_empty());
    // One of the locks is held without a token.
    let plain = ours.mutex(names[1]).lock().await.unwrap();
    for error in [
        several.lock().await.unwrap_err(),
        several.try_lock().await.unwrap_err(),
        several.run(async |_| {}).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Misuse, Some(names[1])));
    }
    held(&home, &names[1..]).await;
    plain.release().await.unwrap();
}

#[tokio::test]
async fn a_request_that_is_dropped_while_it_waits_leaves_nothing() {
    let home = Home::start().await;
    let locks = home.builder().lease(HOUR).connect().await.unwrap();
    for waits_for in ["a", "b", "c"] {
        let foreign = foreign_guard(&home, waits_for).await;
        let before = home.asked().await;
        let request = asking(&locks, &["a", "b", "c"]);
        home.asleep(before + 2).await;
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        held(&home, &[waits_for]).await;
        foreign.release().await.unwrap();
        are_free(&locks, &["a", "b", "c"]).await;
    }
}

/// The request is polled first in this task, then in another one. Its later steps still have the first task's owner.
#[tokio::test]
async fn a_request_that_moves_to_another_task_keeps_its_owner() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let foreign = foreign_guard(&home, "a").await;
    let mut request = locks.mutexes(["a", "b"]).lock();
    assert!(poll!(&mut request).is_pending());
    let there = tokio::spawn(request);
    held(&home, &["a"]).await;
    foreign.release().await.unwrap();
    let guards = soon("both", there).await.unwrap().unwrap();
    assert!(locks.mutex("a").is_held() && locks.mutex("b").is_held());
    guards.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_above_that_is_lost_is_the_loss_of_the_request() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let outer = locks.mutex("b").lock().await.unwrap();
    locks.mutex("b").force_release().await.unwrap();
    assert_eq!(soon("the loss", outer.lost()).await, Loss::Gone);
    let several = locks.mutexes(["a", "b"]);
    for error in [several.lock().await.unwrap_err(), several.try_lock().await.unwrap_err()] {
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Lost, Some("b")));
    }
    held(&home, &[]).await;
    drop(outer);
    soon("a new hold", several.lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn after_a_close_several_names_are_refused() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let foreign = foreign_guard(&home, "b").await;
    let waiting = asking(&locks, &["a", "b"]);
    held(&home, &["a", "b"]).await;
    locks.close().await.unwrap();
    let error = soon("the end", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(locks.mutexes(["a", "b"]).try_lock().await.unwrap_err().kind(), ErrorKind::Closed);
    held(&home, &["b"]).await;
    foreign.release().await.unwrap();
}

#[tokio::test]
async fn a_request_is_polled_again_or_begun_again_like_any_other() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let several = locks.mutexes(["a", "b"]);
    let mut request = several.lock();
    let guards = soon("both", &mut request).await.unwrap();
    assert_eq!(request.await.unwrap_err().kind(), ErrorKind::Misuse);
    // Setting an option drops the request that is under way.
    let mut request = several.lock().owner(&Owner::new());
    assert!(poll!(&mut request).is_pending());
    let request = request.within(Duration::ZERO);
    assert_eq!(request.await.unwrap_err().kind(), ErrorKind::Timeout);
    guards.release().await.unwrap();
    assert!(format!("{several:?} {:?}", several.lock()).contains(r#"["a", "b"]"#));
    home.tidy().await;
}
