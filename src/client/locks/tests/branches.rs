//! Branches of one task that ask in one poll of the task. Their answers are there before that poll ends.

use std::cell::Cell;

use futures::future::{join_all, select};
use futures::poll;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::task::yield_now;

use crate::{ErrorKind, Locks, Loss, Memory, Mutex};

async fn prompt() -> Mutex {
    let store = Memory::new();
    store.visit(|store| store.prompt = true);
    Locks::builder(&store).connect().await.unwrap().mutex("stock")
}

/// A branch. It checks that no other branch is inside while it holds the lock.
async fn branch(stock: &Mutex, inside: &Cell<u32>, tries: bool) {
    let guard = match tries {
        true => stock.try_lock().await.unwrap(),
        false => Some(stock.lock().await.unwrap()),
    };
    let Some(guard) = guard else { return };
    assert_eq!(inside.replace(1), 0, "two branches of one task are inside");
    yield_now().await;
    inside.set(0);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_request_is_granted_in_its_first_poll() {
    let stock = prompt().await;
    let mut lock = Box::pin(stock.lock());
    assert!(poll!(&mut lock).is_pending());
    lock.await.unwrap().release().await.unwrap();
    let mut try_lock = Box::pin(stock.try_lock());
    assert!(poll!(&mut try_lock).is_pending());
    assert!(try_lock.await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn branches_that_are_answered_at_once_exclude_each_other() {
    let (stock, inside) = (prompt().await, Cell::new(0));
    for tries in [false, true] {
        let branch = || Box::pin(branch(&stock, &inside, tries));
        tokio::join!(branch(), branch(), branch());
        join_all([branch(), branch()]).await;
        let unordered: FuturesUnordered<_> = [branch(), branch(), branch()].into_iter().collect();
        unordered.collect::<Vec<()>>().await;
        select(branch(), branch()).await.factor_first().1.await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_branch_whose_hold_is_lost_does_not_acquire_the_lock_again() {
    let store = Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let (mut one, mut two) = (Box::pin(stock.lock()), Box::pin(stock.lock()));
    let outer = tokio::select! { biased; first = &mut one => first.unwrap(), _ = &mut two => panic!("not before the first") };
    assert!(store.faults().lose("stock"));
    assert_eq!(outer.lost().await, Loss::Gone);
    // The request may be nested in the lost hold, or be a third branch. The two look the same.
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Ambiguous);
    assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
    two.await.unwrap().release().await.unwrap();
}
