use proptest::prelude::*;

use super::*;
use crate::base::after;
use crate::base::testing::{fuzz, text};

fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::MAX),
        (0..100_000_u64).prop_map(Duration::from_millis),
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos)),
    ]
}

/// Accepted options work: no arithmetic on them fails, and a lease is longer than the drift over it.
#[test]
fn any_options_are_taken_or_rejected() {
    let factor = prop_oneof![any::<f64>(), 0.0..1.5, Just(f64::NAN), Just(f64::INFINITY)];
    let times = (durations(), durations(), durations(), durations(), durations(), durations(), durations());
    let others = (durations(), durations(), factor, any::<bool>(), text(), 0..70_usize);
    fuzz((times, others), |(times, others)| {
        let (lease, node_timeout, unavailable_after, poll_interval, slack, low, high) = times;
        let (longest, ttl, factor, delayed, prefix, replicas) = others;
        let mut builder = good()
            .lease(lease)
            .node_timeout(node_timeout)
            .unavailable_after(unavailable_after)
            .poll_interval(poll_interval)
            .drift(factor, slack)
            .retry_delay(low..=high)
            .token_ttl(ttl)
            .prefix(prefix)
            .replicas(replicas, low);
        if delayed {
            builder = builder.restart_delay(longest);
        }
        match builder.check() {
            Ok(config) => {
                assert!(config.lease.duration() > config.drift.of(config.lease.duration()));
                let now = tokio::time::Instant::now();
                let until = config.lease.valid_until(now, config.drift);
                assert!(until >= now && until <= after(now, config.lease.duration()));
                after(now, config.attempt_limit());
                after(now, config.poll_interval);
                let _ = config.lease("lease", longest);
            }
            Err(error) => assert!(format!("{error} {error:?}").len() < 2_000),
        }
    });
}
