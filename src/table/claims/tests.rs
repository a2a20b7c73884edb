//! A hold that is handed over, and what arrives late for it.

use std::ops::ControlFlow::Continue;
use std::task::Waker;

use super::*;
use crate::base::{Drift, MasterSet, Outcome, Spread};
use crate::owner::Owner;
use crate::table::admission::{AcquireParams, Admission};
use crate::table::grant::{Grantee, NewLevel};
use crate::table::level::Grant;
use crate::table::numbers::Numbers;
use crate::table::outcome::{LateAnswer, Meaning};
use crate::table::queue::Waiter;
use crate::table::timing::Timing;
use crate::wire::keys::Keys;
use crate::wire::{Action, Reply};

const DRIFT: Drift = Drift { factor: 0.0, slack: std::time::Duration::ZERO };

struct World {
    entry: LockEntry,
    numbers: Numbers,
    at: Moment,
    lease: Lease,
}

impl World {
    fn new() -> World {
        let second = std::time::Duration::from_secs(1);
        let now = Instant::now();
        let lease = Lease::new("lease", 30 * second, DRIFT).unwrap();
        let handoff = std::time::Duration::ZERO;
        let timing = Timing {
            masters: 3,
            lease,
            drift: DRIFT,
            patience: second,
            retry: second,
            epoch: now,
            handoff,
            warn_after: None,
            line: None,
        };
        let keys = Arc::new(Keys::new("", "stock"));
        #[derive(Debug)]
        struct Nobody;
        impl crate::owner::OwnerEnds for Nobody {
            fn owner_ended(&self, _: &Arc<str>, _: &Owner) {}
        }
        let session: std::sync::Weak<dyn crate::owner::OwnerEnds> = std::sync::Weak::<Nobody>::new();
        let position = crate::owner::Position { session, name: keys.name.clone() };
        let at = Moment { now, slept: std::time::Duration::ZERO };
        World { entry: LockEntry::new(keys, position, timing), numbers: Numbers::default(), at, lease }
    }

    fn begin(&mut self) -> Pending {
        let command_id = self.numbers.next();
        self.entry.begin_resume(command_id, "theirs:7".into(), "me", self.lease, self.at.now)
    }

    fn resumed(&mut self, pending: &Pending, spread: Spread) -> Option<Arc<Grant>> {
        self.resumed_by(&Owner::new(), pending, spread)
    }

    fn resumed_by(&mut self, owner: &Owner, pending: &Pending, spread: Spread) -> Option<Arc<Grant>> {
        let new = NewLevel::watched(self.numbers.next(), self.lease);
        let granted = self.entry.granted(&Grantee::Claimant(owner), pending, &new, spread, self.at);
        granted.ok().map(|(granted, _)| granted)
    }

    fn due(&mut self) -> Vec<Pending> {
        self.entry.check(self.at, MasterSet::NONE, &self.numbers)
    }
}

#[test]
fn a_claimed_hold_takes_the_place_of_its_field_under_a_fresh_one() {
    let mut world = World::new();
    let pending = world.begin();
    assert_eq!((pending.call.from.as_deref(), &*pending.call.field), (Some("theirs:7"), "me:1"));
    assert!(world.entry.live().is_none());
    let level = world.resumed(&pending, Spread::default()).unwrap().level;
    assert_eq!(world.entry.live().unwrap().count(), 1);
    assert!(world.due().is_empty());
    world.at.now += self::renewal();
    let [renewal] = &world.due()[..] else { panic!("it is renewed") };
    assert_eq!((renewal.call.action, &renewal.call.from), (Action::Renew { lease: world.lease }, &None));
    world.entry.conclude(renewal, Ok(&Reply::Done), Spread::default(), world.at);
    world.entry.hand_over(pending.hold, level, Waker::noop(), world.at).unwrap();
    assert!(world.entry.is_empty() && world.due().is_empty());
}

fn renewal() -> std::time::Duration {
    std::time::Duration::from_secs(10)
}

/// The first process must not end the field of the claim, whatever late answers it gets.
#[test]
fn what_is_answered_late_of_a_hold_that_was_handed_over_is_not_undone() {
    let mut world = World::new();
    let pending = world.begin();
    let level = world.resumed(&pending, Spread::default()).unwrap().level;
    world.entry.hand_over(pending.hold, level, Waker::noop(), world.at).unwrap();
    for late in [LateAnswer::Done, LateAnswer::Unknown, LateAnswer::Missing, LateAnswer::Unsent] {
        world.entry.straggled(&pending, 2, late, world.at.now);
    }
    let void = world.entry.conclude(&pending, Err(Outcome::Unknown), Spread::default(), world.at);
    assert_eq!(void, Meaning::Void);
    assert!(world.entry.is_empty() && world.due().is_empty());
}

