//! The owners of holds: with spawned tasks, owners that are passed on, guards that move, and scopes that end.

use nestlock::{ErrorKind, Owner, scope};
use std::time::Duration;
use tracing::Level;

use super::{Home, Inside};
use crate::support::{SOON_OVER, log, soon};

#[tokio::test]
async fn a_spawned_task_is_a_stranger() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let theirs = stock.clone();
    let spawned = tokio::spawn(async move {
        assert!(!theirs.is_held() && theirs.hold_count() == 0);
        theirs.try_lock().await.unwrap().is_none()
    });
    assert!(soon("its answer", spawned).await.unwrap());
    let theirs = stock.clone();
    let spawned = tokio::spawn(theirs.run(async |_| {}));
    guard.release().await.unwrap();
    soon("its turn", spawned).await.unwrap().unwrap();
}

#[tokio::test]
async fn children_of_a_holder_enter_one_at_a_time() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let inside = std::sync::Arc::new(Inside::default());
    let guard = stock.lock().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (stock, inside) = (stock.clone(), inside.clone());
        tasks.spawn(Owner::current().child().scope(async move {
            let inner = stock.lock().await.unwrap();
            assert_eq!(inner.depth(), 2);
            inside.stay().await;
            inner.release().await.unwrap();
        }));
    }
    soon("all children", tasks.join_all()).await;
    assert_eq!(inside.ever(), 8);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_parent_waits_for_its_child_which_holds() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let child = Owner::current().child();
    let theirs = child.scope(stock.lock()).await.unwrap();
    // The end of the scope made the hold the parent's. A hold of a child that still lives isn't the parent's.
    assert_eq!(theirs.owner(), Owner::current());
    theirs.release().await.unwrap();
    let (held, done) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let nested = child.scope(async {
        let guard = stock.lock().await.unwrap();
        held.notify_one();
        done.notified().await;
        guard.release().await.unwrap();
    });
    let parent = async {
        held.notified().await;
        assert!(stock.try_lock().await.unwrap().is_none());
        done.notify_one();
        stock.lock().await.unwrap().release().await.unwrap();
    };
    soon("both", async { tokio::join!(nested, parent) }).await;
}

#[tokio::test]
async fn a_guard_is_released_on_another_task() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let mine = Owner::current();
    let theirs = stock.clone();
    let moved = tokio::spawn(async move {
        assert!(guard.owner() == mine && !theirs.is_held());
        guard.release().await
    });
    soon("its release", moved).await.unwrap().unwrap();
    assert!(!stock.is_held());
    let guard = stock.lock().await.unwrap();
    tokio::spawn(async move { drop(guard) }).await.unwrap();
    assert!(!stock.is_held());
    assert_eq!(soon("the lock", stock.lock()).await.unwrap().depth(), 1);
}

#[tokio::test]
async fn work_in_the_scope_of_a_guard_enters_it_wherever_it_was_moved() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let (stock, own) = (locks.mutex("stock"), locks.mutex("own"));
    let guard = stock.lock().await.unwrap();
    let theirs = stock.clone();
    let moved = tokio::spawn(async move {
        assert!(theirs.try_lock().await.unwrap().is_none());
        let held = own.lock().await.unwrap();
        let depth = guard.scope(async {
            // In the guard's scope, `own` is held by another owner: this task's.
            assert!(own.try_lock().await.unwrap().is_none());
            theirs.lock().await.unwrap().depth()
        });
        let depth = depth.await;
        drop(held);
        guard.release().await.unwrap();
        depth
    });
    assert_eq!(soon("the nested hold", moved).await.unwrap(), 2);
}

