//! Nested levels, with each value of the options that decide how they are granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use nestlock::{BareReentry, ErrorKind, Locks, Loss, Owner, scope};
use tokio::join;

use super::{Home, Inside, LONG, SECOND};
use crate::support::soon;

const EACH: [(BareReentry, bool); 6] = [
    (BareReentry::Asked, false),
    (BareReentry::Asked, true),
    (BareReentry::Local, false),
    (BareReentry::Local, true),
    (BareReentry::Refused, false),
    (BareReentry::Refused, true),
];

async fn with(home: &Home, (bare, confirms): (BareReentry, bool)) -> Locks {
    home.builder().lease(LONG).bare_reentry(bare).confirm_reentry(confirms).connect().await.unwrap()
}

/// The server counts only the levels that a command asked for, and never more than there are.
#[tokio::test]
async fn a_nested_run_is_asked_for_only_where_each_level_is_confirmed() {
    let home = Home::start().await;
    for each in EACH {
        let locks = with(&home, each).await;
        let stock = locks.mutex("stock");
        let fields =
            async || home.fields("stock").await.into_iter().map(|(_, count)| count).collect::<Vec<_>>();
        let counts = stock
            .run(|_| {
                stock.run(async |_| {
                    let two = fields().await;
                    let three = stock.run(async |_| (stock.hold_count(), fields().await)).await.unwrap();
                    (two, three, fields().await, stock.hold_count())
                })
            })
            .await
            .unwrap()
            .unwrap();
        let asked = |count| vec![if each.1 { count } else { 1 }];
        assert_eq!(counts, (asked(2), (3, asked(3)), asked(2), 2), "{each:?}");
        assert_eq!(fields().await, []);
    }
}

#[tokio::test]
async fn a_bare_request_nests_as_the_option_says() {
    let home = Home::start().await;
    for each @ (bare, confirms) in EACH {
        let locks = with(&home, each).await;
        let stock = locks.mutex("stock");
        let guard = stock.lock().await.unwrap();
        let count = async || home.count("stock", guard.hold_id()).await.unwrap();
        let nested = stock.lock().await;
        if bare == BareReentry::Refused {
            assert_eq!(nested.unwrap_err().kind(), ErrorKind::Ambiguous);
            assert_eq!(stock.try_lock().await.unwrap_err().kind(), ErrorKind::Ambiguous);
            // This request has another owner, a child of the one that holds the lock.
            let child = scope(async { stock.lock().await }).await.unwrap();
            assert_eq!((child.depth(), count().await), (2, 2));
            child.release().await.unwrap();
        } else {
            let nested = nested.unwrap();
            let asked = if bare == BareReentry::Local && !confirms { 1 } else { 2 };
            assert_eq!(
                (nested.depth(), nested.hold_id(), count().await),
                (2, guard.hold_id(), asked),
                "{each:?}"
            );
            nested.release().await.unwrap();
        }
        assert_eq!((stock.hold_count(), count().await), (1, 1), "{each:?}");
        guard.release().await.unwrap();
    }
}

/// Others are kept out at each depth, and get in as soon as the last level is gone, in whatever order the levels end.
#[tokio::test]
async fn nested_levels_keep_others_out_until_the_last_one_goes() {
    let home = Home::start().await;
    let theirs = home.locks().await.mutex("stock");
    for each in EACH {
        let stock = with(&home, each).await.mutex("stock");
        let is_out = async || theirs.try_lock().await.unwrap().is_none();
        let (outer, owner) = (stock.lock().await.unwrap(), Owner::current().child());
        let nested = stock.lock().owner(&owner).await.unwrap();
        assert!(is_out().await);
        outer.release().await.unwrap();
        assert!(is_out().await && owner.scope(async { stock.is_held() }).await);
        owner.scope(async { assert!(stock.run(|_| is_out()).await.unwrap()) }).await;
        nested.release().await.unwrap();
        assert!(!is_out().await, "{each:?}");
    }
}

