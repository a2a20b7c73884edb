//! Grants that count only once replicas have acknowledged them.

mod address;
mod connect;
mod grants;
mod promotion;

use std::time::Duration;

use crate::support::server::Server;
use crate::support::{SECOND, eventually};

/// A wait that no test means to reach the end of.
const LONG: Duration = Duration::from_secs(25);
/// One that is.
const SHORT: Duration = Duration::from_millis(100);

/// A master with that many replicas that are in sync.
async fn master(replicas: usize) -> (Server, Vec<Server>) {
    let quick = ["--repl-diskless-sync-delay", "0"];
    let master = Server::with(&quick).await;
    let port = master.port().to_string();
    let mut started = Vec::new();
    for _ in 0..replicas {
        started.push(Server::with(&[&quick[..], &["--replicaof", "127.0.0.1", &port]].concat()).await);
    }
    follow(&master, replicas).await;
    (master, started)
}

/// Waits until that many replicas follow it.
async fn follow(master: &Server, replicas: usize) {
    eventually("its replicas", async || {
        let info = master.info("replication").await;
        info.values().filter(|value| value.contains("state=online")).count() == replicas
    })
    .await;
}

/// Stops a replica, with nothing on its way to it.
async fn cut_off(master: &Server, replica: &Server) {
    replica.freeze();
    master.ask::<usize>(&["CLIENT", "KILL", "TYPE", "replica"]).await;
}

async fn fields(server: &Server, name: &str) -> Vec<String> {
    server.ask(&["HKEYS", name]).await
}
