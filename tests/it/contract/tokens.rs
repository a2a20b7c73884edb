//! Fencing tokens: the token of each hold is larger than those of all earlier holds, and the work under the hold can read it.

mod trouble;

use std::sync::{Arc, Mutex as Shared};
use std::time::Duration;

use nestlock::{ErrorKind, Fenced, Hold, Loss, Owner, scope};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use super::{HOUR, Home, LONG, SECOND, crash, foreign_guard, less_drift, long_lived};
use crate::support::{enlisted_fenced, eventually, next_token, soon};

#[tokio::test]
async fn tokens_grow_over_the_holds_of_tasks_and_processes() {
    let home = Home::start().await;
    let given = Arc::new(Shared::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for locks in [long_lived(&home).await, long_lived(&home).await] {
        for kind in 0..4 {
            let (stock, given) = (locks.mutex("stock").fenced(), given.clone());
            tasks.spawn(async move {
                // While the lock is held, nobody else adds to the list.
                let add = |token: u64| given.lock().unwrap().push(token);
                let mut had = 0;
                while had < 10 {
                    had += match kind {
                        0 => stock.lock().await.map(|guard| add(guard.token())).is_ok().into(),
                        1 => stock.run(async |hold| add(hold.token())).await.is_ok().into(),
                        2 => match stock.try_lock().within(LONG).await.unwrap() {
                            Some(guard) => {
                                add(guard.token());
                                guard.release().await.is_ok().into()
                            }
                            None => 0,
                        },
                        _ => {
                            let run = stock.try_lock().within(LONG).run(async |hold| add(hold.token()));
                            usize::from(run.await.unwrap().is_some())
                        }
                    };
                }
            });
        }
    }
    soon("all of them", tasks.join_all()).await;
    let given = given.lock().unwrap();
    assert_eq!(given.len(), 80);
    assert!(given.is_sorted_by(|one, next| one < next), "{given:?}");
}

#[tokio::test]
async fn a_re_entry_has_the_token_of_its_hold_by_whichever_handle() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let (fenced, plain) = (locks.mutex("stock").fenced(), locks.mutex("stock"));
    let outer = fenced.lock().await.unwrap();
    let given = outer.token();
    let guard = fenced.lock().await.unwrap();
    assert_eq!((guard.depth(), guard.token()), (2, given));
    guard.release().await.unwrap();
    let guard = fenced.try_lock().await.unwrap().unwrap();
    assert_eq!((guard.depth(), guard.token()), (2, given));
    drop(guard);
    let nested =
        async |outer: Hold<Fenced>| (outer.token(), fenced.run(async |inner| inner.token()).await.unwrap());
    assert_eq!(fenced.run(nested).await.unwrap(), (given, given));
    assert_eq!(fenced.try_lock().run(async |hold| hold.token()).await.unwrap(), Some(given));
    assert_eq!(plain.run(async |_| fenced.token()).await.unwrap(), Some(given));
    // The outermost level may be released first: the hold stays the same.
    let inner = plain.lock().await.unwrap();
    outer.release().await.unwrap();
    assert_eq!(fenced.token(), Some(given));
    let innermost = fenced.lock().await.unwrap();
    assert_eq!(innermost.token(), given);
    innermost.release().await.unwrap();
    inner.release().await.unwrap();
    assert!(next_token(&fenced).await > given);
}

#[tokio::test]
async fn whoever_works_under_the_hold_reads_its_token_and_no_one_else() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock").fenced();
    assert_eq!(stock.token(), None);
    let guard = stock.lock().await.unwrap();
    let given = Some(guard.token());
    assert_eq!((stock.token(), locks.mutex("stock").fenced().token()), (given, given));
    assert_eq!(locks.mutex("other").fenced().token(), None);
    assert_eq!(scope(async { stock.token() }).await, given, "a child");
    assert_eq!(Owner::new().scope(async { stock.token() }).await, None, "a stranger");
    let (theirs, others) = (stock.clone(), home.locks().await.mutex("stock").fenced());
    assert_eq!(others.token(), None, "another process");
    let (child, ours) = (Owner::current().child(), stock.clone());
    let spawned = tokio::spawn(async move { (theirs.token(), child.scope(async { ours.token() }).await) });
    assert_eq!(spawned.await.unwrap(), (None, given), "a stranger in another task, and a child there");
    // A guard that moved to another task still holds for this task. In the guard's scope the token can be read in the other task too.
    let theirs = stock.clone();
    let moved = tokio::spawn(async move {
        let read = guard.scope(async { theirs.token() }).await;
        (theirs.token(), read, guard)
    });
    let (alone, scoped, guard) = moved.await.unwrap();
    assert_eq!((alone, scoped, stock.token()), (None, given, given));
    guard.release().await.unwrap();
    assert_eq!(stock.token(), None);
}

#[tokio::test]
async fn a_child_that_holds_it_has_a_token_that_its_ancestors_do_not_read() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock").fenced();
    let inside = stock.run(async |hold| hold.token());
    let beside = async {
        tokio::task::yield_now().await;
        stock.token()
    };
    let (inside, beside) = tokio::join!(inside, beside);
    assert!(inside.unwrap() > 0);
    assert_eq!(beside, None);
    // Two branches have separate holds, one after the other.
    let (one, two) = tokio::join!(stock.run(async |hold| hold.token()), stock.run(async |hold| hold.token()));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one, two);
    // Under a hold of their parent, both branches have its token.
    let both = async |hold: Hold<Fenced>| {
        (hold.token(), tokio::join!(stock.run(async |one| one.token()), stock.run(async |two| two.token())))
    };
    let (token, (one, two)) = stock.run(both).await.unwrap();
    assert_eq!((one.unwrap(), two.unwrap()), (token, token));
}

