//! What must hold while servers, networks and processes fail.

mod exclusion;
mod network;
mod promises;
mod recovery;
mod refusals;

use std::time::Duration;

use crate::support;
use crate::support::server::Server;

/// Longer than any test, so a lease does not clean up what was forgotten.
const LONG: Duration = Duration::from_secs(600);

/// A short node timeout, for tests that wait until it is over.
const QUICK: Duration = Duration::from_secs(1);

/// Waits until no lock is held on the server and no client is subscribed to one.
async fn tidy(server: &Server) {
    support::eventually("the last key's end", async || server.keys().await.is_empty()).await;
    support::eventually("the last channel's end", async || server.channels().await.is_empty()).await;
}
