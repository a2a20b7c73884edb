use super::*;
use crate::base::{Drift, Moment};
use crate::table::numbers::Numbers;
use crate::wire::Rule;

const DRIFT: Drift = Drift { factor: 0.01, slack: Duration::from_millis(2) };
const LEASE: Duration = Duration::from_secs(30);

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn lease(n: u64) -> Lease {
    Lease::new("lease", seconds(n), DRIFT).unwrap()
}

/// When a lease of `n` seconds that was sent at `sent` is over here.
fn over(sent: Instant, n: u64) -> Instant {
    sent + seconds(n) - seconds(n).mul_f64(0.01) - Duration::from_millis(2)
}

fn timing(now: Instant) -> Timing {
    let (lease, patience, retry) = (lease(30), seconds(1), seconds(1));
    Timing {
        masters: 1,
        lease,
        drift: DRIFT,
        patience,
        retry,
        epoch: now,
        handoff: Duration::ZERO,
        warn_after: None,
        line: None,
    }
}

fn hold(now: Instant, asked: u64) -> Hold {
    let timing = timing(now);
    let mut hold = Hold::new(1, Arc::new(Keys::new("", "stock")), "me:1".into(), timing, lease(asked), now);
    hold.ask(lease(asked), None, 1, now);
    assert!(hold.is_beginning() && !hold.lives() && !hold.owes_end() && !hold.is_over());
    assert!(hold.finish(1, now).is_some());
    hold.confirmed(lease(asked), now, Duration::ZERO);
    hold
}

fn level(id: u64, until: Option<Instant>) -> Level {
    Level { watched: until.is_none(), until: until.map(Stamp::from), ..Level::of_nobody(id) }
}

#[test]
fn a_watched_hold_ends_when_the_server_stops_being_sure() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(level(1, None), 1);
    assert_eq!(hold.deadline(), over(now, 30));
    hold.confirmed(lease(30), now + seconds(10), Duration::ZERO);
    assert_eq!(hold.deadline(), over(now + seconds(10), 30));
    hold.confirmed(lease(20), now, Duration::ZERO);
    assert_eq!(hold.deadline(), over(now + seconds(10), 30), "never backward");
    assert!(hold.is_renewable());
}

/// In this order: 1. A hold is granted. 2. The machine sleeps. 3. A nested level with a shorter lease does
/// not move the end. 4. The end comes, which would not have come yet but for the sleep.
#[test]
fn an_answer_that_moves_no_end_does_not_hide_that_the_machine_slept() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(level(1, None), 1);
    let slept = seconds(20);
    hold.confirmed(lease(5), now + slept, slept);
    assert_eq!(hold.why_late(Moment { now: over(now, 30), slept }), Loss::Suspended);
}

#[test]
fn a_fixed_hold_ends_with_the_latest_of_its_levels() {
    let now = Instant::now();
    let mut hold = hold(now, 40);
    hold.add_level(level(1, Some(over(now, 10))), 1);
    assert_eq!(hold.deadline(), over(now, 10));
    hold.add_level(level(2, Some(over(now, 40))), 2);
    assert_eq!(hold.deadline(), over(now, 40));
    assert!(!hold.is_renewable());
    hold.remove_level(2).unwrap();
    assert_eq!(hold.deadline(), over(now, 10), "it moves back when the level that promised more leaves");
    assert!(hold.deadline() < hold.valid_until);
}

#[test]
fn a_watched_level_keeps_a_fixed_one_alive() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(level(1, Some(over(now, 5))), 1);
    hold.add_level(level(2, None), 2);
    assert!(hold.deadline() == over(now, 30) && hold.is_renewable());
    hold.remove_level(2).unwrap();
    assert!(hold.deadline() == over(now, 5) && !hold.is_renewable());
}

#[test]
fn a_level_whose_max_hold_is_over_leaves_the_key_to_its_lease() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(Level { max_hold: Some((now + seconds(5)).into()), ..level(1, None) }, 1);
    assert_eq!((hold.deadline_of(1), hold.deadline()), (now + seconds(5), over(now, 30)));
    assert!(hold.levels[0].grant.signal.seal(Loss::MaxHold));
    assert!(hold.lives() && !hold.is_renewable());
    assert_eq!(hold.deadline(), over(now, 30));
    hold.add_level(level(2, None), 2);
    assert!(hold.is_renewable(), "the others stand");
}

