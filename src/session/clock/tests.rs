use super::*;
use std::cell::Cell;

thread_local! {
    static GAP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn nanos(time: Duration) -> i64 {
    time.as_nanos() as i64
}

#[test]
fn what_the_machine_slept_is_taken_off_a_deadline() {
    GAP.set(Duration::from_secs(5));
    let clock = Clock::with(|| nanos(GAP.get()));
    let before = clock.moment();
    let deadline = before.now + Duration::from_secs(30);
    GAP.set(Duration::from_secs(25));
    let after = clock.moment();
    assert_eq!(after.slept, Duration::from_secs(20));
    assert!(after.local(deadline) <= before.now + Duration::from_secs(10));
    assert!(after.now < deadline);
}

/// The offsets of a time namespace may put the clock that counts sleep behind the other one, by more than the machine ever sleeps.
#[test]
fn sleep_is_seen_where_the_clock_that_counts_it_is_behind() {
    const DAY: Duration = Duration::from_secs(86_400);
    let clock = Clock::with(|| nanos(GAP.get()) - nanos(DAY));
    GAP.set(Duration::from_secs(3_600));
    assert_eq!(clock.moment().slept, Duration::from_secs(3_600));
}

/// A glance is never ahead of a look, so a deadline that is counted from it is no later.
#[test]
fn a_glance_has_the_sleep_that_a_look_found_before() {
    let clock = Clock::with(|| nanos(GAP.get()));
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    GAP.set(GAP.get() + second);
    let glance = clock.glance(now);
    assert_eq!((glance.now, glance.slept), (now, Duration::ZERO));
    assert_eq!(clock.moment().slept, second);
    let glance = clock.glance(now);
    assert_eq!((glance.now, glance.slept, glance.local(glance.now)), (now + second, second, now));
}

/// The timeline of holds is ahead of tokio's clock by the time for which the machine slept.
#[test]
fn a_moment_is_now_and_what_the_machine_slept() {
    GAP.set(Duration::from_secs(5));
    let clock = Clock::with(|| nanos(GAP.get()));
    GAP.set(Duration::from_secs(25));
    let (before, moment) = (Instant::now(), clock.moment());
    assert!(moment.now >= before + Duration::from_secs(20));
}

/// If there is no counter, tokens begin at the time of day, so those of an earlier time are lower.
#[test]
fn the_time_of_day_is_in_microseconds_since_1970() {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(u128::from(time_of_day()) >= since.as_micros());
}

/// A busy machine may stop the process at that point for any time.
#[test]
fn a_pause_in_the_first_look_at_the_clock_is_no_sleep() {
    GAP.set(Duration::from_secs(4));
    let clock = Clock::with(|| nanos(GAP.replace(Duration::from_secs(5))));
    assert_eq!(clock.moment().slept, Duration::ZERO);
}

#[test]
fn the_time_between_two_readings_is_no_sleep() {
    let clock = Clock::with(|| nanos(GAP.get()));
    GAP.set(GAP.get() + Duration::from_micros(900));
    assert_eq!(clock.moment().slept, Duration::ZERO);
}
