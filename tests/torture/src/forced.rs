//! Processes that take one lock from one another by force, without a message: only a check shows a holder that its hold is over.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::hold::User;
use crate::job::LEASE;
use crate::{Result, clock};

const NAME: &str = "forced";
/// How often a hold is checked.
const CHECK: Duration = Duration::from_millis(5);

pub(crate) async fn take(user: User, mut random: StdRng) {
    while !user.is_stopped() {
        sleep(Duration::from_millis(random.random_range(10..300))).await;
        if let Err(error) = take_once(&user, &mut random).await {
            user.failed(NAME, &*error);
        }
    }
}

/// Takes the lock with one attempt. A waiter would subscribe, and then its whole process would be notified of a release by force.
async fn take_once(user: &User, random: &mut StdRng) -> Result<()> {
    let stay = Duration::from_millis(random.random_range(1..100));
    let (forces, is_fixed) = (random.random_ratio(1, 3), random.random_ratio(3, 4));
    let mutex = user.locks.mutex(NAME);
    if forces {
        user.forces(NAME);
        let from = clock::now();
        let forced = mutex.force_release().await;
        // A forced release without an answer may run later.
        user.forced(NAME, from, forced.is_ok());
        forced?;
    }
    let asked = user.asks(NAME, NAME, false);
    let guard = match is_fixed {
        // A fixed lease, so nothing renews the hold.
        true => mutex.try_lock().fixed_lease(LEASE).await?,
        false => mutex.try_lock().await?,
    };
    let Some(guard) = guard else { return Ok(()) };
    let mut hold = asked.granted(&guard, None);
    hold.stay_and_check(&guard, stay, CHECK).await;
    hold.leaves();
    Ok(guard.release().await?)
}