#[test]
fn renewals_are_due_within_a_thirtieth_before_a_third_of_the_lease() {
    let now = Instant::now();
    let timing = timing(now);
    for millis in [0, 1, 499, 500, 999, 1000, 12_345] {
        let sent = now + Duration::from_millis(millis);
        let (due, third) = (timing.renew_at(sent), sent + LEASE / 3);
        assert!(due <= third && third - due < LEASE / 30, "{millis}: {:?}", third - due);
        assert_eq!((due - now).as_nanos() % seconds(1).as_nanos(), 0, "in step with others");
    }
}

#[test]
fn what_is_sent_next_follows_from_what_stands() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(level(1, None), 1);
    hold.add_level(level(2, None), 2);
    assert_eq!(hold.next_action(), None);
    assert!(hold.remove_level(1).is_some() && hold.remove_level(7).is_none());
    assert_eq!(hold.next_action(), Some(Action::Release { count: 1 }));
    hold.unsettle();
    assert_eq!(hold.next_action(), Some(Action::Settle { count: 1, lease: lease(30) }));
    assert!(hold.remove_level(2).is_some());
    assert_eq!(hold.next_action(), Some(Action::END), "its own settle");
    hold.begin(Action::Release { count: 0 }, Sender::Request, 9, now);
    assert!(hold.next_action().is_none() && hold.overdue_at() == Some(now + seconds(1)));
    assert!(hold.finish(8, now).is_none() && hold.finish(9, now).is_some());
    hold.mark_gone(false);
    assert!(hold.next_action().is_none() && hold.is_over());
}

/// A shorter lease would end the hold if somebody has persisted its key.
#[test]
fn a_settle_makes_a_fixed_lease_neither_longer_nor_shorter() {
    let now = Instant::now();
    let mut hold = hold(now, 10);
    hold.add_level(level(1, Some(over(now, 10))), 1);
    hold.unsettle();
    let (settle, later) = (hold.next_action().unwrap(), now + seconds(4));
    let rest = Lease::rest(hold.deadline() - later);
    let sent = hold.begin(settle, Sender::Background, 2, later).call.action;
    assert_eq!(sent, Action::Settle { count: 1, lease: rest });
}

#[test]
fn a_count_is_lowered_after_an_acquire_that_was_under_way() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(level(1, None), 1);
    hold.begin(Action::Acquire { count: 2, lease: lease(30) }, Sender::Request, 2, now);
    hold.remove_level(1).unwrap();
    assert!(hold.finish(2, now).is_some());
    hold.add_level(level(2, None), 2);
    assert_eq!(hold.next_action(), Some(Action::Release { count: 1 }));
}

#[test]
fn a_loss_is_final_and_reported_once() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(level(1, None), 1);
    hold.add_level(level(2, None), 2);
    assert_eq!(hold.lose(Loss::Gone, false, now).len(), 2);
    assert!(hold.lose(Loss::Expired, false, now).is_empty());
    assert_eq!((hold.loss(), hold.levels[0].loss()), (Some(Loss::Gone), Some(Loss::Gone)));
    assert!(!hold.lives() && hold.deadline() <= now && hold.next_action().is_none());
    hold.remove_level(2).unwrap();
    assert_eq!(hold.next_action(), None, "while a guard is left");
    hold.remove_level(1).unwrap();
    assert_eq!(hold.next_action(), Some(Action::END));
}

#[test]
fn an_unknown_outcome_is_settled_after_a_pause() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(level(1, None), 1);
    hold.begin(Action::Renew { lease: lease(30) }, Sender::Request, 2, now);
    let later = now + seconds(2);
    hold.unknown(3, later);
    assert!(hold.under_way(2), "it is the outcome of another command");
    hold.unknown(2, later);
    assert!(hold.is_unsettled() && hold.failures == 1 && !hold.release_tried && !hold.is_renewable());
    assert_eq!(hold.retry_at, later + seconds(1));
    assert_eq!(hold.gone_by, later + LEASE, "it may have run only now");
}

