//! Branches that run side by side in one task.

use std::pin::pin;

use futures::future::{Either, join_all, select};
use futures::stream::{self, FuturesUnordered, StreamExt};
use nestlock::{ErrorKind, Hold, scope};

use super::{Home, Inside};
use crate::support::{SOON_OVER, soon};

#[tokio::test]
async fn branches_of_join_that_run_exclude_each_other() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let inside = Inside::default();
    let all = async {
        tokio::join!(stock.run(|_| inside.stay()), stock.run(|_| inside.stay()), stock.run(|_| inside.stay()))
    };
    let (one, two, three) = soon("all three", all).await;
    one.and(two).and(three).unwrap();
    assert_eq!(inside.ever(), 3);
}

#[tokio::test]
async fn branches_of_join_in_scopes_exclude_each_other() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let inside = Inside::default();
    let branch = || {
        scope(async {
            let guard = stock.lock().await.unwrap();
            inside.stay().await;
            assert_eq!(stock.hold_count(), 1);
            guard.release().await.unwrap();
        })
    };
    soon("all three", async { tokio::join!(branch(), branch(), branch()) }).await;
    assert_eq!(inside.ever(), 3);
}

#[tokio::test]
async fn the_loser_of_a_select_leaves_its_line_or_its_hold() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    for _ in 0..20 {
        let (one, two) = (stock.run(async |_| 1), stock.run(async |_| 2));
        let first = soon("one of two", async {
            tokio::select! { first = one => first.unwrap(), first = two => first.unwrap() }
        });
        assert!([1, 2].contains(&first.await));
        assert!(!stock.is_held());
    }
    // A branch that had begun its work is dropped: the lock is free after that.
    let (inside, endless) = (tokio::sync::Notify::new(), std::future::pending::<()>());
    let run = stock.run(async |_| {
        inside.notify_one();
        endless.await
    });
    tokio::select! { _ = run => unreachable!(), () = inside.notified() => {} }
    soon("the lock", stock.lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn both_sides_of_a_select_that_goes_on_exclude_each_other() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let inside = Inside::default();
    let stays = |_: Hold| inside.stay();
    let (one, two) = (pin!(stock.run(stays)), pin!(stock.run(stays)));
    soon("both", async {
        match select(one, two).await {
            Either::Left((first, other)) | Either::Right((first, other)) => {
                first.unwrap();
                other.await.unwrap();
            }
        }
    })
    .await;
    assert_eq!(inside.ever(), 2);
}

#[tokio::test]
async fn branches_of_a_stream_of_futures_exclude_each_other() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let inside = Inside::default();
    let branches: FuturesUnordered<_> = (0..10).map(|_| stock.run(|_| inside.stay())).collect();
    let done = soon("all ten", branches.collect::<Vec<_>>()).await;
    done.into_iter().collect::<nestlock::Result<Vec<_>>>().unwrap();
    assert_eq!(inside.ever(), 10);
}

#[tokio::test]
async fn branches_under_a_common_hold_enter_it_one_at_a_time() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let inside = Inside::default();
    let guard = stock.lock().await.unwrap();
    let (stock, inside) = (&stock, &inside);
    let bare = stream::iter(0..8).for_each_concurrent(None, |_| {
        scope(async move {
            let inner = stock.lock().await.unwrap();
            assert_eq!((inner.depth(), stock.hold_count()), (2, 2));
            inside.stay().await;
            inner.release().await.unwrap();
        })
    });
    soon("all eight in scopes", bare).await;
    let runs = stream::iter(0..8).for_each_concurrent(3, |_| async move {
        stock.run(|_| stock.run(|_| inside.stay())).await.unwrap().unwrap();
    });
    soon("all eight in runs", runs).await;
    assert_eq!(inside.ever(), 16);
    assert_eq!(home.count("stock", guard.hold_id()).await, Some(1));
    guard.release().await.unwrap();
    let whole = stock.run(async |_| tokio::join!(stock.run(|_| inside.stay()), stock.run(|_| inside.stay())));
    let (one, two) = soon("a run over both", whole).await.unwrap();
    one.and(two).unwrap();
}

