//! Who holds a lock: as a query returns it, as the error of a timeout names it, and as the process lists its own holds and waiters.

use std::time::Duration;

use nestlock::{ErrorKind, Locks, Loss, Owner, scope};

use super::{Home, LONG, SECOND, long_lived, without_timers};
use crate::errors::is;
use crate::support::{SOON_OVER, enlisted, eventually, soon};

const LABEL: &str = "billing@web-7";

/// Connects another process with a label, and with a lease that outlives every test.
async fn labelled(home: &Home) -> Locks {
    home.builder().lease(LONG).holder_name(LABEL).confirm_reentry(true).connect().await.unwrap()
}

#[tokio::test]
async fn a_holder_is_reported_with_its_label_its_field_its_count_and_its_lease() {
    let home = Home::start().await;
    let (theirs, ours) = (labelled(&home).await, long_lived(&home).await);
    let stock = ours.mutex("stock");
    assert_eq!(stock.holder().await.unwrap(), None);
    let (outer, inner) =
        (theirs.mutex("stock").lock().await.unwrap(), theirs.mutex("stock").lock().await.unwrap());
    for asking in [&stock, &theirs.mutex("stock")] {
        // One of several masters may count the second level later than the others.
        eventually("two levels", async || {
            asking.holder().await.unwrap().is_some_and(|holder| holder.count() == 2)
        })
        .await;
        let holder = asking.holder().await.unwrap().expect("it is held");
        assert_eq!((holder.name(), holder.hold_id()), (Some(LABEL), outer.hold_id()));
        let left = holder.remaining_lease();
        assert!(left > LONG - 60 * SECOND && left <= LONG, "{left:?}");
        assert!(holder.to_string().starts_with("billing@web-7 for another "), "{holder}");
    }
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    assert_eq!(stock.holder().await.unwrap(), None);
    // This lock has no label.
    let guard = ours.mutex("stock").fenced().lock().await.unwrap();
    let holder = theirs.mutex("stock").fenced().holder().await.unwrap().expect("it is held");
    assert_eq!((holder.name(), holder.hold_id(), holder.count()), (None, guard.hold_id(), 1));
}

/// Owners are compared by the whole field, not by the name in it.
#[tokio::test]
async fn two_that_have_the_same_name_are_different_owners() {
    let home = Home::start().await;
    let (one, two) = (labelled(&home).await, labelled(&home).await);
    let guard = one.mutex("stock").lock().await.unwrap();
    assert!(guard.hold_id().starts_with("billing@web-7:"));
    assert!(two.mutex("stock").try_lock().await.unwrap().is_none());
    assert_eq!((one.mutex("stock").hold_count(), two.mutex("stock").hold_count()), (1, 0));
    guard.release().await.unwrap();
    let other = soon("the other's turn", two.mutex("stock").lock()).await.unwrap();
    assert!(one.mutex("stock").try_lock().await.unwrap().is_none());
    assert!(one.mutex("stock").force_release().await.unwrap());
    assert_eq!(other.release().await.unwrap_err().loss(), Some(Loss::Gone));
}

#[tokio::test]
async fn a_lock_with_the_longest_label_is_entered_again_renewed_and_released() {
    let home = Home::start().await;
    let label = "l".repeat(64);
    let locks = home.builder().lease(LONG).holder_name(&label).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    guard.extend(2 * LONG).await.unwrap();
    assert_eq!(stock.run(async |_| stock.hold_count()).await.unwrap(), 2);
    let holder = stock.holder().await.unwrap().unwrap();
    assert_eq!((holder.name(), holder.hold_id()), (Some(&*label), guard.hold_id()));
    assert!(holder.remaining_lease() > LONG);
    guard.release().await.unwrap();
    assert!(home.keys().await.is_empty());
}

