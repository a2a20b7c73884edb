//! Guards that are dropped in places where no future runs.

use std::cell::RefCell;
use std::time::Duration;

use nestlock::Guard;
use tokio::runtime::{Builder, Runtime};

use super::{Home, long_lived};
use crate::support::eventually;

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn many_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_guard_dropped_inside_a_runtime_is_released() {
    for runtime in [one_thread(), many_threads()] {
        runtime.block_on(async {
            let home = Home::start().await;
            let locks = long_lived(&home).await;
            drop(locks.mutex("stock").lock().await.unwrap());
            home.tidy().await;
        });
    }
}

#[tokio::test]
async fn a_guard_dropped_on_a_thread_without_a_runtime_is_released() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    home.tidy().await;
}

#[tokio::test]
async fn a_guard_dropped_by_a_panicking_task_is_released() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let stock = locks.mutex("stock");
    let panicking = tokio::spawn(async move {
        let _outer = stock.lock().await.unwrap();
        let _inner = stock.lock().await.unwrap();
        panic!("as a failing program does");
    });
    assert!(panicking.await.unwrap_err().is_panic());
    home.tidy().await;
}

#[tokio::test]
async fn a_guard_dropped_by_a_panicking_thread_is_released() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    let panicking = std::thread::spawn(move || {
        let _guard = guard;
        panic!("as a failing program does");
    });
    // The thread panicked. A second panic, in the drop, would have aborted the process.
    assert!(panicking.join().is_err());
    home.tidy().await;
}

#[tokio::test]
async fn a_guard_in_a_thread_local_is_released_when_its_thread_ends() {
    thread_local!(static KEPT: RefCell<Option<Guard>> = const { RefCell::new(None) });
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    std::thread::spawn(move || KEPT.set(Some(guard))).join().unwrap();
    home.tidy().await;
}

#[test]
fn a_guard_in_a_thread_local_of_a_runtimes_thread_outlives_that_runtime_without_a_panic() {
    thread_local!(static KEPT: RefCell<Option<Guard>> = const { RefCell::new(None) });
    let looks = one_thread();
    let home = looks.block_on(Home::start());
    let builder = home.builder();
    // The runtime belongs to this thread, and is gone by the time the thread's locals are dropped.
    std::thread::spawn(move || {
        let runtime = one_thread();
        runtime.block_on(async {
            let locks = builder.lease(Duration::from_secs(1)).connect().await.unwrap();
            KEPT.set(Some(locks.mutex("stock").lock().await.unwrap()));
        });
    })
    .join()
    .unwrap();
    looks.block_on(eventually("the lease's end", async || home.keys().await.is_empty()));
}

#[test]
fn a_guard_dropped_after_its_runtime_was_shut_down_is_left_to_its_lease() {
    let looks = many_threads();
    let home = looks.block_on(Home::start());
    for runtime in [one_thread(), many_threads()] {
        let (locks, guard) = runtime.block_on(async {
            let locks = home.builder().lease(Duration::from_secs(1)).connect().await.unwrap();
            let guard = locks.mutex("stock").lock().await.unwrap();
            (locks, guard)
        });
        runtime.shutdown_background();
        drop(guard);
        assert!(!locks.mutex("stock").is_held());
        looks.block_on(eventually("the lease's end", async || home.keys().await.is_empty()));
    }
}
