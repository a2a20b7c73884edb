//! Grants that count only once replicas have acknowledged them.

mod address;
mod connect;
mod grants;
mod promotion;

use std::time::Duration;

use crate::support::server::Server;
use crate::support::{SECOND, eventually};

/// A time that is not meant to end within a test.
const LONG: Duration = Duration::from_secs(25);
/// A time that is meant to end within a test.
const SHORT: Duration = Duration::from_millis(100);

/// Starts a master with this many replicas in sync.
pub async fn master(replicas: usize) -> (Server, Vec<Server>) {
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

/// Waits until this many replicas are online.
async fn follow(master: &Server, replicas: usize) {
    eventually("its replicas", async || {
        let info = master.info("replication").await;
        info.values().filter(|value| value.contains("state=online")).count() == replicas
    })
    .await;
}

/// Disconnects a replica while no writes are on their way to it.
async fn cut_off(master: &Server, replica: &Server) {
    replica.freeze();
    master.ask::<usize>(&["CLIENT", "KILL", "TYPE", "replica"]).await;
}

async fn fields(server: &Server, name: &str) -> Vec<String> {
    server.ask(&["HKEYS", name]).await
}
