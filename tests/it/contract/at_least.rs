//! `at_least`: after an early release nobody gets the lock until the time is over.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use nestlock::{ErrorKind, Loss, Mutex};
use tokio::time::{Instant, sleep_until};

use super::{Home, LONG, SECOND, long_lived, without_timers};
use crate::errors::is;
use crate::support::{enlisted, eventually, parked, soon};

/// Longer than a test needs to look, even on a busy machine, and still short enough to wait for.
const TIME: Duration = Duration::from_secs(5);

/// Returns whether nobody gets the lock now, neither this process nor another one.
async fn is_refused(ours: &Mutex, theirs: &Mutex) -> bool {
    ours.try_lock().await.unwrap().is_none() && theirs.try_lock().await.unwrap().is_none()
}

#[tokio::test]
async fn a_lock_that_is_released_before_its_time_is_nobodys_until_then() {
    let home = Home::start().await;
    let (stock, theirs) = (long_lived(&home).await.mutex("stock"), long_lived(&home).await.mutex("stock"));
    let asked = Instant::now();
    let guard = stock.lock().at_least(TIME).await.unwrap();
    let field = guard.hold_id().to_owned();
    guard.release().await.unwrap();
    assert!(!stock.is_held() && stock.hold_count() == 0);
    assert!(is_refused(&stock, &theirs).await);
    let fields = home.fields("stock").await;
    assert!(matches!(&fields[..], [(kept, 1)] if *kept != field), "{fields:?}");
    assert!(home.left("stock").await.is_some_and(|left| left <= TIME + SECOND / 100));
    // The task that had the lock has to wait too.
    let (ours, theirs) = tokio::join!(soon("a turn", stock.run(async |_| Instant::now())), async {
        soon("a turn", theirs.run(async |_| Instant::now())).await
    });
    for began in [ours, theirs] {
        let waited = began.unwrap() - asked;
        assert!(waited > TIME - SECOND / 10 && waited < 5 * TIME, "{waited:?}");
    }
    eventually("the end", async || home.keys().await.is_empty()).await;
}

#[tokio::test]
async fn a_drop_and_the_end_of_a_run_keep_the_lock_as_a_release_does() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    drop(locks.mutex("drop").lock().at_least(LONG).await.unwrap());
    locks.mutex("run").lock().at_least(LONG).run(async |_| {}).await.unwrap();
    locks.mutex("try").try_lock().at_least(LONG).run(async |_| {}).await.unwrap().unwrap();
    let inside = tokio::sync::Notify::new();
    let hung = locks.mutex("hung").lock().at_least(LONG).run(async |_| {
        inside.notify_one();
        std::future::pending::<()>().await
    });
    tokio::select! { _ = hung => panic!("it hangs"), () = inside.notified() => {} }
    locks.close().await.unwrap();
    // The process that kept the locks is closed.
    for name in ["drop", "run", "try", "hung"] {
        assert!(home.left(name).await.is_some_and(|left| left > LONG - 60 * SECOND), "{name}");
        assert!(home.locks().await.mutex(name).try_lock().await.unwrap().is_none(), "{name}");
    }
}

#[tokio::test]
async fn a_job_that_takes_longer_frees_its_lock_at_once() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock");
    let guard = stock.lock().at_least(SECOND / 5).await.unwrap();
    sleep_until(Instant::now() + SECOND / 4).await;
    guard.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

/// `at_least` is no lease, and may be longer than the lease.
#[tokio::test]
async fn the_time_may_be_longer_than_the_lease() {
    let home = Home::start().await;
    let locks = home.builder().lease(2 * SECOND).connect().await.unwrap();
    let (stock, theirs) = (locks.mutex("stock"), home.locks().await.mutex("stock"));
    stock.lock().at_least(LONG).await.unwrap().release().await.unwrap();
    assert!(
        home.left("stock").await.is_some_and(|left| left > LONG - 60 * SECOND && left <= LONG + SECOND / 100)
    );
    assert!(is_refused(&stock, &theirs).await);
    assert!(stock.force_release().await.unwrap());
    stock.try_lock().await.unwrap().expect("it was freed").release().await.unwrap();
}

#[tokio::test]
async fn the_longest_time_of_all_levels_counts() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock");
    let outer = stock.lock().at_least(SECOND).await.unwrap();
    let inner = stock.lock().at_least(LONG).await.unwrap();
    inner.release().await.unwrap();
    assert_eq!(home.count("stock", outer.hold_id()).await, Some(1), "the outer one holds it");
    let inner = stock.lock().at_least(SECOND).await.unwrap();
    assert_eq!(inner.depth(), 2);
    drop((inner, outer));
    eventually("the end", async || home.fields("stock").await.iter().all(|(field, _)| field.ends_with(":0")))
        .await;
    assert!(home.left("stock").await.is_some_and(|left| left > LONG - 60 * SECOND));
}

/// The waiter has been told a longer lease, and no other timer wakes it.
#[tokio::test]
async fn a_waiter_is_notified_that_the_lock_is_free_sooner() {
    let home = Home::start().await;
    let ours = without_timers(&home).lease(LONG).connect().await.unwrap().mutex("stock");
    let theirs = without_timers(&home).lease(LONG).connect().await.unwrap().mutex("stock");
    let guard = ours.lock().at_least(TIME).await.unwrap();
    let asked = home.asked().await;
    let mut waiter = theirs.lock();
    parked(&mut waiter, home.asleep(asked)).await;
    let neighbour = tokio::spawn(enlisted(&ours));
    guard.release().await.unwrap();
    // The two may get the lock in either order.
    let waiter = async { waiter.await.unwrap().release().await.unwrap() };
    let neighbour = async { neighbour.await.unwrap().unwrap().release().await.unwrap() };
    soon("both", async { tokio::join!(waiter, neighbour) }).await;
}

