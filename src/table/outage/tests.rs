use super::*;
use crate::error::ErrorKind;

const SECOND: Duration = Duration::from_secs(1);

fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "away")
}

#[test]
fn a_request_is_refused_once_the_masters_were_away_for_so_long_since_it_began() {
    let (mut outage, now) = (Outage::default(), Instant::now());
    assert!(outage.outlasts(Duration::ZERO, Duration::MAX, now, now).is_none(), "there was none");
    outage.goes_on(away(), 2 * SECOND, now);
    outage.goes_on(away(), 2 * SECOND, now + SECOND);
    let outlasts = |began, seen| outage.outlasts(2 * SECOND, Duration::MAX, began, seen).is_some();
    assert!(
        !outlasts(now, now + SECOND) && outlasts(now, now + 2 * SECOND) && outlasts(now, now + 3 * SECOND)
    );
    assert!(!outlasts(now + SECOND, now + 2 * SECOND) && outlasts(now + SECOND, now + 3 * SECOND));
    outage.ends();
    assert!(outage.outlasts(2 * SECOND, Duration::MAX, now, now + 9 * SECOND).is_none());
}

#[test]
fn a_failure_long_after_another_one_begins_an_outage() {
    let (mut outage, now) = (Outage::default(), Instant::now());
    outage.goes_on(away(), 2 * SECOND, now);
    let later = now + 3600 * SECOND;
    outage.goes_on(away(), 2 * SECOND, later);
    assert!(outage.outlasts(2 * SECOND, Duration::MAX, now, later + SECOND).is_none());
    assert!(outage.outlasts(2 * SECOND, Duration::MAX, now, later + 2 * SECOND).is_some());
}

#[test]
fn an_old_failure_shows_nothing() {
    let (mut outage, now) = (Outage::default(), Instant::now());
    assert!(outage.last(SECOND, now).is_none(), "there was none");
    outage.goes_on(away(), SECOND, now - 9 * SECOND);
    outage.goes_on(away(), 2 * SECOND, now);
    assert!(outage.last(SECOND, now + SECOND).is_some());
    assert!(outage.last(SECOND, now + SECOND + Duration::from_nanos(1)).is_none());
    outage.ends();
    assert!(outage.last(SECOND, now).is_none());
}