#[test]
fn a_hold_with_a_command_under_way_is_not_handed_over_before_its_answer() {
    let mut world = World::new();
    let pending = world.begin();
    let level = world.resumed(&pending, Spread::default()).unwrap().level;
    world.entry.doubt_all(world.at.now);
    let hand_over = |world: &mut World| world.entry.hand_over(pending.hold, level, Waker::noop(), world.at);
    assert_eq!(hand_over(&mut world), Err(Obstacle::Command), "a settle is due");
    let [settle] = &world.due()[..] else { panic!("it is due") };
    assert_eq!(hand_over(&mut world), Err(Obstacle::Command), "it is under way");
    world.entry.out.made().wake.clear();
    world.entry.conclude(settle, Ok(&Reply::Gone), Spread::default(), world.at);
    assert_eq!(world.entry.out.made().wake.len(), 1, "it is woken");
    assert_eq!(hand_over(&mut world), Err(Obstacle::Lost(Loss::Gone)));
}

#[test]
fn a_move_without_an_answer_is_undone_on_each_master_that_it_was_sent_to() {
    let mut world = World::new();
    let pending = world.begin();
    let spread = Spread { given_up: pending.masters, ..Spread::default() };
    world.entry.conclude(&pending, Err(Outcome::Unknown), spread, world.at);
    let [end] = &world.due()[..] else { panic!("it is due") };
    assert!(end.is_end() && end.masters == MasterSet::ALL && end.call.field == pending.call.field);
    // The end finds nothing: the move may still run after it.
    let missing = Spread { missing: MasterSet::first(3), ..Spread::default() };
    world.entry.conclude(end, Ok(&Reply::Gone), missing, world.at);
    world.at.now += std::time::Duration::from_secs(2);
    let [again] = &world.due()[..] else { panic!("once more") };
    assert!(again.is_end());
}

/// The move is answered too late, so its field is ended.
#[test]
fn a_move_that_is_answered_when_its_lease_is_over_is_no_hold() {
    let mut world = World::new();
    let pending = world.begin();
    world.at.now += world.lease.duration();
    assert!(world.resumed(&pending, Spread::default()).is_none());
    let [end] = &world.due()[..] else { panic!("it is ended") };
    assert!(end.is_end() && end.call.field == pending.call.field);
}

#[test]
fn a_refused_move_ends_what_other_masters_have_moved() {
    let mut world = World::new();
    let pending = world.begin();
    let spread = Spread { remains: MasterSet::one(1), missing: MasterSet::one(0), ..Spread::default() };
    world.entry.conclude(&pending, Ok(&Reply::Gone), spread, world.at);
    let [end] = &world.due()[..] else { panic!("it is ended there") };
    assert!(end.is_end() && end.masters == MasterSet::one(1));
    world.entry.conclude(end, Ok(&Reply::Done), Spread::default(), world.at);
    assert!(world.entry.is_empty());
}

/// Two requests resume a claim at once. 1. Each moves a field of its own. 2. The second one is granted.
/// 3. The answer to the first one is read.
#[test]
fn a_move_that_is_answered_after_the_grant_of_a_later_one_is_no_hold() {
    let mut world = World::new();
    let [first, second] = [(); 2].map(|()| world.begin());
    assert!(world.resumed(&second, Spread::default()).is_some());
    assert!(world.resumed(&first, Spread::default()).is_none());
    let sent = world.due();
    let ended = sent.iter().find(|pending| pending.call.field == first.call.field).expect("it is ended");
    let asked = sent.iter().find(|pending| pending.call.field == second.call.field).expect("it is in doubt");
    assert!(ended.is_end() && matches!(asked.call.action, Action::Settle { .. }), "{asked:?}");
}

/// Only a later hold that lives is in the way of a move. Here, 1. the later one is still under way, or 2. the
/// other one is earlier.
#[test]
fn a_move_is_a_hold_beside_one_that_is_under_way_and_after_an_earlier_one() {
    let mut world = World::new();
    let [first, second] = [(); 2].map(|()| world.begin());
    let grant = world.resumed(&first, Spread::default()).unwrap();
    assert!(world.resumed(&second, Spread::default()).is_some());
    assert_eq!(grant.signal.loss(), Some(Loss::Gone));
}

