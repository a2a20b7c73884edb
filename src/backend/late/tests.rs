use super::*;

#[tokio::test]
async fn a_clock_that_was_paused_is_recognized_also_after_it_goes_on() {
    assert_eq!(changed_clock(), None);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(why_late(Instant::now()).as_deref(), Some(CLOCK));
    tokio::time::resume();
    assert_eq!(changed_clock(), Some(CLOCK));
}

#[test]
fn what_is_noticed_late_is_reported_with_how_late() {
    let deadline = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
    let why = why_late(deadline).unwrap();
    let seconds = why.split("noticed ").nth(1).and_then(|late| late.split(['.', ' ', 's']).next());
    assert!(
        seconds.and_then(|seconds| seconds.parse::<u64>().ok()).is_some_and(|seconds| seconds >= 3),
        "{why}"
    );
}
