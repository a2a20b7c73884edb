//! Which owner is current on which thread, in which task and in which runtime.

use std::sync::Arc;

use nestlock::{Locks, Owner, scope};
use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinSet, LocalSet, spawn_blocking, spawn_local};

use super::{Home, Inside};
use crate::support::soon;

async fn crowd(locks: &Locks, tasks: usize, rounds: usize) {
    let inside = Arc::new(Inside::default());
    let mut crowd = JoinSet::new();
    for number in 0..tasks {
        let (stock, inside) = (locks.mutex("stock"), inside.clone());
        crowd.spawn(async move {
            for _ in 0..rounds {
                match number % 3 {
                    0 => stock
                        .run(async |_| stock.run(async |_| inside.stay().await).await)
                        .await
                        .unwrap()
                        .unwrap(),
                    1 => {
                        let guard = stock.lock().await.unwrap();
                        inside.stay().await;
                        guard.release().await.unwrap();
                    }
                    _ => {
                        let _guard = stock.lock().await.unwrap();
                        inside.stay().await;
                    }
                }
            }
        });
    }
    soon("the whole crowd", crowd.join_all()).await;
    assert_eq!(inside.ever(), tasks * rounds);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_on_many_threads_exclude_each_other() {
    let home = Home::start().await;
    crowd(&home.locks().await, 9, 10).await;
}

#[tokio::test(flavor = "current_thread")]
async fn tasks_on_one_thread_exclude_each_other() {
    let home = Home::start().await;
    crowd(&home.locks().await, 9, 10).await;
}

#[tokio::test]
async fn local_tasks_are_strangers_to_each_other() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let local = LocalSet::new();
    let work = local.run_until(async {
        let guard = stock.lock().await.unwrap();
        let theirs = stock.clone();
        assert!(spawn_local(async move { theirs.try_lock().await.unwrap().is_none() }).await.unwrap());
        assert_eq!(stock.lock().await.unwrap().depth(), 2);
        guard.release().await.unwrap();
    });
    soon("the local tasks", work).await;
}

#[tokio::test]
async fn local_tasks_that_are_polled_inside_of_a_scope_are_strangers() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    // A local set polls its tasks inside the poll of the task that awaits it, which is inside the scope here.
    let (local, inside) = (LocalSet::new(), std::rc::Rc::new(Inside::default()));
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let (stock, inside) = (stock.clone(), inside.clone());
            local.spawn_local(async move {
                let _guard = stock.lock().await.unwrap();
                assert_eq!(stock.hold_count(), 1);
                inside.stay().await;
            })
        })
        .collect();
    soon("three local tasks", scope(local)).await;
    for task in tasks {
        task.await.unwrap();
    }
    let theirs = stock.clone();
    let work = stock.run(async move |_| {
        let local = LocalSet::new();
        let nested = local.run_until(async {
            let stranger = theirs.clone();
            spawn_local(async move { stranger.try_lock().await.unwrap().is_none() }).await.unwrap()
        });
        (nested.await, theirs.lock().await.unwrap().depth())
    });
    assert_eq!(soon("a local task in a run", work).await.unwrap(), (true, 2));
}

#[test]
fn the_root_future_of_a_runtime_is_its_thread() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (home, stock) = runtime.block_on(async {
        let home = Home::start().await;
        let stock = home.locks().await.mutex("stock");
        (home, stock)
    });
    let guard = runtime.block_on(soon("the lock", stock.lock())).unwrap();
    // The next root future on this thread has the same owner; a task has another one.
    assert_eq!(runtime.block_on(soon("the lock", stock.lock())).unwrap().depth(), 2);
    let theirs = stock.clone();
    let spawned = runtime.spawn(async move { theirs.try_lock().await.unwrap().is_none() });
    assert!(runtime.block_on(spawned).unwrap());
    let (theirs, handle) = (stock.clone(), runtime.handle().clone());
    let thread = std::thread::spawn(move || handle.block_on(theirs.try_lock()).unwrap().is_none());
    assert!(thread.join().unwrap());
    runtime.block_on(guard.release()).unwrap();
    drop(home);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_task_is_a_stranger_unless_it_is_handed_an_owner() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let theirs = stock.clone();
    let blocking = spawn_blocking(move || {
        let stranger = Handle::current().block_on(theirs.try_lock()).unwrap().is_none();
        let again = Handle::current().block_on(theirs.try_lock()).unwrap().is_none();
        stranger && again
    });
    assert!(soon("its answer", blocking).await.unwrap());
    let (theirs, owner) = (stock.clone(), Owner::current().child());
    let blocking =
        spawn_blocking(move || Handle::current().block_on(owner.scope(theirs.lock())).unwrap().depth());
    assert_eq!(soon("its answer", blocking).await.unwrap(), 2);
    let theirs = stock.clone();
    let nested = stock.run(async move |_| {
        // The future runs on this very thread, nested in this call.
        tokio::task::block_in_place(|| Handle::current().block_on(theirs.lock()).unwrap().depth())
    });
    assert_eq!(soon("its answer", nested).await.unwrap(), 3);
    guard.release().await.unwrap();
}

#[test]
fn one_locks_serves_several_runtimes_while_its_own_lives() {
    let own = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let other = Builder::new_current_thread().enable_all().build().unwrap();
    let (home, locks) = own.block_on(async {
        let home = Home::start().await;
        let locks = home.locks().await;
        (home, locks)
    });
    let stock = locks.mutex("stock");
    let owner = Owner::new();
    let guard = own.block_on(stock.lock().owner(&owner)).unwrap();
    other.block_on(async {
        assert!(stock.try_lock().await.unwrap().is_none());
        let waiting = tokio::spawn(stock.lock());
        tokio::task::yield_now().await;
        drop(guard);
        soon("the lock", waiting).await.unwrap().unwrap().release().await.unwrap();
        crowd(&locks, 3, 3).await;
    });
    drop(other);
    own.block_on(async {
        let guard = soon("the lock", stock.lock()).await.unwrap();
        assert_eq!(home.fields("stock").await, [(guard.hold_id().to_owned(), 1)]);
        guard.release().await.unwrap();
    });
}
