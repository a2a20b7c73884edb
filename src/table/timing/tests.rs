use super::*;

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
