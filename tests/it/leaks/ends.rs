//! What is left when all is done: connections, tasks, channels, keys.

use std::time::Duration;

use futures::future::join_all;
use tokio::runtime::Builder;

use super::{LONG, long_lived, tidy};
use crate::support::server::Server;
use crate::support::{builder, eventually, soon};

#[test]
fn tasks_and_connections_end_with_the_last_handle_whichever_it_is() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::start().await;
        let tasks = || runtime.metrics().num_alive_tasks();
        for last in ["locks", "mutex", "guard", "request", "clone"] {
            let locks = long_lived(&server.url()).await;
            let mutex = locks.mutex("stock");
            let guard = mutex.lock().await.unwrap();
            assert_eq!(server.clients().await, 1);
            assert!(tasks() > 0);
            // The others go first, and the one that is left keeps it all.
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
                    assert_eq!(server.keys().await, ["stock"]);
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
                    clone.mutex("stock").run(async {}).await.unwrap();
                }
            }
            eventually("the connections' end", async || server.clients().await == 0).await;
            eventually("the tasks' end", async || tasks() == 0).await;
            tidy(&server).await;
        }
    });
}

#[test]
fn a_thousand_locks_of_a_thousand_names_leave_nothing() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::start().await;
        let locks = long_lived(&server.url()).await;
        drop(locks.mutex("first").lock().await.unwrap());
        tidy(&server).await;
        let (clients, tasks) = (server.clients().await, runtime.metrics().num_alive_tasks());
        let mutexes: Vec<_> = (0..1_000).map(|at| locks.mutex(format!("stock:{at}"))).collect();
        let guards = soon("all locks", join_all(mutexes.iter().map(|mutex| mutex.lock()))).await;
        assert_eq!(server.keys().await.len(), 1_000);
        for (at, guard) in guards.into_iter().enumerate() {
            let guard = guard.unwrap();
            if at % 2 == 0 { drop(guard) } else { guard.release().await.unwrap() }
        }
        tidy(&server).await;
        assert_eq!(server.clients().await, clients);
        eventually("the tasks' end", async || runtime.metrics().num_alive_tasks() <= tasks).await;
        drop((mutexes, locks));
        eventually("the connections' end", async || server.clients().await == 0).await;
        eventually("the last task's end", async || runtime.metrics().num_alive_tasks() == 0).await;
    });
}

#[tokio::test]
async fn waiters_of_many_names_leave_no_channel_and_no_connection() {
    let server = Server::start().await;
    let (holder, waiter) = (long_lived(&server.url()).await, long_lived(&server.url()).await);
    let names: Vec<_> = (0..200).map(|at| format!("stock:{at}")).collect();
    let guards = join_all(names.iter().map(|name| holder.mutex(name).lock())).await;
    let waiting: Vec<_> =
        names.iter().map(|name| tokio::spawn(waiter.mutex(name).lock().run(async {}))).collect();
    eventually("all waiters", async || server.channels().await.len() == names.len()).await;
    assert_eq!(server.clients().await, 3, "one each for commands, and one for messages");
    for guard in guards {
        guard.unwrap().release().await.unwrap();
    }
    for waiting in waiting {
        soon("a waiter", waiting).await.unwrap().unwrap();
    }
    tidy(&server).await;
    // The connection for messages ends by itself when nobody has waited for a while.
    eventually("the listener's end", async || server.clients().await == 2).await;
}

#[tokio::test]
async fn a_hundred_users_share_one_connection() {
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let users = (0..100).map(|at| {
        let mutex = locks.mutex(format!("stock:{at}"));
        tokio::spawn(async move {
            for _ in 0..10 {
                mutex.run(async {}).await.unwrap();
            }
        })
    });
    join_all(users).await.into_iter().for_each(|user| user.unwrap());
    assert_eq!(server.clients().await, 1);
    let received = &server.info("stats").await["total_connections_received"];
    // Each look of the test's own is one too.
    assert!(received.parse::<u64>().unwrap() < 50, "{received}");
}

#[test]
fn a_connect_that_fails_or_is_dropped_leaves_nothing() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::with(&["--requirepass", "secret"]).await;
        builder(&server.url()).connect().await.unwrap_err();
        let url = format!("redis://:secret@127.0.0.1:{}", server.port());
        for micros in (0..2_000).step_by(100) {
            let connecting = builder(&url).lease(LONG).connect();
            let _ = tokio::time::timeout(Duration::from_micros(micros), connecting).await;
        }
        eventually("the connections' end", async || server.clients().await == 0).await;
        eventually("the tasks' end", async || runtime.metrics().num_alive_tasks() == 0).await;
    });
}