#[test]
fn what_has_become_of_a_hold_is_kept_at_its_end() {
    let now = Instant::now();
    let mut lost = hold(now, 30);
    lost.add_level(level(1, None), 1);
    lost.lose(Loss::Expired, true, now);
    assert!(lost.owes_end() && lost.next_action() == Some(Action::END), "though a guard is left");
    lost.unsettle();
    assert!(!lost.is_unsettled(), "there is nothing to settle");
    lost.mark_gone(false);
    assert!(lost.is_gone() && !lost.owes_end() && lost.lose(Loss::Gone, false, now).is_empty());
    assert_eq!((lost.loss(), lost.frees_nobody()), (Some(Loss::Expired), false));

    let mut refused = hold(now, 30);
    refused.mark_gone(true);
    refused.mark_gone(false);
    assert!(refused.frees_nobody() && refused.loss().is_none());
}

#[test]
fn what_masters_lack_is_put_there_first_of_all() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(level(1, None), 1);
    hold.unsettle();
    hold.lacked_by(MasterSet::one(2), now);
    let repair = Action::Repair { count: 1, lease: lease(30) };
    assert_eq!(hold.next_action(), Some(repair));
    let pending = hold.begin(repair, Sender::Background, 2, now);
    assert_eq!((pending.masters, pending.rule()), (MasterSet::one(2), Rule::Repair));
}

#[test]
fn an_end_that_may_have_run_is_known_to_be_repeated() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    for (command_id, repeated) in [(2, false), (3, true)] {
        let end = hold.begin(Action::END, Sender::Background, command_id, now);
        assert_eq!((end.repeated, end.rule()), (repeated, Rule::End { repeated }));
        hold.unknown(command_id, now);
    }
    hold.mark_gone(true);
    hold.copies.change(|copies| copies.remains = MasterSet::one(2));
    let end = hold.begin(Action::END, Sender::Background, 4, now);
    assert_eq!((end.masters, end.rule()), (MasterSet::one(2), Rule::Remains));
}

#[test]
fn a_settle_that_was_put_off_leaves_the_counter_to_the_renewals() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.fence = Some(Arc::new(Fence { counter: "token".into(), least: Some(7), stays: None }));
    hold.add_level(level(1, None), 1);
    let settle = Action::Settle { count: 1, lease: lease(30) };
    for (command_id, counts) in [(2, true), (3, false)] {
        assert_eq!(hold.begin(settle, Sender::Background, command_id, now).call.fence.is_some(), counts);
        hold.unknown(command_id, now);
    }
    let renewal = hold.begin(Action::Renew { lease: lease(30) }, Sender::Background, 4, now);
    assert!(renewal.call.fence.is_some());
}

fn ends_at(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).unwrap()
}

fn is_shortened(sent: &Pending, lease: Lease, ends: u64) {
    assert_eq!((sent.call.action, sent.call.end), (Action::Shorten { lease }, KeyEnd::Is(ends_at(ends))));
}

/// Lets a renewal find such a TTL, and returns what the background sends next.
fn next_after(hold: &mut Hold, (left, ends): (u64, u64), now: Instant) -> Option<Pending> {
    hold.begin(Action::Renew { lease: lease(30) }, Sender::Background, 9, now);
    hold.finish(9, now);
    hold.confirmed(lease(30), now, Duration::ZERO);
    hold.found_ttl(seconds(left), ends_at(ends), now);
    let is_due = hold.due(true, 0).is_some_and(|due| due <= now);
    let sent = hold.due_command(now, true, &Numbers::default());
    assert_eq!(sent.is_some(), is_due, "what is due is sent, and nothing else");
    hold.finish(10, now);
    sent
}

