//! Holds that continue in another process.

use std::time::Duration;

use nestlock::Guard;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::{sleep, timeout};

use crate::Result;
use crate::clock;
use crate::hold::{Hold, User};
use crate::job::LEASE;

const RESUME: &str = "resume";
/// The name of a resume whose future is dropped before it completes.
pub(crate) const DROPPED: &str = "dropped resume";

/// Makes a claim of the hold, for another process to resume. `fixed`: nothing renews the hold.
pub(crate) async fn hand_over(user: &User, mut hold: Hold<'_>, guard: Guard, fixed: bool) -> Result<()> {
    if !hold.look(&guard) {
        return Ok(());
    }
    // The next command extends a renewed hold to a full lease, counted from now at the earliest.
    let until = if fixed { clock::of(guard.valid_until()) } else { clock::now() + clock::nanos(LEASE) };
    hold.leaves();
    let claim = guard.into_claim().await?;
    hold.is_claimed(&claim, until);
    user.spool.put(&claim, hold.number())
}

/// Resumes claims. Each claim is given to two processes, and this one may be the first or the second.
pub(crate) async fn resume(user: User, mut random: StdRng) {
    while !user.is_stopped() {
        sleep(Duration::from_micros(random.random_range(500..8_000))).await;
        if let Err(error) = resume_one(&user, &mut random).await {
            user.failed(RESUME, &*error);
        }
    }
}

async fn resume_one(user: &User, random: &mut StdRng) -> Result<()> {
    let Some(claim) = user.spool.take(random)? else { return Ok(()) };
    let limit = random.random_ratio(1, 12).then(|| Duration::from_micros(random.random_range(0..3_000)));
    let stay = Duration::from_millis(match random.random_range(0..20) {
        0 => random.random_range(50..2_000),
        _ => random.random_range(0..15),
    });
    let (nests, goes_on) = (random.random_ratio(1, 4), random.random_ratio(1, 4));
    let mutex = user.locks.mutex(claim.name());
    let asked = user.resumes(&claim, if limit.is_some() { DROPPED } else { RESUME });
    let resumed = match limit {
        Some(limit) => timeout(limit, mutex.resume(&claim)).await,
        None => Ok(mutex.resume(&claim).await),
    };
    let Ok(guard) = resumed else { return Ok(()) };
    let guard = guard?;
    let mut hold = asked.granted(&guard, None);
    if nests {
        let inner = mutex.lock().await?;
        hold.look(&inner);
        inner.release().await?;
    }
    hold.stay(&guard, stay).await;
    if goes_on {
        return hand_over(user, hold, guard, false).await;
    }
    hold.look(&guard);
    hold.leaves();
    Ok(guard.release().await?)
}