#[test]
fn a_move_that_was_given_up_is_no_hold_whatever_it_is_answered() {
    let mut world = World::new();
    let pending = world.begin();
    world.entry.conclude(&pending, Err(Outcome::Unknown), Spread::default(), world.at);
    assert!(world.resumed(&pending, Spread::default()).is_none());
    let [end] = &world.due()[..] else { panic!("it is ended") };
    assert!(end.is_end() && end.call.field == pending.call.field);
}

/// In this order: 1. A branch of a task asks, and is refused. 2. Another branch of it resumes a claim. The
/// first one must not enter.
#[test]
fn a_bare_request_of_the_owner_that_is_under_way_shows_that_a_resumed_hold_is_a_branch() {
    let owner = Owner::new();
    for (asks, bare, is_branch) in [
        (&owner, true, true),
        (&owner, false, false),
        (&owner.child(), true, false),
        (&Owner::new(), true, false),
    ] {
        let mut world = World::new();
        let pending = world.begin();
        let request = Waiter::new(9, asks.clone(), bare, world.at.now);
        world.entry.enter_alone(request).unwrap();
        world.resumed_by(&owner, &pending, Spread::default()).unwrap();
        let branch = |request: &Waiter| request.branch;
        let level = world.entry.live().and_then(|hold| hold.levels.first()).expect("it is held");
        assert_eq!(level.branch, is_branch);
        assert_eq!(world.entry.queue.get(9).map(branch), Some(is_branch));
        let enters = world.entry.inner_front().is_some();
        assert_eq!(enters, !is_branch && asks.is_within(&owner));
    }
}

#[test]
fn a_resumed_hold_is_held_since_then() {
    let mut world = World::new();
    world.at.now += std::time::Duration::from_secs(9);
    let pending = world.begin();
    world.resumed(&pending, Spread::default()).unwrap();
    world.at.now += std::time::Duration::from_secs(2);
    let held_for = world.entry.usage(world.at).and_then(|usage| usage.held_for).unwrap();
    assert_eq!(held_for, std::time::Duration::from_secs(2));
}

#[test]
fn a_resumed_hold_passes_on_inside_the_process_for_as_long_as_any_other() {
    let second = std::time::Duration::from_secs(1);
    for in_time in [true, false] {
        let mut world = World::new();
        world.entry.timing = Arc::new(Timing { handoff: second, ..*world.entry.timing });
        let pending = world.begin();
        let level = world.resumed(&pending, Spread::default()).unwrap().level;
        let (waits, command_id, now) = (100, 101, world.at.now);
        let stranger = Waiter::new(waits, Owner::new(), true, now).taking(true);
        world.entry.enter_alone(stranger).unwrap();
        world.at.now += if in_time { second / 2 } else { second };
        let released = world.entry.leave(pending.hold, level, Some(command_id), world.at);
        let ask = AcquireParams { takes_over: true, ..AcquireParams::plain(command_id, world.lease) };
        match world.entry.admit(waits, ask, world.at) {
            Admission::Granted(granted, _) => assert!(in_time && granted.hold == pending.hold),
            turn => assert!(!in_time && matches!(released, Continue(_)), "{turn:?}"),
        }
    }
}

#[test]
fn the_last_hand_overs_are_known_and_no_more() {
    let mut entry = World::new().entry;
    for last in 1..100 {
        entry.note_handed_over(last);
        for hold in 1..=last {
            let is_late = last - hold < LAST_HANDED_OVER as u64;
            assert_eq!(entry.was_handed_over(hold), is_late, "{hold} of {last}");
        }
    }
}

/// A resume is not in the queue, so even a single request there waits for it.
#[test]
fn a_resume_that_is_not_polled_is_given_up_for_one_that_waits() {
    for waits in [false, true] {
        let mut world = World::new();
        world.begin();
        if waits {
            let request = Waiter::new(world.numbers.next(), Owner::new(), true, world.at.now);
            world.entry.enter_alone(request).unwrap();
        }
        world.at.now += world.entry.timing.patience;
        assert_eq!(world.due().iter().filter(|due| due.is_end()).count(), usize::from(waits));
    }
}