#[test]
fn a_ttl_that_no_lease_explains_is_brought_back_to_what_guards_count_on() {
    let now = Instant::now();
    let rest = |left| Lease::rest(left + Duration::from_millis(1));
    let mut hold = hold(now, 30);
    hold.add_level(level(1, None), 1);
    assert!(next_after(&mut hold, (31, 7), now).is_none(), "its lease explains a TTL of that length");
    let sent = next_after(&mut hold, (3600, 7), now).unwrap();
    is_shortened(&sent, rest(seconds(30)), 7);
    assert!(
        hold.due_command(now, true, &Numbers::default()).is_none(),
        "once for each renewal that has found it"
    );
    // From now on, the lease that a guard asks for moves the end and counts: a TTL is never shortened to less
    // than the longer of the two.
    let extension =
        hold.begin(Action::Renew { lease: lease(60) }, Sender::Renewal { extends: Some(1) }, 9, now);
    assert_eq!(extension.call.end, KeyEnd::Moves);
    hold.finish(9, now);
    let later = now + seconds(10);
    assert!(next_after(&mut hold, (51, 8), later).is_none(), "the extension explains it");
    let sent = next_after(&mut hold, (3600, 8), later).unwrap();
    is_shortened(&sent, rest(seconds(50)), 8);
    for (asked, moves) in [(30, false), (60, true)] {
        let nested = hold.begin(Action::Acquire { count: 2, lease: lease(asked) }, Sender::Request, 9, later);
        assert_eq!(nested.call.end == KeyEnd::Moves, moves, "a command that may be late leaves a lease");
        hold.finish(9, later);
    }
    // Once the extension is over, the TTL is brought back to a lease again.
    let later = now + seconds(600);
    let sent = next_after(&mut hold, (3600, 9), later).unwrap();
    is_shortened(&sent, rest(seconds(30)), 9);
}

#[test]
fn what_is_not_renewed_or_not_settled_keeps_a_ttl_that_is_too_long() {
    let now = Instant::now();
    let mut fixed = hold(now, 30);
    fixed.add_level(level(1, Some(now + seconds(30))), 1);
    assert!(next_after(&mut fixed, (3600, 7), now).is_none());
    let mut watched = hold(now, 30);
    watched.add_level(level(1, None), 1);
    watched.found_ttl(seconds(3600), ends_at(7), now);
    assert!(watched.due_command(now, false, &Numbers::default()).is_none(), "the session is closed");
    watched.unsettle();
    let sent = watched.due_command(now, true, &Numbers::default()).unwrap();
    assert!(matches!(sent.call.action, Action::Settle { .. }));
    let nested = watched.begin(Action::Acquire { count: 2, lease: lease(60) }, Sender::Request, 9, now);
    assert_eq!(nested.call.end, KeyEnd::Stays);
}

#[test]
fn an_extension_moves_the_end_of_its_level_and_never_back() {
    let now = Instant::now();
    let mut hold = hold(now, 60);
    hold.add_level(level(1, Some(over(now, 20))), 1);
    hold.extended(1, lease(40), now);
    assert_eq!(hold.deadline(), over(now, 40));
    hold.extended(1, lease(10), now);
    assert_eq!(hold.deadline(), over(now, 40));
}

#[test]
fn nothing_is_put_on_masters_that_lack_it_once_a_hold_ends() {
    let now = Instant::now();
    for lost in [false, true] {
        let mut hold = hold(now, 30);
        hold.add_level(level(1, None), 1);
        hold.lacked_by(MasterSet::one(2), now);
        assert!(matches!(hold.next_action(), Some(Action::Repair { .. })));
        if lost {
            hold.lose(Loss::Expired, true, now);
        } else {
            hold.remove_level(1).unwrap();
        }
        assert_eq!(hold.next_action(), Some(Action::END));
    }
}

#[test]
fn a_hold_admits_its_last_owner_and_those_below_it() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    let (parent, stranger) = (Owner::new(), Owner::new());
    let (child, sibling) = (parent.child(), parent.child());
    assert!(!hold.admits(&parent) && !hold.is_entered_by(&parent), "nobody has it");
    hold.add_level(Level { owner: parent.clone(), ..level(1, None) }, 1);
    hold.add_level(Level { owner: child.clone(), ..level(2, None) }, 2);
    let seen = [&child, &child.child(), &parent, &sibling, &stranger]
        .map(|owner| (hold.admits(owner), hold.is_entered_by(owner)));
    assert_eq!(seen, [(true, true), (true, true), (false, true), (false, true), (false, false)]);
}

#[test]
fn an_end_or_a_lower_count_is_owed_until_it_is_confirmed() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(level(1, None), 1);
    hold.add_level(level(2, None), 2);
    assert!(!hold.owes());
    hold.lacked_by(MasterSet::one(2), now);
    assert!(!hold.owes(), "a repair is no promise");
    hold.lacked_by(MasterSet::NONE, now);
    hold.remove_level(2).unwrap();
    assert!(hold.owes());
    hold.server_count = 1;
    assert!(!hold.owes());
    hold.remove_level(1).unwrap();
    assert!(hold.owes());
    hold.begin(Action::END, Sender::Background, 2, now);
    assert!(hold.owes(), "it is under way");
    hold.finish(2, now).unwrap();
    hold.mark_gone(false);
    hold.copies.change(|copies| copies.remains = MasterSet::one(1));
    assert!(!hold.owes(), "what a minority may have holds nothing");
}

