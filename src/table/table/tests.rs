use super::*;
use crate::base::Spread;
use crate::base::{Drift, Lease, Moment};
use crate::owner::Owner;
use crate::table::admission::{AcquireParams, Admission};
use crate::table::grant::{Grantee, NewLevel};
use crate::table::numbers::Numbers;
use crate::table::queue::Waiter;
use crate::wire::Reply;
use std::ops::ControlFlow::Continue;

#[derive(Debug)]
struct Nobody;

impl OwnerEnds for Nobody {
    fn owner_ended(&self, _: &Arc<str>, _: &Owner) {}
}

fn timing(now: Instant) -> Timing {
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    let lease = Lease::new("lease", Duration::from_secs(30), drift).unwrap();
    let (patience, retry) = (Duration::from_secs(60), Duration::from_millis(500));
    Timing {
        masters: 1,
        lease,
        drift,
        patience,
        retry,
        epoch: now,
        handoff: Duration::ZERO,
        warn_after: None,
        line: None,
    }
}

fn table(timing: Timing) -> LockTable {
    LockTable::new(timing.into(), None, Weak::<Nobody>::new())
}

/// In Redisson's naming, two names have one channel.
#[test]
fn a_channel_is_subscribed_to_until_no_lock_of_it_needs_it() {
    let mut table = table(timing(Instant::now()));
    let [one, other] = ["x", "{x}"].map(|name| Keys::new("", name));
    assert_eq!(one.channel(), other.channel());
    assert!(table.subscribe(&one, true) && table.subscribe(&other, true));
    assert_eq!(table.names_of(one.channel()), [one.name.clone(), other.name.clone()]);
    assert!(!table.subscribe(&one, false));
    assert_eq!(table.names_of(one.channel()), vec![other.name.clone()]);
    assert!(table.subscribe(&other, false));
    assert!(table.names_of(one.channel()).is_empty());
}

#[test]
fn what_is_due_is_unattended_once_the_background_has_not_looked_for_so_long() {
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    let is_unattended = |due, takeover| {
        let mut table = table(timing(now));
        table.agenda.insert(due, 0);
        table.is_unattended(takeover, now)
    };
    assert!(is_unattended(now, Duration::ZERO));
    assert!(!is_unattended(now, 3600 * second));
    assert!(!is_unattended(now + second, Duration::ZERO), "the background is not due yet");
}

/// A handle of its own takes each name, and is then dropped.
#[test]
fn entries_stay_for_their_handles_and_few_beside_them() {
    let now = Instant::now();
    let mut table = table(timing(now));
    let take = |table: &mut LockTable, name: &str| {
        let keys = Arc::new(Keys::new("", name));
        let due = now + Duration::from_secs(1);
        let schedule = |entry: &mut LockEntry| entry.scheduled = Some(due);
        table.visit(&keys, now, &mut VisitEffects::default(), schedule);
        // The visit has noted the due time.
        table.agenda.insert(due, keys.slot.get());
        keys
    };
    let handles: Vec<_> = (0..100).map(|at| take(&mut table, &format!("kept:{at}"))).collect();
    assert!(table.is_empty() && table.keys().is_empty() && table.entry("kept:7").is_none());
    for at in 0..10_000 {
        take(&mut table, &format!("gone:{at}"));
    }
    assert!(table.slots.len() <= 3 * handles.len(), "{}", table.slots.len());
    assert_eq!(
        (table.agenda.until(now + Duration::from_secs(1)).count(), table.entries.len() - table.vacant.len()),
        (table.slots.len(), table.slots.len())
    );
    for (at, keys) in handles.iter().enumerate() {
        assert_eq!(table.slots.get(&keys.name), Some(&keys.slot.get()), "{at}");
    }
    // Another handle of the same lock finds the entry of the first one.
    let before = table.slots.len();
    assert_eq!(take(&mut table, "kept:7").slot.get(), handles[7].slot.get());
    assert_eq!(table.slots.len(), before);
}

