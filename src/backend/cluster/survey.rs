//! The task that keeps an eye on who serves what.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::nodes::Nodes;
use crate::backend::backoff::Backoff;
use crate::telemetry;

/// How often seeds that have not answered yet are asked.
const AGAIN: Duration = Duration::from_secs(2);

/// Asks whenever that is wanted: one question at a time, with pauses that grow while it goes on.
pub(super) async fn survey(nodes: Arc<Nodes>) {
    let mut backoff = Backoff::default();
    let mut asked = Instant::now();
    // An outage is one event, not one for each attempt.
    let mut reported = false;
    loop {
        tokio::select! {
            () = nodes.wanted.notified() => {}
            () = sleep(AGAIN), if !nodes.identity.unheard().is_empty() => {
                nodes.hear_late_seeds().await;
                continue;
            }
        }
        backoff.lost(asked);
        sleep(backoff.pause()).await;
        match nodes.scout().await {
            Ok(view) => {
                reported = false;
                nodes.install(&view);
            }
            Err(error) => {
                if !std::mem::replace(&mut reported, true) {
                    telemetry::cluster_unseen(&error);
                }
                nodes.stir();
            }
        }
        asked = Instant::now();
    }
}
