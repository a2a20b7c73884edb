//! Nothing stays behind, wherever futures, guards and handles are dropped.

mod close;
mod ends;
mod guards;
mod undone;

use std::time::Duration;

use nestlock::Locks;

use crate::support;
use crate::support::server::Server;

/// Longer than any test, so a lease does not clean up what a release forgot.
const LONG: Duration = Duration::from_secs(600);

/// Returns a `Locks` whose leases outlive the test.
async fn long_lived(url: &str) -> Locks {
    support::builder(url).lease(LONG).connect().await.expect("the test's server takes connections")
}

/// Waits until no lock is held on the server and no client is subscribed to one.
async fn tidy(server: &Server) {
    support::eventually("the last key's end", async || server.keys().await.is_empty()).await;
    support::eventually("the last channel's end", async || server.channels().await.is_empty()).await;
}
