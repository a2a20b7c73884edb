//! What is left when all work is done.

use futures::future::join_all;
use tokio::runtime::Builder;

use super::{Home, long_lived};
use crate::support::{eventually, soon};

#[test]
fn tasks_and_connections_end_with_the_last_handle_whichever_it_is() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let home = Home::start().await;
        let tasks = || runtime.metrics().num_alive_tasks();
        for last in ["locks", "mutex", "guard", "request", "clone"] {
            let locks = long_lived(&home).await;
            let mutex = locks.mutex("stock");
            let guard = mutex.lock().await.unwrap();
            assert!(tasks() > 0);
            // The other handles are dropped first, and the last one keeps everything alive.
            match last {
                "locks" => {
                    drop((guard, mutex));
                    locks.mutex("other").lock().await.unwrap().release().await.unwrap();
                    drop(locks);
                }
                "mutex" => {
                    drop((guard, locks));
                    soon("a lock", mutex.lock()).await.unwrap().release().await.unwrap();
                    drop(mutex);
                }
                "guard" => {
                    drop((mutex, locks));
                    assert_eq!(home.keys().await, ["stock"]);
                    guard.release().await.unwrap();
                }
                "request" => {
                    let request = mutex.lock();
                    drop((guard, mutex, locks));
                    drop(soon("a lock", request).await.unwrap());
                }
                _ => {
                    let clone = locks.clone();
                    drop((guard, mutex, locks));
                    clone.mutex("stock").run(async |_| {}).await.unwrap();
                }
            }
            home.deserted().await;
            eventually("the tasks' end", async || tasks() == 0).await;
            home.tidy().await;
        }
    });
}

#[test]
fn a_thousand_locks_of_a_thousand_names_leave_nothing() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let home = Home::start().await;
        let locks = long_lived(&home).await;
        drop(locks.mutex("first").lock().await.unwrap());
        home.tidy().await;
        let (clients, tasks) = (home.connections().await, runtime.metrics().num_alive_tasks());
        let mutexes: Vec<_> = (0..1_000).map(|at| locks.mutex(format!("stock:{at}"))).collect();
        let guards = soon("all locks", join_all(mutexes.iter().map(|mutex| mutex.lock()))).await;
        assert_eq!(home.keys().await.len(), 1_000);
        for (at, guard) in guards.into_iter().enumerate() {
            let guard = guard.unwrap();
            if at % 2 == 0 { drop(guard) } else { guard.release().await.unwrap() }
        }
        home.tidy().await;
        assert_eq!(home.connections().await, clients);
        eventually("the tasks' end", async || runtime.metrics().num_alive_tasks() <= tasks).await;
        drop((mutexes, locks));
        home.deserted().await;
        eventually("the last task's end", async || runtime.metrics().num_alive_tasks() == 0).await;
    });
}

#[tokio::test]
async fn an_aborted_task_leaves_nothing() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    for _ in 0..50 {
        let stock = locks.mutex("stock");
        let task = tokio::spawn(async move {
            stock.run(|_| stock.run(|_| std::future::pending::<()>())).await.unwrap().unwrap();
        });
        tokio::task::yield_now().await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    home.tidy().await;
}