/// The siblings are below one hold, and begin in one poll.
#[tokio::test]
async fn siblings_that_nest_exclude_each_other() {
    let home = Home::start().await;
    for each in EACH {
        let stock = with(&home, each).await.mutex("stock");
        let inside = Inside::default();
        let branches = stock.run(async |_| {
            let branch = || async {
                for _ in 0..20 {
                    stock.run(|_| inside.stay()).await.unwrap();
                }
            };
            join!(branch(), branch(), branch());
        });
        soon("all three", branches).await.unwrap();
        assert_eq!(inside.ever(), 60);
    }
}

/// This is the price of nesting without a command: the key is gone, and no command has reported that.
#[tokio::test]
async fn a_key_that_is_gone_is_found_out_by_the_next_call_that_asks() {
    let home = Home::start().await;
    for each in EACH {
        let stock = with(&home, each).await.mutex("stock");
        let guard = stock.lock().await.unwrap();
        home.lose("stock").await;
        // An in-memory master reports the loss at once.
        if let Err(error) = stock.run(async |_| {}).await {
            assert_eq!(error.loss(), Some(Loss::Gone), "{each:?}");
        } else {
            assert!(!each.1);
            assert_eq!(guard.check().await.unwrap_err().loss(), Some(Loss::Gone));
            // From now on the loss is known.
            assert_eq!(stock.run(async |_| {}).await.unwrap_err().kind(), ErrorKind::Lost);
        }
        assert!(guard.release().await.is_err());
    }
}

#[tokio::test]
async fn a_fenced_level_that_is_nested_has_the_token_of_its_hold() {
    let home = Home::start().await;
    for each in EACH {
        let stock = with(&home, each).await.mutex("{stock}").fenced();
        let tokens = stock.run(|outer| {
            let stock = stock.clone();
            async move { (outer.token(), stock.run(async |inner| inner.token()).await.unwrap()) }
        });
        let (outer, inner) = tokens.await.unwrap();
        assert_eq!(outer, inner, "{each:?}");
    }
}

/// For several names, the client asks only for those that are not held.
#[tokio::test]
async fn several_names_nest_in_what_is_held_of_them() {
    let home = Home::start().await;
    for each in EACH {
        let locks = with(&home, each).await;
        let (one, both) = (locks.mutex("{s}1"), locks.mutexes(["{s}1", "{s}2"]));
        let counts = one.run(|_| {
            both.run(async |_| {
                let count =
                    async |name| home.fields(name).await.into_iter().map(|(_, count)| count).sum::<usize>();
                (count("{s}1").await, count("{s}2").await, one.hold_count())
            })
        });
        let asked = if each.1 { 2 } else { 1 };
        assert_eq!(counts.await.unwrap().unwrap(), (asked, 1, 2), "{each:?}");
    }
}

/// Each nested run may be granted and released within its first poll.
#[tokio::test]
async fn a_loop_of_nested_runs_lets_other_tasks_go_on() {
    let home = Home::start().await;
    let stock = home.builder().lease(LONG).connect().await.unwrap().mutex("stock");
    let other = Arc::new(AtomicBool::new(false));
    let sets = other.clone();
    drop(tokio::spawn(async move { sets.store(true, SeqCst) }));
    let rounds = stock.run(async |_| {
        let mut rounds = 0;
        while !other.load(SeqCst) && rounds < 100_000 {
            stock.run(async |_| {}).await.unwrap();
            rounds += 1;
        }
        rounds
    });
    let rounds = rounds.await.unwrap();
    assert!(rounds < 100_000, "{rounds}");
}

/// The nested level ends with its own lease, not with that of the hold around it.
#[tokio::test]
async fn a_nested_fixed_lease_is_good_for_no_longer_than_was_asked_for() {
    let home = Home::start().await;
    for each in EACH {
        let stock = with(&home, each).await.mutex("stock");
        let (outer, owner) = (stock.lock().await.unwrap(), Owner::current().child());
        let nested = stock.lock().owner(&owner).fixed_lease(SECOND).await.unwrap();
        outer.release().await.unwrap();
        assert_eq!(soon("its end", nested.lost()).await, Loss::Expired, "{each:?}");
        assert!(!stock.is_held());
    }
}
