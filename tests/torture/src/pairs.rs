//! Two processes that meet at a new lock each time, so that each wait needs its own subscription.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::hold::User;
use crate::{clock, trace};

/// The time between two meetings, in nanoseconds.
const ROUND: u64 = 50_000_000;

/// Takes the lock of each round, at about the same time as the other process.
pub(crate) async fn meet(user: User, mut random: StdRng) {
    while !user.is_stopped() {
        let round = clock::now() / ROUND + 1;
        sleep(Duration::from_nanos((round * ROUND).saturating_sub(clock::now()))).await;
        sleep(Duration::from_micros(random.random_range(0..2_000))).await;
        let name = format!("pair-{round}");
        let request = user.asks(&name, "pair", true);
        let met = async {
            let guard = user.locks.mutex(&name).lock().within(Duration::from_secs(20)).await?;
            let mut hold = request.granted(&guard, None);
            sleep(Duration::from_micros(random.random_range(0..3_000))).await;
            hold.look(&guard);
            hold.leaves();
            guard.release().await
        };
        if let Err(error) = met.await {
            trace::error("pair", &error);
        }
    }
}
