use tokio::time::advance;

use super::*;

/// Returns the pauses before this many attempts, in milliseconds.
fn pauses(backoff: &mut Backoff, count: usize) -> Vec<f64> {
    (0..count).map(|_| backoff.pause().as_secs_f64() * 1000.0).collect()
}

#[test]
fn pauses_double_up_to_half_a_second_and_are_shortened_by_up_to_a_half() {
    let mut backoff = Backoff::default();
    let mut longest = vec![0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0];
    longest.resize(60, 500.0);
    let pauses = pauses(&mut backoff, 60);
    for (pause, longest) in pauses.iter().zip(longest) {
        assert!((longest / 2.0..=longest).contains(pause), "{pause} {longest}");
    }
    let last = &pauses[7..];
    assert!(last.iter().any(|pause| *pause < 375.0) && last.iter().any(|pause| *pause > 375.0), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn only_a_connection_that_has_lasted_is_replaced_at_once() {
    let (mut backoff, since) = (Backoff::default(), Instant::now());
    pauses(&mut backoff, 3);
    advance(STABLE - Duration::from_millis(1)).await;
    backoff.lost(since);
    assert!(backoff.pause() >= Duration::from_millis(20));
    advance(Duration::from_millis(1)).await;
    backoff.lost(since);
    assert_eq!(backoff.pause(), Duration::ZERO);
    assert!(backoff.pause() <= SHORTEST);
}
