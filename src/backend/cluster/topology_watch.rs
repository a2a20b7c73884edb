//! The task that keeps an eye on who serves what.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::backend::cluster::nodes::Nodes;
use crate::backend::connection::Backoff;
use crate::base::telemetry;

/// How often it is asked though nothing calls for it, while the cluster is used; cut by up to a third at random.
const LOOK: Duration = Duration::from_secs(5);

/// How often seeds that have not answered yet are asked.
const AGAIN: Duration = Duration::from_secs(2);

/// Asks whenever that is wanted: one question at a time, with pauses that grow while it goes on. And every few seconds while
/// somebody waits for a message, or calls are sent:
///
/// 1. A node is taken out of the cluster, and maybe given to another one. Its connections stand.
/// 2. A waiter listens there, and no message reaches it any more; or a call is sent there, and takes a lock in the other cluster.
/// 3. Neither fails, so nothing says that it has left.
///
/// The first call after a long rest comes with a look at once. Who sends nothing, and waits for nothing, costs nothing.
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
            () = sleep_until(look), if listens || nodes.usage.is_new() => {}
            () = nodes.usage.begun() => continue,
            Ok(()) = listened.changed() => continue,
            () = sleep_until(again), if !nodes.identity.unheard().is_empty() => {
                nodes.hear_late_seeds().await;
                again = Instant::now() + AGAIN;
                continue;
            }
        }
        backoff.lost(asked);
        sleep(backoff.pause()).await;
        // What is sent from now on asks for the next one.
        nodes.usage.seen();
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

/// Whether calls were sent since the last look.
#[derive(Default)]
pub(super) struct Usage {
    new: AtomicBool,
    begun: Notify,
}

impl Usage {
    /// A call is sent.
    pub(super) fn used(&self) {
        if !self.new.load(Ordering::Relaxed) && !self.new.swap(true, Ordering::AcqRel) {
            self.begun.notify_one();
        }
    }

    fn is_new(&self) -> bool {
        self.new.load(Ordering::Acquire)
    }

    async fn begun(&self) {
        self.begun.notified().await;
    }

    fn seen(&self) {
        self.new.store(false, Ordering::Release);
    }
}
