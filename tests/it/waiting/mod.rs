//! What waiters do: what wakes them, and which commands they send.

mod address;
mod heads;
mod line;
mod outage;
mod subscription;
mod wakes;

use nestlock::{Builder, Guard};

use crate::support::server::Server;
use crate::support::{self, HOUR, builder, eventually, locks};

/// Returns options with which no timer wakes a waiter.
fn without_timers(url: &str) -> Builder {
    support::without_timers(builder(url))
}

/// Returns a guard of another process, on a lease that outlives every test.
async fn foreign_guard(server: &Server, name: &str) -> Guard {
    locks(&server.url()).await.mutex(name).lock().fixed_lease(HOUR).await.unwrap()
}

/// Returns how many scripts have run.
async fn scripts_run(server: &Server) -> u64 {
    server.scripts_run().await
}

/// Waits until a head has subscribed and asked again: that is its second attempt for this guard's lock.
async fn asleep(server: &Server, before: u64) {
    eventually("a head that sleeps", async || {
        !server.channels().await.is_empty() && scripts_run(server).await >= before + 2
    })
    .await;
}
