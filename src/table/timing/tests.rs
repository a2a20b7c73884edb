use super::*;
use crate::{Locks, Memory};

/// A lease may be longer than the longest deadline.
#[test]
fn a_renewal_is_not_due_at_once_however_long_the_lease() {
    let (now, drift) = (Instant::now(), Drift { factor: 0.0, slack: Duration::ZERO });
    for years in [1, 100, 1_000, 100_000] {
        let lease = Lease::new("lease", Duration::from_secs(years * 365 * 86_400), drift).unwrap();
        let (second, times) = (Duration::from_secs(1), Duration::from_secs(60));
        let timing = Timing {
            masters: 1,
            lease,
            drift,
            patience: times,
            retry: second,
            epoch: now,
            handoff: Duration::ZERO,
            warn_after: None,
            line: None,
        };
        let sent = now + second;
        let (due, third) = (timing.renew_at(sent) - sent, (lease.duration() / 3).min(FAR));
        assert!(due > third * 9 / 10 - second && due <= third, "{years} years: {due:?}");
    }
}

/// The drift over this lease of 30 s is 25 s, so a hold is good for 5 s after each renewal.
#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_in_time_however_much_the_clocks_may_drift() {
    let options = Locks::builder(Memory::new()).drift(0.5, Duration::from_secs(10));
    let guard = options.connect().await.unwrap().mutex("stock").lock().await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(guard.loss(), None);
    guard.release().await.unwrap();
}