#[tokio::test]
async fn a_timeout_names_who_holds_the_lock() {
    let home = Home::start().await;
    let (theirs, ours) = (labelled(&home).await, long_lived(&home).await);
    let (theirs, stock) = (theirs.mutex("stock").lock().await.unwrap(), ours.mutex("stock"));
    // The last request asks more than once, and from the second answer on it knows the name.
    for within in [Duration::ZERO, SOON_OVER, SECOND + SECOND / 10] {
        let error = soon("the end", stock.lock().within(within)).await.unwrap_err();
        is(
            &error,
            ErrorKind::Timeout,
            Some("stock"),
            &["held by billing@web-7 for another ", " s; try again"],
        );
        let holder = error.holder().expect("it is known");
        assert_eq!((holder.name(), holder.hold_id(), holder.count()), (Some(LABEL), theirs.hold_id(), 1));
        assert!(holder.remaining_lease() > LONG - 60 * SECOND && holder.remaining_lease() <= LONG);
    }
    let error = soon("a run's end", stock.lock().within(SOON_OVER).run(async |_| {})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    // For `try_lock` this is still no error.
    assert!(stock.try_lock().await.unwrap().is_none());
    assert!(stock.try_lock().within(SOON_OVER).await.unwrap().is_none());
    let error = soon("the end", ours.mutex("stock").fenced().lock().within(SECOND)).await.unwrap_err();
    assert_eq!(error.holder().and_then(|holder| holder.name()), Some(LABEL));
}

/// A request that was never the head has sent no command itself: at most the head of its queue has.
#[tokio::test]
async fn a_timeout_of_one_that_never_was_the_head_names_the_holder_too() {
    let home = Home::start().await;
    let (theirs, ours) =
        (labelled(&home).await, without_timers(&home).holder_name("mine").connect().await.unwrap());
    let stock = ours.mutex("stock");
    let guard = theirs.mutex("stock").lock().await.unwrap();
    let before = home.asked().await;
    let head = tokio::spawn(enlisted(&stock));
    home.asleep(before).await;
    let asked = home.asked().await;
    let error = soon("the end", stock.lock().owner(&Owner::new()).within(SOON_OVER)).await.unwrap_err();
    is(&error, ErrorKind::Timeout, Some("stock"), &["held by billing@web-7 for another "]);
    assert_eq!(error.holder().map(|holder| holder.hold_id()), Some(guard.hold_id()));
    guard.release().await.unwrap();
    let next = soon("the head's turn", head).await.unwrap().unwrap();
    // Now this process holds the lock.
    let error = soon("the end", stock.lock().owner(&Owner::new()).within(SOON_OVER)).await.unwrap_err();
    is(
        &error,
        ErrorKind::Timeout,
        Some("stock"),
        &["held by mine, another owner of this process, for another", "`Owner::current().child().scope(…)`"],
    );
    assert_eq!(error.holder().map(|holder| (holder.hold_id(), holder.count())), Some((next.hold_id(), 1)));
    next.release().await.unwrap();
    // One acquire and two releases are expected. On a busy machine there are a few more: if the head does not
    // run for long, it is passed over.
    let asked = home.asked().await - asked;
    assert!(asked <= 10, "{asked}");
}

#[tokio::test]
async fn what_this_process_holds_and_waits_for_is_listed_without_a_command() {
    let home = Home::start().await;
    let (theirs, ours) = (labelled(&home).await, long_lived(&home).await);
    assert!(ours.status().is_empty());
    let guard = theirs.mutex("theirs").lock().await.unwrap();
    let before = home.asked().await;
    let waits = tokio::spawn(ours.mutex("theirs").lock());
    home.asleep(before).await;
    let (outer, inner) = (ours.mutex("ours").lock().await.unwrap(), ours.mutex("ours").lock().await.unwrap());
    let second = tokio::spawn(enlisted(&ours.mutex("ours")));
    eventually("the second one waits", async || ours.status()[0].waiting() == 1).await;
    let asked = home.asked().await;

    let listed = ours.status();
    let [held, waited] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((held.name(), held.hold_count(), held.waiting()), ("ours", 2, 1));
    let left = held.remaining_lease().unwrap();
    assert!(left > LONG - 60 * SECOND && left < LONG, "{left:?}");
    assert!(held.held_for().unwrap() < 60 * SECOND && held.waiting_for().unwrap() < 60 * SECOND);
    assert_eq!(held.holder(), None);
    assert_eq!((waited.name(), waited.hold_count(), waited.waiting()), ("theirs", 0, 1));
    assert_eq!((waited.held_for(), waited.remaining_lease()), (None, None));
    assert_eq!(
        waited.holder().map(|holder| (holder.name(), holder.hold_id())),
        Some((Some(LABEL), guard.hold_id()))
    );
    let shown = [held, waited].map(ToString::to_string);
    assert!(shown[0].contains(", 2 levels, 1 waiting"), "{shown:?}");
    assert!(
        shown[1].contains("1 waiting") && shown[1].contains("held by billing@web-7 for another "),
        "{shown:?}"
    );
    // On a busy machine a head may ask once more in the meantime.
    (0..10).for_each(|_| drop(ours.status()));
    let asked = home.asked().await - asked;
    assert!(asked < 5, "{asked}");

    inner.release().await.unwrap();
    outer.release().await.unwrap();
    soon("the second one", second).await.unwrap().unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    soon("the waiter", waits).await.unwrap().unwrap().release().await.unwrap();
    assert!(ours.status().is_empty(), "{:?}", ours.status());
}

#[tokio::test]
async fn a_timeout_below_a_sibling_reports_that_this_process_holds_it() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock");
    let held = stock.run(async |_| {
        let sibling = stock.lock().await.unwrap();
        let stranger = scope(stock.lock().owner(&Owner::new()).within(SOON_OVER)).await;
        (stranger.unwrap_err(), sibling)
    });
    let (error, sibling) = soon("the run", held).await.unwrap();
    is(&error, ErrorKind::Timeout, Some("stock"), &["another owner of this process"]);
    assert_eq!(error.holder().map(|holder| holder.count()), Some(2));
    drop(sibling);
}

#[tokio::test]
async fn asking_for_a_holder_changes_nothing_and_ends_with_the_locks() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let before = (home.fields("stock").await, guard.valid_until());
    for _ in 0..3 {
        assert!(stock.holder().await.unwrap().is_some());
    }
    assert_eq!((home.fields("stock").await, guard.valid_until()), before);
    assert_eq!(locks.mutex("").holder().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    guard.release().await.unwrap();
    locks.close().await.unwrap();
    assert_eq!(stock.holder().await.unwrap_err().kind(), ErrorKind::Closed);
}