/// A repair that changes nothing would otherwise be sent again without a pause.
#[test]
fn what_masters_lack_is_put_there_at_once_unless_that_has_failed_before() {
    let (now, later) = (Instant::now(), Instant::now() + seconds(9));
    for (failures, at_once) in [(0, true), (1, true), (2, false)] {
        let mut hold = hold(now, 30);
        hold.add_level(level(1, None), 1);
        (hold.failures, hold.retry_at) = (failures, later);
        hold.lacked_by(MasterSet::NONE, now);
        assert_eq!(hold.retry_at, later);
        hold.lacked_by(MasterSet::one(2), now);
        assert_eq!(hold.retry_at == now, at_once, "{failures}");
    }
}

#[test]
fn a_fixed_lease_is_put_on_masters_that_lack_it_for_its_rest() {
    let now = Instant::now();
    let mut hold = hold(now, 30);
    hold.add_level(level(1, Some(now + seconds(10))), 1);
    hold.lacked_by(MasterSet::one(2), now);
    let repair = hold.next_action().unwrap();
    let pending = hold.begin(repair, Sender::Background, 2, now + seconds(4));
    assert_eq!(pending.call.action, Action::Repair { count: 1, lease: lease(6) });
}

#[test]
fn a_fenced_hold_has_the_token_of_its_grant() {
    let now = Instant::now();
    let mut plain = hold(now, 30);
    plain.set_token(9);
    assert_eq!(plain.token(), None, "it asked for none");
    let mut fenced = hold(now, 30);
    fenced.fence = Some(Arc::new(Fence { counter: "token".into(), least: Some(7), stays: None }));
    fenced.set_token(9);
    assert_eq!(fenced.token(), Some(9));
}

/// A master that is too young to vote on new fields still votes on existing ones. The counter is raised
/// together with a new field.
#[test]
fn only_the_first_acquire_of_a_hold_is_for_a_new_field() {
    let now = Instant::now();
    let fence = Arc::new(Fence { counter: "token".into(), least: Some(7), stays: None });
    let (keys, field) = (Arc::new(Keys::new("", "stock")), "me:1".into());
    let mut hold = Hold::new(1, keys, field, hold(now, 30).timing, lease(30), now);
    let first = hold.ask(lease(30), Some(fence), 1, now);
    assert_eq!((first.rule(), first.call.fence.is_some()), (Rule::Fresh, true));
    hold.finish(1, now).unwrap();
    hold.add_level(level(1, None), 1);
    let nested = hold.begin(Action::Acquire { count: 2, lease: lease(30) }, Sender::Request, 2, now);
    assert_eq!((nested.rule(), nested.call.fence.is_some()), (Rule::Standing, false));
}

/// The time is in whole milliseconds, rounded up.
#[test]
fn a_key_is_kept_for_no_less_than_was_asked_for() {
    let (now, millisecond) = (Instant::now(), Duration::from_millis(1));
    for micros in [5_000_000, 5_000_001, 5_000_999] {
        let mut hold = hold(now, 30);
        hold.add_level(level(1, None), 1);
        hold.remove_level(1).unwrap();
        let kept = Duration::from_micros(micros);
        hold.keep_until(now + kept);
        let end = hold.begin(Action::END, Sender::Background, 2, now).call.action;
        let Action::Keep { lease } = end else { panic!("{end:?}") };
        assert!((kept..=kept + millisecond).contains(&lease.duration()), "{lease:?} for {kept:?}");
    }
}

/// A hold is not certain within half a lease of its end, however lately it was confirmed.
#[test]
fn a_hold_that_is_nearly_over_is_not_certain() {
    let now = Instant::now();
    let mut good = hold(now, 30);
    good.add_level(level(1, None), 1);
    let last = over(now, 30) - seconds(15) - Duration::from_nanos(1);
    assert!(good.is_certain(last) && !good.is_certain(last + Duration::from_nanos(1)));
    let mut short = hold(now, 14);
    short.add_level(level(1, Some(over(now, 14))), 1);
    assert!(!short.is_certain(now));
}