/// The time at which the release would be given up is later than that of the hold's renewal.
#[test]
fn pairs_of_grants_and_releases_wake_the_background_once() {
    let now = Instant::now();
    let timing = timing(now);
    let lease = timing.lease;
    let (mut table, keys) = (table(timing), Arc::new(Keys::new("", "stock")));
    table.due(now);
    let (mut woken, numbers) = (0, Numbers::default());
    for round in 0..10 {
        let at = Moment { now: now + Duration::from_millis(round), slept: Duration::ZERO };
        let mut visit = |visit: &mut dyn FnMut(&mut LockEntry)| {
            let mut effects = VisitEffects::default();
            table.visit(&keys, at.now, &mut effects, visit);
            woken += u32::from(effects.sooner);
        };
        let (mut pending, mut id, level, owner) = (None, 0, 1_000_000, Owner::new());
        visit(&mut |entry| {
            id = numbers.next();
            entry.enter_alone(Waiter::new(id, owner.clone(), true, at.now)).unwrap();
            let ask = AcquireParams::plain(numbers.next(), lease);
            let Admission::Ask(asked) = entry.admit(id, ask, at) else { panic!("nobody is before it") };
            pending = Some(asked);
        });
        let pending = pending.unwrap();
        visit(&mut |entry| {
            let new = NewLevel::watched(level, lease);
            assert!(entry.granted(&Grantee::Waiter(id), &pending, &new, Spread::default(), at).is_ok());
        });
        let mut release = None;
        visit(&mut |entry| release = Some(entry.leave(pending.hold, level, Some(numbers.next()), at)));
        let Some(Continue(release)) = release else { panic!("it is held") };
        assert!(table.has_unconfirmed_ends());
        // The background looks while the release is under way, and sleeps until the next due time.
        table.due(at.now);
        let answered = |entry: &mut LockEntry| {
            entry.conclude(&release, Ok(&Reply::Done), Spread::default(), at);
        };
        let mut effects = VisitEffects::default();
        table.visit(&keys, at.now, &mut effects, answered);
        woken += u32::from(effects.sooner);
    }
    assert_eq!(woken, 1);
}

/// The background sleeps until 10 ms after the beginning, or for longer.
#[test]
fn what_is_due_wakes_the_background_where_it_is_due_sooner_or_the_background_sleeps_too_long() {
    let begun = Instant::now();
    let at = |millis| begun + Duration::from_millis(millis);
    for (due, now, wakes) in [(9, 5, true), (10, 5, false), (11, 10, false), (10, 10, true), (11, 11, true)] {
        let mut table = table(timing(begun));
        table.schedule(0, None, Some(at(10)), begun);
        table.due(begun);
        assert_eq!(table.schedule(1, None, Some(at(due)), at(now)), wakes, "{due} {now}");
        assert!(!table.schedule(2, None, Some(at(due)), at(now)) || !wakes, "once");
    }
}

/// Otherwise each renewal would move its lock in the agenda twice.
#[test]
fn the_answer_to_a_renewal_mostly_leaves_its_entry_where_it_is_in_the_agenda() {
    let now = Instant::now();
    let timing = timing(now);
    let lease = timing.lease;
    let (mut table, keys) = (table(timing), Arc::new(Keys::new("", "stock")));
    type Visit<'a> = &'a mut dyn FnMut(&mut LockEntry, Moment);
    let mut visit = |now, visit: Visit<'_>| {
        let at = Moment { now, slept: Duration::ZERO };
        let mut effects = VisitEffects::default();
        table.visit(&keys, now, &mut effects, |entry| visit(entry, at));
        table.due(now);
        table.agenda.first()
    };
    let (owner, numbers) = (Owner::new(), Numbers::default());
    visit(now, &mut |entry, at| {
        let id = numbers.next();
        entry.enter_alone(Waiter::new(id, owner.clone(), true, at.now)).unwrap();
        let ask = AcquireParams::plain(numbers.next(), lease);
        let Admission::Ask(asked) = entry.admit(id, ask, at) else { panic!("nobody is before it") };
        let new = NewLevel::watched(1, lease);
        assert!(entry.granted(&Grantee::Waiter(id), &asked, &new, Spread::default(), at).is_ok());
    });
    let mut renewals = Vec::new();
    for (round, answer) in [(1, true), (2, true), (3, false)] {
        let now = now + round * lease.duration() / 3;
        let asked = visit(now, &mut |entry, at| {
            renewals = entry.check(at, crate::base::MasterSet::NONE, &numbers);
        });
        assert_eq!(renewals.len(), 1);
        let answered = visit(now, &mut |entry, at| {
            let answer = if answer { Ok(&Reply::Done) } else { Err(crate::base::Outcome::Unknown) };
            entry.conclude(&renewals[0], answer, Spread::default(), at);
        });
        let third = now + lease.duration() / 3;
        assert_eq!(asked, Some(third));
        // A renewal that failed is tried again soon.
        assert_eq!(answered == asked, answer);
        assert!(answered <= asked);
    }
}