/// If the hold passed on inside the process, the next task would get in at once.
#[tokio::test]
async fn a_hold_with_a_time_does_not_pass_on_before_it_is_over() {
    let home = Home::start().await;
    let locks = without_timers(&home).lease(LONG).local_handoff(Duration::MAX).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let asked = Instant::now();
    let guard = stock.lock().at_least(TIME).await.unwrap();
    let next = tokio::spawn(enlisted(&stock));
    guard.release().await.unwrap();
    let next = soon("its turn", next).await.unwrap().unwrap();
    assert!(asked.elapsed() > TIME - SECOND / 10, "{:?}", asked.elapsed());
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_was_lost_is_not_kept() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock");
    let guard = stock.lock().at_least(LONG).await.unwrap();
    home.lose("stock").await;
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Gone));
    assert!(home.keys().await.is_empty());
    let guard = stock.lock().at_least(LONG).await.unwrap();
    stock.force_release().await.unwrap();
    let other = home.locks().await.mutex("stock").lock().await.unwrap();
    assert!(guard.release().await.is_err());
    assert_eq!(home.fields("stock").await, [(other.hold_id().to_owned(), 1)]);
}

#[tokio::test]
async fn a_request_that_is_dropped_keeps_nothing() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock");
    for polls in 0..3 {
        let mut request = pin!(stock.lock().at_least(LONG));
        for _ in 0..polls {
            let polled = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
            if polled.is_ready() {
                return;
            }
        }
    }
    home.tidy().await;
}

#[tokio::test]
async fn a_release_whose_answer_is_lost_keeps_the_lock_no_longer() {
    let home = Home::with_faults().await;
    let stock = long_lived(&home).await.mutex("stock");
    let guard = stock.lock().at_least(LONG).await.unwrap();
    home.drop_replies(1).await;
    let _either = guard.release().await;
    eventually("the end", async || home.fields("stock").await.iter().all(|(field, _)| field.ends_with(":0")))
        .await;
    assert!(home.left("stock").await.is_some_and(|left| left <= LONG + SECOND / 100));
    home.drop_replies(0).await;
    eventually("answers", async || {
        home.locks().await.mutex("stock").try_lock().await.is_ok_and(|got| got.is_none())
    })
    .await;
}

#[tokio::test]
async fn tokens_grow_over_a_lock_that_was_kept() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock").fenced();
    let guard = stock.lock().at_least(TIME).await.unwrap();
    let first = guard.token();
    guard.release().await.unwrap();
    assert!(stock.try_lock().await.unwrap().is_none());
    assert!(soon("its turn", stock.run(async |hold| hold.token())).await.unwrap() > first);
}

#[tokio::test]
async fn several_names_are_kept_where_all_were_granted() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let names = ["account:1", "account:2"];
    locks.mutexes(names).lock().at_least(LONG).await.unwrap().release().await.unwrap();
    assert_eq!(home.keys().await, names);
    assert!(locks.mutexes(names).try_lock().await.unwrap().is_none());
    for name in names {
        locks.mutex(name).force_release().await.unwrap();
    }
    // `at_least` keeps all locks or none: a lock that is given back is free at once.
    let theirs = long_lived(&home).await;
    let busy = theirs.mutex("account:2").lock().await.unwrap();
    assert!(locks.mutexes(names).try_lock().at_least(LONG).await.unwrap().is_none());
    eventually("the first one's end", async || home.keys().await == ["account:2"]).await;
    busy.release().await.unwrap();
}

#[tokio::test]
async fn a_time_beyond_the_end_of_the_hold_is_a_wrong_option() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let stock = locks.mutex("stock");
    let config = ErrorKind::Config;
    let error = stock.lock().at_least(2 * SECOND).fixed_lease(SECOND).await.unwrap_err();
    is(&error, config, Some("stock"), &["at_least of 2s", "fixed_lease of 1s"]);
    let error = stock.try_lock().at_least(2 * SECOND).max_hold(SECOND).await.unwrap_err();
    is(&error, config, Some("stock"), &["at_least of 2s", "max_hold of 1s"]);
    is(&stock.lock().at_least(Duration::MAX).await.unwrap_err(), config, Some("stock"), &["at_least of"]);
    let error = locks.mutexes(["a", "b"]).lock().at_least(2 * SECOND).max_hold(SECOND).await.unwrap_err();
    is(&error, config, None, &["at_least of 2s"]);
    assert!(home.keys().await.is_empty());
    stock.lock().at_least(Duration::ZERO).await.unwrap().release().await.unwrap();
    assert!(home.keys().await.is_empty());
    let asked = Instant::now();
    let guard = stock.lock().at_least(SECOND).fixed_lease(SECOND).await.unwrap();
    assert_eq!(soon("its end", guard.lost()).await, Loss::Expired);
    let next =
        soon("the next one's turn", long_lived(&home).await.mutex("stock").run(async |_| Instant::now()));
    assert!(next.await.unwrap() > asked + SECOND - SECOND / 10);
}
