use super::*;
use crate::error::ErrorKind;

const SECOND: Duration = Duration::from_secs(1);

fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "away")
}

fn outlasts(outage: &Outage, patience: Duration, began: Instant, now: Instant) -> Option<Error> {
    outage.fresh(Duration::MAX, now)?.outlast(patience, began, now)
}

#[test]
fn a_request_is_refused_once_the_masters_were_away_for_so_long_since_it_began() {
    let (mut outage, now) = (Outage::default(), Instant::now());
    assert!(outlasts(&outage, Duration::ZERO, now, now).is_none(), "there was none");
    outage.goes_on(away(), 2 * SECOND, now);
    outage.goes_on(away(), 2 * SECOND, now + SECOND);
    let lasts = |began, seen| outlasts(&outage, 2 * SECOND, began, seen).is_some();
    assert!(!lasts(now, now + SECOND) && lasts(now, now + 2 * SECOND) && lasts(now, now + 3 * SECOND));
    assert!(!lasts(now + SECOND, now + 2 * SECOND) && lasts(now + SECOND, now + 3 * SECOND));
    outage.ends();
    assert!(outlasts(&outage, 2 * SECOND, now, now + 9 * SECOND).is_none());
}

#[test]
fn a_failure_long_after_another_one_begins_an_outage() {
    let (mut outage, now) = (Outage::default(), Instant::now());
    outage.goes_on(away(), 2 * SECOND, now);
    let later = now + 3600 * SECOND;
    outage.goes_on(away(), 2 * SECOND, later);
    assert!(outlasts(&outage, 2 * SECOND, now, later + SECOND).is_none());
    assert!(outlasts(&outage, 2 * SECOND, now, later + 2 * SECOND).is_some());
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