#[tokio::test]
async fn a_guard_that_outlives_its_scope_is_the_ancestors() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let guard = scope(async { stock.lock().await }).await.unwrap();
    assert_eq!((guard.owner(), stock.hold_count()), (Owner::current(), 1));
    let again = soon("a re-entry", stock.lock()).await.unwrap();
    assert_eq!(again.depth(), 2);
    drop((again, guard));
    // The hold passes over several ended owners at once, to the nearest owner that lives.
    let deep = scope(scope(scope(stock.lock()))).await.unwrap();
    assert_eq!(deep.owner(), Owner::current());
    drop(deep);
    scope(async {
        let middle = Owner::current();
        let guard = scope(scope(stock.lock())).await.unwrap();
        assert_eq!(guard.owner(), middle);
        assert_eq!(soon("a re-entry", stock.lock()).await.unwrap().depth(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_outlives_the_work_of_a_run_is_the_ancestors() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let guard = stock.run(async |_| stock.lock().await.unwrap()).await.unwrap();
    assert_eq!((guard.depth(), guard.owner(), stock.hold_count()), (2, Owner::current(), 1));
    assert_eq!(home.count("stock", guard.hold_id()).await, Some(1));
    assert_eq!(soon("a re-entry", stock.lock()).await.unwrap().depth(), 2);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_scope_that_is_dropped_hands_its_guards_up() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let kept = std::cell::RefCell::new(None);
    {
        let mut work = std::pin::pin!(scope(async {
            *kept.borrow_mut() = Some(stock.lock().await.unwrap());
            std::future::pending::<()>().await;
        }));
        let got = crate::support::eventually("the guard", async || kept.borrow().is_some());
        tokio::select! { () = &mut work => unreachable!(), () = got => {} }
        assert!(stock.try_lock().await.unwrap().is_none(), "the child holds it");
    }
    assert_eq!(soon("a re-entry", stock.lock()).await.unwrap().depth(), 2);
    let guard = kept.take().unwrap();
    assert_eq!(guard.owner(), Owner::current());
}

#[tokio::test]
async fn a_request_that_outlives_its_scope_is_the_ancestors() {
    let home = Home::start().await;
    let (ours, theirs) = (home.locks().await, home.locks().await);
    let stock = ours.mutex("stock");
    let foreign = theirs.mutex("stock").lock().await.unwrap();
    let mut request = stock.lock();
    scope(async { assert!(futures::poll!(&mut request).is_pending()) }).await;
    foreign.release().await.unwrap();
    let guard = soon("the lock", request).await.unwrap();
    assert_eq!((guard.owner(), stock.hold_count()), (Owner::current(), 1));
}

#[tokio::test]
async fn the_guard_of_a_root_that_ended_is_nobodys() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let request = Owner::new();
    let guard = request.scope(stock.lock()).await.unwrap();
    assert_eq!(guard.owner(), request);
    assert!(!stock.is_held() && stock.try_lock().await.unwrap().is_none());
    assert!(Owner::new().scope(stock.try_lock()).await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(Owner::new().scope(stock.try_lock()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_new_owner_is_a_stranger_on_its_own_task() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let owner = Owner::new();
    let guard = stock.lock().owner(&owner).await.unwrap();
    assert!(!stock.is_held());
    assert!(stock.try_lock().await.unwrap().is_none());
    let again = stock.lock().owner(&owner).await.unwrap();
    assert_eq!((again.depth(), again.owner()), (2, owner.clone()));
    let child = stock.try_lock().owner(&owner.child()).await.unwrap().unwrap();
    assert_eq!(child.depth(), 3);
    drop((child, again, guard));
    assert_eq!(soon("the lock", stock.lock()).await.unwrap().depth(), 1);
}

#[tokio::test]
async fn one_owner_scoped_twice_is_one_owner_until_its_last_scope_ends() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let owner = Owner::current().child();
    let theirs = stock.clone();
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    let task = tokio::spawn(owner.scope(async move {
        wait.await.unwrap();
        let guard = theirs.try_lock().await.unwrap().expect("its owner holds it on another task");
        guard.depth()
    }));
    tokio::task::yield_now().await;
    let guard = owner.scope(stock.lock()).await.unwrap();
    assert_eq!(guard.owner(), owner, "its other scope is still open");
    assert!(stock.try_lock().await.unwrap().is_none());
    go.send(()).unwrap();
    assert_eq!(soon("its answer", task).await.unwrap(), 2);
    assert_eq!(guard.owner(), Owner::current());
    assert_eq!(soon("a re-entry", stock.lock()).await.unwrap().depth(), 2);
}

#[tokio::test]
async fn a_sibling_gets_a_fresh_field() {
    let home = Home::start().await;
    let locks = home.builder().local_handoff(Duration::ZERO).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let field = async || {
        let guard = stock.lock().await.unwrap();
        let field = guard.hold_id().to_owned();
        guard.release().await.unwrap();
        field
    };
    let one = scope(field()).await;
    let two = scope(field()).await;
    let (three, four) = soon("both", async { tokio::join!(scope(field()), scope(field())) }).await;
    let all: std::collections::HashSet<_> = [one, two, three, four].into();
    assert_eq!(all.len(), 4);
}

#[tokio::test]
async fn guards_released_out_of_order_are_counted_right_and_warned_of() {
    let home = Home::start().await;
    let name = home.unique("out-of-order");
    let stock = home.locks().await.mutex(&name);
    let (one, two) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    let three = stock.lock().await.unwrap();
    let field = one.hold_id().to_owned();
    let count = async || home.count(&name, &field).await;
    let warned = |e: &log::Event| e.mentions(&name) && e.mentions("nesting order");
    three.release().await.unwrap();
    assert_eq!(log::all(warned).len(), 0);
    one.release().await.unwrap();
    assert_eq!((count().await, stock.hold_count(), two.depth()), (Some(1), 1, 2));
    let event = log::recorded(warned).await;
    assert_eq!(event.level, Level::WARN);
    assert!(event.mentions("`run`") && event.mentions("`scope`"), "{event:?}");
    two.release().await.unwrap();
    assert_eq!((count().await, stock.hold_count()), (None, 0));
    assert_eq!(log::all(warned).len(), 1);
}

#[tokio::test]
async fn a_likely_self_wait_is_warned_of() {
    let home = Home::start().await;
    let name = home.unique("self-wait");
    let stock = home.locks().await.mutex(&name);
    let stranger = Owner::new();
    let waits =
        stock.run(async |_| stock.lock().owner(&stranger).within(SOON_OVER).await.unwrap_err().kind());
    assert_eq!(waits.await.unwrap(), ErrorKind::Timeout);
    let warned = |e: &log::Event| e.mentions(&name) && e.mentions("in whose scope it runs");
    let event = log::recorded(warned).await;
    assert_eq!(event.level, Level::WARN);
    assert!(event.mentions(&format!("{stranger:?}")), "{event:?}");
    assert!(event.fields.contains_key("asks") && event.fields.contains_key("holds"));
    // A wait for the hold of an unrelated owner causes no such warning.
    let guard = stock.lock().owner(&Owner::new()).await.unwrap();
    stock.lock().within(SOON_OVER).await.unwrap_err();
    guard.release().await.unwrap();
    assert_eq!(log::all(warned).len(), 1);
    // This is the sample of the guide: the owner of the hold is not that of the innermost scope.
    let waits = stranger.scope(async { stock.lock().within(SOON_OVER).await.unwrap_err().kind() });
    assert_eq!(stock.run(|_| waits).await.unwrap(), ErrorKind::Timeout);
    let warnings = log::all(warned);
    assert_eq!(warnings.len(), 2);
    assert!(
        warnings[1].fields["asks"] == format!("{stranger:?}")
            && warnings[1].fields["holds"].contains("depth 1")
    );
}
