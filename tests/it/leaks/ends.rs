//! What is left when all work is done: connections, tasks, channels, keys.

use std::time::Duration;

use futures::future::join_all;
use tokio::runtime::{Builder, Runtime};

use super::{LONG, long_lived, tidy};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{SECOND, builder, eventually, quorum, soon};

#[tokio::test]
async fn a_hundred_users_share_one_connection() {
    let server = Server::start().await;
    let locks = long_lived(&server.url()).await;
    let users = (0..100).map(|at| {
        let mutex = locks.mutex(format!("stock:{at}"));
        tokio::spawn(async move {
            for _ in 0..10 {
                mutex.run(async |_| {}).await.unwrap();
            }
        })
    });
    join_all(users).await.into_iter().for_each(|user| user.unwrap());
    assert_eq!(server.clients().await, 1);
    let received = &server.info("stats").await["total_connections_received"];
    // Each look of the test itself makes a connection too.
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

#[tokio::test]
async fn waiters_of_many_names_leave_no_channel_and_no_connection() {
    // The connection for messages is closed after nobody has waited for a while. A process that may stand in a line keeps its connection.
    for (fair, left) in [(false, 2), (true, 3)] {
        let server = Server::start().await;
        let connect = async || builder(&server.url()).lease(LONG).fair(fair).connect().await.unwrap();
        let (holder, waiter) = (connect().await, connect().await);
        let names: Vec<_> = (0..200).map(|at| format!("stock:{at}")).collect();
        let guards = join_all(names.iter().map(|name| holder.mutex(name).lock())).await;
        let waiting: Vec<_> =
            names.iter().map(|name| tokio::spawn(waiter.mutex(name).lock().run(async |_| {}))).collect();
        eventually("all waiters", async || server.channels().await.len() == names.len()).await;
        assert_eq!(server.clients().await, 3, "one per client for commands, and one for messages");
        for guard in guards {
            guard.unwrap().release().await.unwrap();
        }
        for waiting in waiting {
            soon("a waiter", waiting).await.unwrap().unwrap();
        }
        tidy(&server).await;
        eventually("the listener's end", async || server.clients().await == left).await;
    }
}

/// The rest of a forced release is polled on the runtime of its caller, which is not driven any more.
#[test]
fn a_forced_release_of_a_runtime_that_stands_still_keeps_no_connection() {
    let (home, still) =
        (Runtime::new().unwrap(), Builder::new_current_thread().enable_all().build().unwrap());
    let (servers, _held, locks) = home.block_on(async {
        let servers = [Server::start().await, Server::start().await, Server::start().await];
        let proxy = Proxy::to(&servers[2]).await;
        let held = proxy.on(|command| command.is("force")).hold();
        let urls = [servers[0].url(), servers[1].url(), proxy.url()];
        let locks = quorum(urls).node_timeout(SECOND).connect().await.unwrap();
        (servers, (held, proxy), locks)
    });
    still.block_on(soon("two answers", locks.mutex("stock").force_release())).unwrap();
    home.block_on(async {
        locks.close().await.unwrap();
        drop(locks);
        eventually("the end of the connections", async || servers[0].clients().await == 0).await;
    });
    drop(still);
}