#[tokio::test]
async fn the_work_of_a_run_is_made_of_the_token_under_the_hold_and_never_without() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock").fenced();
    let work = |hold: Hold<Fenced>| {
        let token = hold.token();
        assert_eq!((stock.hold_count(), stock.token()), (1, Some(token)), "not as the hold's owner");
        let read = stock.token();
        async move { (token, read) }
    };
    let (token, read) = stock.run(work).await.unwrap();
    assert_eq!(read, Some(token));
    let theirs = stock.lock().owner(&Owner::new()).await.unwrap();
    let made = std::cell::Cell::new(false);
    let work = |_: Hold<Fenced>| {
        made.set(true);
        async {}
    };
    assert_eq!(stock.try_lock().run(work).await.unwrap(), None);
    drop(stock.lock().run(work));
    assert!(!made.get());
    theirs.release().await.unwrap();
    assert_eq!(stock.try_lock().run(work).await.unwrap(), Some(()));
    assert!(made.get() && !stock.is_locked().await.unwrap());
}

#[tokio::test]
async fn a_plain_lock_has_none() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let (plain, fenced) = (locks.mutex("stock"), locks.mutex("stock").fenced());
    let before = next_token(&fenced).await;
    let guard = plain.lock().await.unwrap();
    assert_eq!(fenced.token(), None);
    guard.release().await.unwrap();
    assert_eq!(plain.run(async |_| fenced.token()).await.unwrap(), None);
    assert!(next_token(&fenced).await > before);
}

#[tokio::test]
async fn a_fenced_re_entry_under_a_hold_without_a_token_is_an_error_that_harms_nothing() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let (plain, fenced) = (locks.mutex("stock"), locks.mutex("stock").fenced());
    let outer = plain.lock().await.unwrap();
    let waits = tokio::spawn(enlisted_fenced(&fenced));
    for error in [
        soon("lock", fenced.lock()).await.unwrap_err(),
        soon("try_lock", fenced.try_lock()).await.unwrap_err(),
        soon("run", fenced.run(async |_| {})).await.unwrap_err(),
        soon("a try_lock's run", fenced.try_lock().run(async |_| {})).await.unwrap_err(),
        soon("in a child", scope(fenced.lock().within(SECOND))).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Misuse, Some("stock")), "{error}");
        assert!(error.to_string().contains("`fenced`"), "{error}");
    }
    // The errors had no effect: the hold is live, and can be re-entered and released as before.
    assert_eq!(home.fields("stock").await, [(outer.hold_id().to_owned(), 1)]);
    assert!(!outer.is_lost() && plain.hold_count() == 1);
    let inner = plain.lock().await.unwrap();
    assert_eq!((inner.depth(), fenced.token()), (2, None));
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    let guard = soon("the one in line", waits).await.unwrap().unwrap();
    let given = guard.token();
    guard.release().await.unwrap();
    assert!(soon("the same owner, now", fenced.lock()).await.unwrap().token() > given);
}

#[tokio::test]
async fn whoever_waited_has_a_larger_token() {
    let home = Home::start().await;
    let (ours, theirs) = (long_lived(&home).await, long_lived(&home).await);
    let mut before = 0;
    for locks in [&ours, &theirs] {
        let guard = ours.mutex("stock").fenced().lock().await.unwrap();
        assert!(guard.token() > before);
        before = guard.token();
        let waits = tokio::spawn(enlisted_fenced(&locks.mutex("stock").fenced()));
        home.listened().await;
        guard.release().await.unwrap();
        let guard = soon("the waiter", waits).await.unwrap().unwrap();
        assert!(guard.token() > before);
        before = guard.token();
        guard.release().await.unwrap();
        home.silence().await;
    }
}

#[tokio::test]
async fn an_extended_lease_and_a_renewed_one_keep_the_token() {
    let home = Home::start().await;
    let stock = home.builder().lease(6 * SECOND).connect().await.unwrap().mutex("stock").fenced();
    let guard = stock.lock().await.unwrap();
    let (given, end) = (guard.token(), guard.valid_until());
    eventually("a renewal", async || guard.valid_until() > end).await;
    assert_eq!((guard.token(), stock.token()), (given, Some(given)));
    guard.extend(60 * SECOND).await.unwrap();
    assert!(guard.valid_until() >= end + less_drift(50 * SECOND));
    assert_eq!((guard.token(), stock.token()), (given, Some(given)));
    let inner = stock.lock().await.unwrap();
    assert_eq!(inner.token(), given);
}

#[tokio::test]
async fn locks_of_any_name_and_prefix_have_tokens() {
    let home = Home::start().await;
    for prefix in ["", "app:", "{app}:"] {
        let locks = home.builder().prefix(prefix).connect().await.unwrap();
        for name in ["stock", "{tag}:stock", "a{b}c", "a}b", "{}", "🔒", " ", "\0", &"x".repeat(1_024)] {
            let stock = locks.mutex(name).fenced();
            if home.has_slots() && ["a}b", "{}"].contains(&name) && !prefix.contains('{') {
                assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::InvalidInput, "{prefix}{name}");
                continue;
            }
            let before = next_token(&stock).await;
            assert!(next_token(&stock).await > before, "{prefix}{name}");
        }
    }
}
