//! When the work of a `run` is dropped, and as which owner.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::time::timeout;

use crate::{ErrorKind, Locks, Memory, Mutex};

const SECOND: Duration = Duration::from_secs(1);

/// What is noted until the work is dropped.
const NOT_YET: usize = usize::MAX;

/// Notes, when it is dropped, how many levels the current owner has.
struct Notes(Mutex, Arc<AtomicUsize>);

impl Drop for Notes {
    fn drop(&mut self) {
        self.1.store(self.0.hold_count(), SeqCst);
    }
}

fn work(stock: &Mutex) -> (impl Future<Output = ()> + use<>, Arc<AtomicUsize>) {
    let seen = Arc::new(AtomicUsize::new(NOT_YET));
    let notes = Notes(stock.clone(), seen.clone());
    let work = async move {
        pending::<()>().await;
        drop(notes);
    };
    (work, seen)
}

/// The values that the work owns may look at the lock, or re-enter it, when they are dropped.
#[tokio::test(start_paused = true)]
async fn the_work_of_a_run_that_is_dropped_goes_as_the_owner_of_its_hold_and_before_it() {
    let stock = Locks::in_memory().mutex("stock");
    let (work, seen) = work(&stock);
    let mut runs = Box::pin(stock.run(|_| work));
    assert!(timeout(SECOND, &mut runs).await.is_err());
    drop(runs);
    assert_eq!(seen.load(SeqCst), 1);
    stock.lock().await.unwrap().release().await.unwrap();
}

/// The future may be kept for long after the loss, for example by a `join!`.
#[tokio::test(start_paused = true)]
async fn the_work_of_a_lost_hold_is_dropped_before_the_future_of_its_run() {
    let store = Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let (work, seen) = work(&stock);
    let mut runs = Box::pin(stock.run(|_| work));
    assert!(timeout(SECOND, &mut runs).await.is_err());
    assert!(store.faults().lose("stock"));
    assert_eq!(runs.as_mut().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(seen.load(SeqCst), 0, "the work should have been dropped, and its hold is over");
}

/// Each visit is late enough to take over, as on a slow machine.
#[tokio::test]
async fn a_visit_of_a_take_over_takes_nothing_over() {
    let locks = Locks::in_memory();
    let mut guards = Vec::new();
    for name in ["stock", "order", "price"] {
        guards.push(locks.mutex(name).lock().await.unwrap());
    }
    locks.handle.table(|table, _| table.set_takeover(Duration::ZERO));
    drop(guards);
    locks.handle.table(|table, _| table.set_takeover(60 * SECOND));
    locks.close().await.unwrap();
}
