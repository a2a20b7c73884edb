//! Stores: which `Locks` share one, and how long it lasts.

use std::sync::LazyLock;

use nestlock::{Locks, Memory};

use super::SECOND;
use crate::support::soon;

#[tokio::test]
async fn two_over_one_store_behave_like_two_processes() {
    let store = Memory::new();
    let (ours, theirs) = (over(&store).await, over(&store.clone()).await);
    let guard = ours.mutex("stock").lock().await.unwrap();
    let other = theirs.mutex("stock");
    assert!(other.is_locked().await.unwrap() && !other.is_held());
    assert!(other.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(other.lock());
    guard.release().await.unwrap();
    let next = soon("the other", waiting).await.unwrap().unwrap();
    assert!(ours.mutex("stock").try_lock().await.unwrap().is_none());
    assert_ne!(next.hold_id().split(':').next(), format!("{ours:?}").split(':').next());
}

#[tokio::test]
async fn each_in_memory_has_a_store_of_its_own() {
    let (one, two) = (Locks::in_memory(), Locks::in_memory());
    let guard = one.mutex("stock").lock().await.unwrap();
    assert!(!two.mutex("stock").is_locked().await.unwrap());
    two.mutex("stock").try_lock().await.unwrap().expect("it is another store's").release().await.unwrap();
    assert!(!guard.is_lost());
    // A clone uses the same store.
    assert_eq!(one.clone().mutex("stock").lock().await.unwrap().depth(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_store_has_outlives_the_locks_that_put_it_there() {
    let store = Memory::new();
    let first = over(&store).await;
    let guard = first.mutex("stock").lock().fixed_lease(60 * SECOND).await.unwrap();
    first.close().await.unwrap();
    std::mem::forget(guard);
    drop(first);
    let second = over(&store).await;
    assert!(second.mutex("stock").try_lock().await.unwrap().is_none());
    tokio::time::sleep(61 * SECOND).await;
    assert!(second.mutex("stock").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_lock_is_lost_by_its_key_which_begins_with_the_prefix() {
    let store = Memory::new();
    let locks = Locks::builder(&store).prefix("app:").connect().await.unwrap();
    assert!(!store.faults().lose("app:stock"), "nobody holds it");
    let guard = locks.mutex("stock").lock().await.unwrap();
    assert!(!store.faults().lose("stock"));
    assert!(!guard.is_lost());
    assert!(store.faults().lose("app:stock"));
    assert_eq!(soon("the loss", guard.lost()).await, nestlock::Loss::Gone);
    assert!(!store.faults().lose("app:stock"));
}

#[tokio::test(start_paused = true)]
async fn a_store_shows_the_locks_that_are_held() {
    let store = Memory::new();
    assert_eq!(format!("{store:?}"), "Memory { locks: {} }");
    let locks = over(&store).await;
    let (b, a) = (locks.mutex("b").lock().await.unwrap(), locks.mutex("a").lock().await.unwrap());
    let again = locks.mutex("a").lock().await.unwrap();
    let shown = format!("{store:?}");
    let expected = format!(
        "Memory {{ locks: {{\"a\": Holder {{ field: {:?}, count: 2, left: 30s }}, \
         \"b\": Holder {{ field: {:?}, count: 1, left: 30s }}}} }}",
        a.hold_id(),
        b.hold_id()
    );
    assert_eq!(shown, expected);
    drop((b, again, a));
}

#[test]
fn one_can_be_made_where_there_is_no_runtime() {
    static LOCKS: LazyLock<Locks> = LazyLock::new(Locks::in_memory);
    let stock = LOCKS.mutex("stock");
    assert!(!stock.is_held() && stock.hold_count() == 0);
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let guard = runtime.block_on(async { soon("the lock", stock.lock()).await.unwrap() });
        assert!(stock.is_held());
        // The runtime ends first, and the next round finds the lock free.
        drop(runtime);
        drop(guard);
        assert!(!stock.is_held());
    }
}

async fn over(store: &Memory) -> Locks {
    Locks::builder(store).connect().await.unwrap()
}
