//! Two processes that take turns at one lock, and hold it for a long time. So there is always a hold that a server could lose, and somebody
//! who would then get the lock.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::hold::User;
use crate::job::LEASE;
use crate::trace;

const NAME: &str = "turn";
/// How often a hold is checked.
const CHECK: Duration = Duration::from_millis(50);

/// Takes the lock again and again.
pub(crate) async fn take(user: User, mut random: StdRng) {
    let mutex = user.locks.mutex(NAME);
    let longest = LEASE.as_millis() as u64;
    while !user.is_stopped() {
        let mut request = mutex.lock().within(Duration::from_secs(20));
        let stay = Duration::from_millis(random.random_range(longest / 6..=longest));
        if random.random() {
            // The hold is not renewed: only a command or a new connection shows that it is gone.
            request = request.fixed_lease(LEASE);
        }
        let asked = user.asks(NAME, "turn", true);
        let taken = async {
            let guard = request.await?;
            let mut hold = asked.granted(&guard, None);
            if random.random() {
                hold.stay(&guard, stay).await;
            } else {
                hold.stay_and_check(&guard, stay, CHECK).await;
            }
            hold.leaves();
            guard.release().await
        };
        if let Err(error) = taken.await {
            trace::error("turn", &error);
        }
        sleep(Duration::from_millis(random.random_range(1..20))).await;
    }
}