#[tokio::test]
async fn two_looping_branches_that_take_bare_guards_exclude_each_other() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let inside = Inside::default();
    // Each branch asks again while the other one holds, so the condition holds from the first round to the last.
    let branch = async || {
        let mut done = 0;
        while done < 20 {
            match stock.lock().await {
                Ok(guard) => {
                    inside.stay().await;
                    guard.release().await.unwrap();
                    done += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Ambiguous);
                    tokio::task::yield_now().await;
                }
            }
        }
    };
    soon("both loops", async { tokio::join!(branch(), branch()) }).await;
    assert_eq!(inside.ever(), 40);
}

#[tokio::test]
async fn two_bare_requests_under_a_hold_of_their_owner_enter_one_at_a_time() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let inside = Inside::default();
    let outer = stock.lock().await.unwrap();
    let branch = async || {
        let guard = stock.lock().await.unwrap();
        assert_eq!(guard.depth(), 2);
        inside.stay().await;
        guard.release().await.unwrap();
    };
    soon("both", join_all([branch(), branch()])).await;
    assert_eq!(inside.ever(), 2);
    outer.release().await.unwrap();
    stock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_warning_of_an_ambiguous_request_names_run_and_scope() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let outer = stock.lock().await.unwrap();
    let (mut one, mut two) = (stock.lock(), stock.lock());
    assert!(futures::poll!(&mut one).is_pending() && futures::poll!(&mut two).is_pending());
    for error in [stock.lock().await.unwrap_err(), stock.try_lock().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Ambiguous);
        let text = error.to_string();
        assert!(text.contains("`run`") && text.contains("`scope`") && text.contains("stock"), "{text}");
    }
    // In a scope the owner is unambiguous.
    assert!(soon("a child's answer", scope(stock.try_lock())).await.is_ok());
    drop((one, two));
    outer.release().await.unwrap();
    // This owner and this lock are separate again: nothing is left of the proof.
    let outer = stock.lock().await.unwrap();
    assert_eq!(stock.lock().await.unwrap().depth(), 2);
    drop(outer);
}

#[tokio::test]
async fn a_request_that_was_dropped_proves_no_branches() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let mut lost = stock.lock();
    assert!(futures::poll!(&mut lost).is_pending());
    drop(lost);
    let outer = soon("the lock", stock.lock()).await.unwrap();
    let inner = stock.lock().await.expect("nothing proves branches");
    assert_eq!(inner.depth(), 2);
    drop((inner, outer));
}

#[tokio::test]
async fn a_request_that_timed_out_proves_no_branches() {
    let home = Home::start().await;
    let (ours, theirs) = (home.locks().await, home.locks().await);
    let stock = ours.mutex("stock");
    let foreign = theirs.mutex("stock").lock().await.unwrap();
    let late = tokio::time::timeout(SOON_OVER, stock.lock()).await;
    assert!(late.is_err());
    assert_eq!(stock.lock().within(SOON_OVER).await.unwrap_err().kind(), ErrorKind::Timeout);
    foreign.release().await.unwrap();
    let outer = soon("the lock", stock.lock()).await.unwrap();
    assert_eq!(stock.lock().await.expect("nothing proves branches").depth(), 2);
    drop(outer);
}

#[tokio::test]
async fn requests_that_outlived_the_scopes_of_two_branches_are_branches() {
    let home = Home::start().await;
    let (ours, theirs) = (home.locks().await, home.locks().await);
    let stock = ours.mutex("stock");
    let foreign = theirs.mutex("stock").lock().await.unwrap();
    let (mut one, mut two) = (stock.lock(), stock.lock());
    scope(async { assert!(futures::poll!(&mut one).is_pending()) }).await;
    scope(async { assert!(futures::poll!(&mut two).is_pending()) }).await;
    foreign.release().await.unwrap();
    let inside = Inside::default();
    let branch = async |request: nestlock::futures::Request<nestlock::Guard>| {
        let guard = request.await.unwrap();
        inside.stay().await;
        guard.release().await.unwrap();
    };
    soon("both", async { tokio::join!(branch(one), branch(two)) }).await;
    assert_eq!(inside.ever(), 2);
}
