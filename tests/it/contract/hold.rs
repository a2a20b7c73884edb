//! What the work of a `run` can do with its hold, while the run lasts and after it.

use std::cell::Cell;

use nestlock::{ErrorKind, Hold, Kind, Loss, Owner};

use super::{Home, LONG, SECOND, counting, long_lived};
use crate::support::soon;

/// Checks that the run of this hold has ended, and that its calls report that and do nothing.
async fn is_over<K: Kind>(hold: &Hold<K>) {
    assert!(hold.is_over() && hold.valid_until() <= tokio::time::Instant::now());
    for error in [hold.extend(LONG).await.unwrap_err(), hold.check().await.unwrap_err()] {
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Misuse, Some(hold.name())), "{error}");
    }
}

#[tokio::test]
async fn the_work_of_a_run_extends_and_checks_its_hold() {
    let home = Home::start().await;
    let stock = home.builder().lease(60 * SECOND).connect().await.unwrap().mutex("stock").fenced();
    let hold = soon(
        "the run",
        stock.run(async |hold| {
            assert_eq!((hold.name(), Some(hold.token())), ("stock", stock.token()));
            assert_eq!(home.fields("stock").await, [(hold.hold_id().to_owned(), 1)]);
            let before = hold.valid_until();
            hold.extend(LONG).await.unwrap();
            assert!(!hold.is_over() && hold.valid_until() > before + 60 * SECOND);
            hold.check().await.unwrap();
            hold
        }),
    );
    let hold = hold.await.unwrap();
    is_over(&hold).await;
    // A new hold of the same lock does not revive this one.
    let _guard = stock.lock().await.unwrap();
    is_over(&hold).await;
    home.left("stock").await.expect("it is held");
}

#[tokio::test]
async fn a_nested_run_is_over_when_it_has_ended_though_the_hold_lives() {
    let home = Home::start().await;
    for locks in [long_lived(&home).await, counting(&home).await] {
        let stock = locks.mutex("stock");
        let nested = async |outer: Hold| {
            let inner = stock.run(async |inner| inner).await.unwrap();
            assert_eq!(inner.hold_id(), outer.hold_id());
            is_over(&inner).await;
            outer.check().await.unwrap();
            assert!(!outer.is_over());
        };
        soon("the run", stock.run(nested)).await.unwrap();
    }
}

#[tokio::test]
async fn a_check_finds_a_hold_that_is_gone() {
    let home = Home::start().await;
    let (ours, theirs) = (counting(&home).await, home.locks().await);
    let stock = ours.mutex("stock");
    let found = Cell::new(None);
    let work = async |hold: Hold| {
        assert!(theirs.mutex("stock").force_release().await.unwrap());
        found.set(hold.check().await.unwrap_err().loss());
    };
    // The work may be dropped before it reads the answer.
    let error = soon("the run", stock.run(work)).await.err();
    assert!(error.is_none_or(|error| error.loss() == Some(Loss::Gone)));
    assert!(found.get().is_none_or(|loss| loss == Loss::Gone));
    assert!(!stock.is_locked().await.unwrap());
}

#[tokio::test]
async fn work_is_made_once_the_lock_is_held_and_not_where_it_is_refused() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock");
    let made = Cell::new(0);
    let work = |hold: Hold| {
        assert!(stock.is_held() && !hold.is_over());
        made.set(made.get() + 1);
        async {}
    };
    let theirs = stock.lock().owner(&Owner::new()).await.unwrap();
    assert_eq!(stock.try_lock().run(work).await.unwrap(), None);
    drop(stock.run(work));
    assert_eq!(made.get(), 0);
    theirs.release().await.unwrap();
    soon("the run", stock.run(work)).await.unwrap();
    assert_eq!(made.get(), 1);
}

#[tokio::test]
async fn each_of_several_names_has_its_hold() {
    let home = Home::start().await;
    let names = if home.has_slots() { ["{a}", "{b}"] } else { ["a", "b"] };
    let locks = long_lived(&home).await;
    let work = async |holds: Vec<Hold>| {
        for (hold, name) in holds.iter().zip(names) {
            assert_eq!(home.fields(name).await, [(hold.hold_id().to_owned(), 1)]);
            hold.check().await.unwrap();
        }
        assert!(holds.iter().map(Hold::name).eq(names));
        holds
    };
    for hold in soon("the run", locks.mutexes(names).run(work)).await.unwrap() {
        is_over(&hold).await;
    }
}

/// Nobody reads the answer to the extension, and the release does not wait for that answer.
#[tokio::test]
async fn an_extension_that_is_left_unpolled_keeps_no_run_waiting() {
    let home = Home::start().await;
    // The node timeout is longer than `soon` waits.
    let stock = home.builder().lease(LONG).node_timeout(100 * SECOND).connect().await.unwrap().mutex("stock");
    for _ in 0..20 {
        let work = async |hold: Hold| {
            let mut extension = Box::pin(async move { hold.extend(LONG).await });
            let polled = futures::poll!(&mut extension);
            polled.is_pending().then_some(extension)
        };
        if let Some(extension) = soon("the run", stock.run(work)).await.unwrap() {
            let error = soon("the extension", extension).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        }
        assert!(!stock.is_locked().await.unwrap());
    }
}
