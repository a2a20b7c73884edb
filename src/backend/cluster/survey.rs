//! The task that keeps an eye on who serves what.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::nodes::Nodes;
use crate::backend::backoff::Backoff;
use crate::telemetry;

/// How often it is asked though nothing calls for it, while somebody waits for a message; cut by up to a third at random.
const LOOK: Duration = Duration::from_secs(5);

/// How often seeds that have not answered yet are asked.
const AGAIN: Duration = Duration::from_secs(2);

/// Asks whenever that is wanted: one question at a time, with pauses that grow while it goes on. And now and then while
/// somebody waits for a message. 1. A waiter listens at a node. 2. The node is taken out of the cluster: its connections stand,
/// and it is told of no message any more. 3. Nothing else is asked of it, so nothing says that it has left.
pub(super) async fn survey(nodes: Arc<Nodes>, mut listened: watch::Receiver<bool>) {
    let mut backoff = Backoff::default();
    let mut asked = Instant::now();
    // An outage is one event, not one for each attempt.
    let mut reported = false;
    // Moments, not pauses: waiters that come and go must not put them off.
    let (mut look, mut again) = (asked, asked);
    loop {
        let listens = *listened.borrow_and_update();
        tokio::select! {
            () = nodes.wanted.notified() => {}
            () = sleep_until(look), if listens => {}
            Ok(()) = listened.changed() => continue,
            () = sleep_until(again), if !nodes.identity.unheard().is_empty() => {
                nodes.hear_late_seeds().await;
                again = Instant::now() + AGAIN;
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
        look = asked + LOOK.mul_f64(1.0 - rand::random::<f64>() / 3.0);
    }
}
