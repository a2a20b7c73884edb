//! Claims: a hold moves from one process to another.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use nestlock::{Claim, ErrorKind, Loss, Owner};
use tokio::time::{Instant, sleep_until};

use super::{Home, Inside, LONG, SECOND, long_lived, without_timers};
use crate::errors::is;
use crate::support::{enlisted, eventually, parked, soon};

/// Returns the claim as the other process receives it, parsed from its text form.
async fn claimed(guard: nestlock::Guard) -> Claim {
    guard.into_claim().await.unwrap().to_string().parse().unwrap()
}

#[tokio::test]
async fn a_hold_goes_to_another_process_and_nobody_gets_in_between() {
    let home = Home::start().await;
    let (ours, theirs, others) = (long_lived(&home).await, long_lived(&home).await, long_lived(&home).await);
    let guard = ours.mutex("stock").lock().await.unwrap();
    let field = guard.hold_id().to_owned();
    let claim = claimed(guard).await;
    assert_eq!((claim.name(), claim.hold_id()), ("stock", &*field));
    assert!(!ours.mutex("stock").is_held());
    assert!(ours.mutex("stock").try_lock().await.unwrap().is_none());
    assert!(others.mutex("stock").try_lock().await.unwrap().is_none());
    // The process that had the lock is closed.
    ours.close().await.unwrap();
    assert_eq!(home.fields("stock").await, [(field.clone(), 1)]);
    let guard = theirs.mutex("stock").resume(&claim).await.unwrap();
    assert!(guard.hold_id() != field && guard.depth() == 1 && theirs.mutex("stock").is_held());
    eventually("it on all masters", async || home.fields("stock").await == [(guard.hold_id().to_owned(), 1)])
        .await;
    guard.check().await.unwrap();
    assert!(others.mutex("stock").try_lock().await.unwrap().is_none());
    let nested = theirs.mutex("stock").lock().await.unwrap();
    assert_eq!(nested.depth(), 2);
    drop(nested);
    guard.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn a_claim_is_good_once() {
    let home = Home::start().await;
    let (ours, theirs, others) = (long_lived(&home).await, long_lived(&home).await, long_lived(&home).await);
    let claim = claimed(ours.mutex("stock").lock().await.unwrap()).await;
    let guard = theirs.mutex("stock").resume(&claim).await.unwrap();
    for locks in [&ours, &theirs, &others] {
        let error = locks.mutex("stock").resume(&claim).await.unwrap_err();
        is(&error, ErrorKind::Lost, Some("stock"), &["the claim is over", "resumed before"]);
        assert_eq!(error.loss(), Some(Loss::Gone));
    }
    guard.check().await.unwrap();
    guard.release().await.unwrap();
    assert!(others.mutex("stock").resume(&claim).await.is_err());
    let other = ours.mutex("stock").lock().await.unwrap();
    assert!(theirs.mutex("stock").resume(&claim).await.is_err());
    other.check().await.unwrap();
    other.release().await.unwrap();
    eventually("nothing is left", async || home.keys().await.is_empty()).await;
}

/// One of the two processes gets the hold. (Over a network, several masters may refuse both.)
#[tokio::test]
async fn of_two_that_resume_at_once_one_gets_it() {
    let home = Home::start().await;
    let (ours, theirs, others) = (long_lived(&home).await, long_lived(&home).await, long_lived(&home).await);
    for _ in 0..20 {
        let claim = claimed(ours.mutex("stock").lock().owner(&Owner::new()).await.unwrap()).await;
        let (one, two) = (theirs.mutex("stock"), others.mutex("stock"));
        let (one, two) = tokio::join!(one.resume(&claim), two.resume(&claim));
        assert!(one.is_err() || two.is_err(), "both have it");
        assert!(one.is_ok() || two.is_ok(), "{one:?} {two:?}");
        for guard in [one, two].into_iter().flatten() {
            guard.check().await.unwrap();
            guard.release().await.unwrap();
        }
        home.tidy().await;
    }
}

#[tokio::test]
async fn a_claim_lives_for_the_rest_of_its_lease_and_is_over_then() {
    let home = Home::start().await;
    let locks = home.builder().lease(6 * SECOND).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let asked = Instant::now();
    let guard = stock.lock().await.unwrap();
    // This is shortly before the first renewal.
    sleep_until(asked + SECOND + SECOND / 2).await;
    let before = Instant::now();
    let claim = claimed(guard).await;
    // The hold is not renewed any more, but it got a full lease when the claim was made.
    eventually("its end", async || home.keys().await.is_empty()).await;
    assert!(before.elapsed() > 5 * SECOND, "{:?}", before.elapsed());
    assert_eq!(stock.resume(&claim).await.unwrap_err().loss(), Some(Loss::Gone));
    let fixed = stock.lock().fixed_lease(20 * SECOND).await.unwrap();
    let claim = claimed(fixed).await;
    assert!(home.left("stock").await.is_some_and(|left| left > 10 * SECOND && left <= 20 * SECOND));
    stock.resume(&claim).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_resumed_hold_is_renewed() {
    let home = Home::start().await;
    let (ours, theirs) = (home.locks().await, home.builder().lease(6 * SECOND).connect().await.unwrap());
    let claim = claimed(ours.mutex("stock").lock().fixed_lease(6 * SECOND).await.unwrap()).await;
    let guard = theirs.mutex("stock").resume(&claim).await.unwrap();
    let end = guard.valid_until();
    eventually("a renewal", async || guard.valid_until() > end).await;
    sleep_until(end).await;
    guard.check().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_hold_with_other_levels_or_a_token_is_not_handed_over() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let stock = locks.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    is(&inner.into_claim().await.unwrap_err(), ErrorKind::Misuse, Some("stock"), &["2 levels"]);
    eventually("one level", async || home.count("stock", outer.hold_id()).await == Some(1)).await;
    outer.check().await.unwrap();
    claimed(outer).await;
    let fenced = locks.mutex("fenced").fenced().lock().await.unwrap();
    let plain = locks.mutex("fenced").lock().await.unwrap();
    drop(fenced);
    is(&plain.into_claim().await.unwrap_err(), ErrorKind::Misuse, Some("fenced"), &["fencing token"]);
    eventually("its release", async || home.keys().await == ["stock"]).await;
}

#[tokio::test]
async fn a_lost_hold_is_not_handed_over_and_a_claim_of_it_is_not_resumed() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    home.lose("stock").await;
    assert_eq!(guard.into_claim().await.unwrap_err().loss(), Some(Loss::Gone));
    let claim = claimed(stock.lock().await.unwrap()).await;
    home.lose("stock").await;
    assert_eq!(stock.resume(&claim).await.unwrap_err().loss(), Some(Loss::Gone));
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn a_claim_of_another_lock_is_refused() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let claim = claimed(locks.mutex("stock").lock().await.unwrap()).await;
    is(
        &locks.mutex("order").resume(&claim).await.unwrap_err(),
        ErrorKind::Misuse,
        Some("order"),
        &["claim.name()"],
    );
    locks.mutex("stock").resume(&claim).await.unwrap().release().await.unwrap();
    let claim = claimed(locks.mutex("stock").lock().await.unwrap()).await;
    locks.close().await.unwrap();
    let error = locks.mutex("stock").resume(&claim).await.unwrap_err();
    is(&error, ErrorKind::Closed, Some("stock"), &[]);
    home.locks().await.mutex("stock").resume(&claim).await.unwrap().release().await.unwrap();
}

/// The lock has not been released, so the waiters of the first process keep waiting too.
#[tokio::test]
async fn whoever_waits_gets_the_lock_after_the_one_that_resumed_it() {
    let home = Home::start().await;
    let ours = without_timers(&home).lease(LONG).connect().await.unwrap().mutex("stock");
    let theirs = without_timers(&home).lease(LONG).connect().await.unwrap().mutex("stock");
    let guard = ours.lock().await.unwrap();
    let asked = home.asked().await;
    let mut waiter = theirs.lock();
    parked(&mut waiter, home.asleep(asked)).await;
    let mut neighbour = tokio::spawn(enlisted(&ours));
    let claim = claimed(guard).await;
    let guard = theirs.resume(&claim).await.unwrap();
    assert!(tokio::time::timeout(SECOND / 5, &mut neighbour).await.is_err());
    let waiter = tokio::spawn(waiter);
    guard.release().await.unwrap();
    let waiter = async { waiter.await.unwrap().unwrap().release().await.unwrap() };
    let neighbour = async { neighbour.await.unwrap().unwrap().release().await.unwrap() };
    soon("both", async { tokio::join!(waiter, neighbour) }).await;
}

#[tokio::test]
async fn what_is_dropped_on_its_way_leaves_nothing() {
    let home = Home::start().await;
    let (ours, theirs) = (long_lived(&home).await, long_lived(&home).await);
    for polls in 0..4 {
        let guard = ours.mutex("stock").lock().owner(&Owner::new()).await.unwrap();
        let done = {
            let mut handing = pin!(guard.into_claim());
            let mut done = false;
            for _ in 0..polls {
                done |= !done && poll_fn(|cx| Poll::Ready(handing.as_mut().poll(cx))).await.is_ready();
            }
            done
        };
        if done {
            home.lose("stock").await;
        }
        home.tidy().await;
        let claim = claimed(ours.mutex("stock").lock().owner(&Owner::new()).await.unwrap()).await;
        let stock = theirs.mutex("stock");
        {
            let mut resuming = pin!(stock.resume(&claim));
            let mut done = false;
            for _ in 0..polls {
                done |= !done && poll_fn(|cx| Poll::Ready(resuming.as_mut().poll(cx))).await.is_ready();
            }
        }
        if polls == 0 {
            // No command was sent, so the claim is still good.
            stock.resume(&claim).await.unwrap().release().await.unwrap();
        } else {
            // Either the hold moved and was ended, or its end came first and the claim still has the hold.
            if let Ok(guard) = stock.resume(&claim).await {
                guard.release().await.unwrap();
            }
        }
        home.tidy().await;
    }
}

#[tokio::test]
async fn a_resume_whose_answer_is_lost_leaves_nothing() {
    let home = Home::with_faults().await;
    let (ours, theirs) = (long_lived(&home).await, long_lived(&home).await);
    let claim = claimed(ours.mutex("stock").lock().await.unwrap()).await;
    home.drop_replies(1).await;
    if let Ok(guard) = soon("an answer", theirs.mutex("stock").resume(&claim)).await {
        drop(guard);
    }
    home.drop_replies(0).await;
    home.tidy().await;
    let guard = soon("a grant", theirs.mutex("stock").lock()).await.unwrap();
    guard.check().await.unwrap();
}

/// Meanwhile another request of the same task is under way. That shows a branch: a chain of calls never has two requests at once.
#[tokio::test]
async fn a_request_in_another_branch_does_not_enter_a_hold_that_is_resumed() {
    let home = Home::start().await;
    let (ours, theirs) = (long_lived(&home).await, long_lived(&home).await);
    for first in [true, false] {
        let claim = claimed(ours.mutex("stock").lock().owner(&Owner::new()).await.unwrap()).await;
        let (stock, inside) = (theirs.mutex("stock"), Inside::default());
        let waits = async {
            let guard = stock.lock().await.unwrap();
            assert_eq!(guard.depth(), 1);
            inside.stay().await;
            guard.release().await.unwrap();
        };
        let resumes = async {
            let guard = stock.resume(&claim).await.unwrap();
            inside.stay().await;
            guard.release().await.unwrap();
        };
        soon("both", async {
            match first {
                true => drop(tokio::join!(waits, resumes)),
                false => drop(tokio::join!(resumes, waits)),
            }
        })
        .await;
        assert_eq!(inside.ever(), 2);
        home.tidy().await;
    }
}

/// The nested request begins only after the claim is resumed.
#[tokio::test]
async fn a_request_after_a_resumed_hold_of_its_owner_is_nested() {
    let home = Home::start().await;
    let (ours, theirs) = (long_lived(&home).await, long_lived(&home).await);
    let claim = claimed(ours.mutex("stock").lock().await.unwrap()).await;
    let stock = theirs.mutex("stock");
    let guard = stock.resume(&claim).await.unwrap();
    let nested = soon("the nested one", stock.lock()).await.unwrap();
    assert_eq!(nested.depth(), 2);
    nested.release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_resumed_hold_is_held_for_as_long_as_it_is_resumed() {
    let home = Home::start().await;
    let (ours, theirs) = (long_lived(&home).await, long_lived(&home).await);
    let claim = claimed(ours.mutex("stock").lock().await.unwrap()).await;
    let before = Instant::now();
    let guard = theirs.mutex("stock").resume(&claim).await.unwrap();
    let after = Instant::now();
    sleep_until(after + SECOND).await;
    let held_for = theirs.status()[0].held_for().unwrap();
    assert!((SECOND..=before.elapsed()).contains(&held_for), "{held_for:?}");
    guard.release().await.unwrap();
}
