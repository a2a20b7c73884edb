use std::sync::Arc;

use super::*;
use crate::base::{Drift, Stamp};
use crate::error::Loss;
use crate::table::hold::Sender;
use crate::table::timing::Timing;

const DRIFT: Drift = Drift { factor: 0.0, slack: Duration::ZERO };

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn at(now: Instant) -> Moment {
    Moment { now, slept: Duration::ZERO }
}

fn lease() -> Lease {
    Lease::new("lease", seconds(30), DRIFT).unwrap()
}

/// A hold that was granted at `now`, by a command that was sent at that time.
fn held(now: Instant, level: Level) -> Hold {
    let timing = Timing {
        masters: 1,
        lease: lease(),
        drift: DRIFT,
        patience: seconds(1),
        retry: seconds(1),
        epoch: now,
        handoff: Duration::ZERO,
        warn_after: None,
        line: None,
    };
    let keys = Arc::new(Keys::new("", "stock"));
    let mut hold = Hold::new(1, keys, "me:1".into(), timing, lease(), now);
    hold.ask(lease(), None, 1, now);
    hold.finish(1, now);
    hold.confirmed(lease(), now, Duration::ZERO);
    hold.add_level(level, 1);
    hold
}

fn watched() -> Level {
    Level::of_nobody(2)
}

#[test]
fn a_hold_is_renewed_beside_the_watchdog_a_third_of_a_lease_after_its_last_confirmation() {
    let now = Instant::now();
    let mut hold = held(now, watched());
    assert!(hold.begin_backup_renewal(seconds(20), seconds(5), now + seconds(9)).is_none());
    let due = hold.begin_backup_renewal(seconds(20), seconds(5), now + seconds(10)).unwrap();
    assert_eq!((due.hold, &*due.call.field), (hold.id, "me:1"));
    assert_eq!(due.call.action, Action::Renew { lease: lease() });
    // The command may run within 5 s, whether or not it is answered.
    let longest = now + seconds(10 + 5 + 30);
    assert_eq!((hold.may_stand_until(), hold.gone_by), (longest, longest));
    hold.renewed_by_backup(lease(), at(now + seconds(10)), at(now + seconds(12)));
    assert_eq!(hold.deadline(), now + seconds(40), "counted from before the send");
    assert!(hold.begin_backup_renewal(seconds(20), seconds(5), now + seconds(19)).is_none());
    assert!(hold.begin_backup_renewal(seconds(20), seconds(5), now + seconds(20)).is_some());
}

/// Such a renewal moves a deadline, and only later. All else is as the runtime left it, and an older answer
/// of the runtime changes nothing.
#[test]
fn a_renewal_beside_the_watchdog_moves_the_deadline_alone() {
    let now = Instant::now();
    let mut hold = held(now, watched());
    hold.begin(Action::Renew { lease: lease() }, Sender::Background, 3, now + seconds(10));
    hold.unsettle();
    let renew_at = hold.renew_at;
    assert!(
        hold.begin_backup_renewal(seconds(20), seconds(5), now + seconds(15)).is_some(),
        "whatever is under way, or in doubt"
    );
    hold.renewed_by_backup(lease(), at(now + seconds(15)), at(now + seconds(16)));
    assert_eq!((hold.deadline(), hold.renew_at), (now + seconds(45), renew_at));
    assert!(hold.under_way(3) && hold.is_unsettled() && !hold.is_certain(now + seconds(16)));
    hold.renewed_by_backup(lease(), at(now + seconds(14)), at(now + seconds(17)));
    hold.finish(3, now + seconds(18));
    hold.confirmed(lease(), now + seconds(10), Duration::ZERO);
    assert_eq!(hold.deadline(), now + seconds(45));
}

#[test]
fn what_is_over_or_ends_by_itself_is_not_renewed_beside_the_watchdog() {
    let now = Instant::now();
    let later = now + seconds(15);
    let is_due =
        |mut hold: Hold, now: Instant| hold.begin_backup_renewal(seconds(20), seconds(5), now).is_some();
    assert!(is_due(held(now, watched()), later));
    // Whether or not anybody has noticed the end.
    assert!(!is_due(held(now, watched()), now + seconds(30)));
    let fixed = Level { watched: false, until: Some(Stamp::from(now + seconds(30))), ..watched() };
    assert!(!is_due(held(now, fixed), later));
    let limited = |limit| Level { max_hold: Some((now + seconds(limit)).into()), ..watched() };
    assert!(is_due(held(now, limited(16)), later) && !is_due(held(now, limited(15)), later));
    let mut left = held(now, watched());
    left.remove_level(2);
    assert!(!is_due(left, later));
    let mut lost = held(now, watched());
    lost.lose(Loss::Gone, false, later);
    assert!(!is_due(lost, later));
}

/// In this order: 1. A renewal is sent beside the watchdog. 2. Its answer arrives after the end of the hold
/// was noticed, or when nobody holds it any more.
#[test]
fn an_answer_beside_the_watchdog_revives_nothing() {
    let now = Instant::now();
    let sent = at(now + seconds(29));
    let end = |mut hold: Hold, answered| {
        hold.renewed_by_backup(lease(), sent, at(now + seconds(answered)));
        hold.deadline()
    };
    assert_eq!(end(held(now, watched()), 29), now + seconds(59));
    assert_eq!(end(held(now, watched()), 30), now + seconds(30));
    let mut lost = held(now, watched());
    lost.lose(Loss::Gone, false, now + seconds(20));
    assert_eq!(end(lost, 29), now + seconds(20));
    let mut left = held(now, watched());
    left.remove_level(2);
    assert_eq!(end(left, 29), now + seconds(30));
}
