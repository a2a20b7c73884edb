//! Clusters of one node that are started in advance, since a cluster refuses all commands in its first two seconds.

use std::sync::LazyLock;

use futures::future::join_all;
use tokio::runtime;
use tokio::sync::{Mutex, mpsc};

use super::eventually;
use super::server::Server;

/// Returns how many clusters are started at a time. It is one under `cargo nextest`, which runs each test in its own process.
fn makers() -> usize {
    if std::env::var_os("NEXTEST").is_some() { 1 } else { 6 }
}

/// Returns a cluster that has all slots on one node, and no keys.
pub async fn lone_node() -> Server {
    static MADE: LazyLock<Mutex<mpsc::Receiver<Server>>> = LazyLock::new(|| Mutex::new(made()));
    MADE.lock().await.recv().await.expect("a node was made")
}

/// Starts clusters on a thread of their own, since the runtime of a test ends with the test.
fn made() -> mpsc::Receiver<Server> {
    let (give, made) = mpsc::channel(1);
    std::thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(join_all((0..makers()).map(|_| make(&give))));
    });
    made
}

async fn make(give: &mpsc::Sender<Server>) {
    loop {
        let node = Server::with(&["--cluster-enabled", "yes"]).await;
        node.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        eventually("a cluster that works", async || {
            node.ask::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
        })
        .await;
        // The commands above must not count for any test.
        node.reset_commands_run().await;
        if give.send(node).await.is_err() {
            return;
        }
    }
}
