//! Levels that are granted without a command, which happens only while the hold around them is certain.

use super::late::MOMENT;
use super::*;
use crate::error::{Error, ErrorKind};
use crate::table::queue::HEAD_PATIENCE;

impl World {
    /// One owner holds the lock, and a `run` that nests in it may need no command. Returns the owner.
    fn one_nests() -> (World, Owner) {
        let mut world = World::new(1);
        (world.faults, world.nests) = (false, Some(true));
        let owner = Owner::new();
        let first = world.asks(&owner, true);
        world.answers(first);
        (world, owner)
    }

    /// A `run` nests in the hold of this owner, and is dropped if it is not granted at once. Returns whether
    /// it is granted.
    fn enters(&mut self, owner: &Owner) -> bool {
        let before = self.guards.len();
        let id = self.asks(&owner.child(), false);
        let granted = self.guards.len() > before;
        if granted {
            let sent = self.flight.len();
            self.release_by(before, true);
            assert_eq!(self.flight.len(), sent, "its release is sent");
        } else {
            let at = self.asker(id);
            let asks = self.askers[at].asking.take();
            asks.inspect(|pending| self.fails(pending, Net::Refused));
            self.go(at);
        }
        granted
    }

    /// Asks for a nested level with a fixed lease. Returns whether it is granted at once.
    fn enters_for(&mut self, owner: &Owner, lease: Duration) -> bool {
        let before = self.guards.len();
        self.begin(owner.child(), false, Options { lease, fixed: true, limit: None, single_attempt: false });
        self.guards.len() > before
    }

    /// Answers all that is under way.
    fn all_arrive(&mut self) {
        while !self.flight.is_empty() {
            self.arrives();
        }
    }

    fn hold_now(&self) -> &Hold {
        self.entry.live().expect("it is held")
    }

    /// A guard checks that its hold stands.
    fn begins_check(&mut self) -> Pending {
        let (id, command_id) = (self.hold_now().id, self.number());
        self.entry.begin_renewal(id, None, command_id, Waker::noop(), self.now).expect("nothing is under way")
    }

    fn begins_extension(&mut self, lease: Duration) -> Pending {
        let (id, command_id, level) = (self.hold_now().id, self.number(), self.guards[0].level);
        let lease = Lease::new("lease", lease, DRIFT).unwrap();
        self.entry
            .begin_renewal(id, Some((level, lease)), command_id, Waker::noop(), self.now)
            .expect("nothing is under way")
    }
}

#[test]
fn a_level_in_a_certain_hold_takes_no_command_and_neither_does_its_release() {
    let (mut world, mut owner) = World::one_nests();
    for depth in 2..5 {
        owner = owner.child();
        world.asks(&owner, false);
        let hold = world.hold_now();
        assert_eq!((hold.count(), hold.server_count, world.guards.len()), (depth, 1, depth as usize));
        world.rest();
    }
    // The guards are released in any order.
    world.release_by(0, true);
    while world.guards.len() > 1 {
        world.release_by(1, true);
    }
    assert!(world.flight.is_empty() && world.entry.live().is_some());
    world.release_by(0, true);
    assert_eq!(world.flight.iter().map(|pending| pending.call.action).collect::<Vec<_>>(), [Action::END]);
    world.all_arrive();
    assert!(world.master.key.is_none());
    assert_eq!(world.samples.iter().filter(|sample| **sample == Sample::Nested).count(), 3);
}

/// A re-entry by a command tells the masters the count that stands after it, so that they have then counted
/// all levels.
#[test]
fn a_level_that_is_asked_for_brings_the_count_up_to_date() {
    let (mut world, owner) = World::one_nests();
    world.asks(&owner.child(), false);
    world.nests = None;
    let inner = Owner::clone(&world.hold_now().levels[1].owner);
    let asked = world.asks(&inner.child(), false);
    world.answers(asked);
    assert_eq!((world.hold_now().server_count, world.hold_now().count()), (3, 3));
    world.nests = Some(true);
    world.rest();
    // Now a release has to be sent: it lowers the count below the one that the masters have.
    world.release_by(2, true);
    assert_eq!(world.flight.len(), 1);
    assert!(!world.enters(&owner), "a release is under way");
    world.all_arrive();
    world.rest();
}

/// Two levels nest without a command, so the masters count one. A master lacks the hold, and then a level is
/// released by a command, since the hold is not in sync. The masters still count one, and the master that
/// lacks the hold is given no higher count.
#[test]
fn a_release_of_a_level_that_the_masters_do_not_count_raises_no_count() {
    let (mut world, mut owner) = World::one_nests();
    for _ in 0..2 {
        owner = owner.child();
        world.asks(&owner, false);
    }
    assert_eq!((world.hold_now().count(), world.hold_now().server_count), (3, 1));
    let id = world.hold_now().id;
    world.entry.hold(id).unwrap().copies.set_lacking(MasterSet::one(0));
    world.release_by(2, true);
    let sent: Vec<_> = world.flight.iter().map(|pending| pending.call.action).collect();
    assert_eq!(sent, [Action::Release { count: 2 }]);
    world.all_arrive();
    assert_eq!((world.hold_now().count(), world.hold_now().server_count), (2, 1));
}

/// In this order: 1. A bare request yields, and is not polled again. 2. A sibling asks after it. If only its
/// own waker woke the bare request, it would never count as late.
#[test]
fn a_nested_request_that_yields_and_is_not_polled_is_passed_over() {
    let (mut world, owner) = World::one_nests();
    let (neglected, sibling) = (world.asks(&owner.child(), true), world.asks(&owner.child(), false));
    assert!(world.is_woken(neglected) && world.askers.len() == 2 && world.flight.is_empty());
    world.pass(HEAD_PATIENCE + MOMENT);
    assert!(world.is_woken(sibling));
    world.poll(world.asker(sibling));
    assert_eq!(world.guards.len(), 2);
}

/// In this order: 1. The request yields. 2. The key is deleted, and a check finds that. 3. The task that
/// awaits the loss drops the guard. 4. The request is polled again.
#[test]
fn a_nested_request_whose_hold_is_lost_fails_though_the_guard_is_gone() {
    for limited in [false, true] {
        let mut world = World::new(1);
        (world.faults, world.nests) = (false, Some(true));
        let (owner, limit) = (Owner::new(), limited.then_some(Duration::from_secs(1)));
        world.begin(
            owner.clone(),
            true,
            Options { lease: LEASE, fixed: false, limit, single_attempt: false },
        );
        world.answer(0);
        let nested = world.asks(&owner.child(), true);
        match limited {
            true => world.pass(2 * Duration::from_secs(1)),
            false => {
                let check = world.begins_check();
                world.master.key = None;
                world.flight.push(check);
                world.all_arrive();
            }
        }
        assert!(world.guards[0].signal.loss().is_some());
        world.release_by(0, true);
        world.check();
        world.all_arrive();
        assert!(world.entry.live().is_none());
        world.poll(world.asker(nested));
        assert!(
            world.askers.is_empty() && world.guards.is_empty() && world.flight.is_empty(),
            "it is granted the lock again"
        );
    }
}

/// In this order: 1. A hold is extended by a long time. 2. Nothing is confirmed for long. 3. The key is
/// deleted.
#[test]
fn a_hold_is_certain_for_half_a_lease_after_its_last_confirmation() {
    let (mut world, owner) = World::one_nests();
    let extension = world.begins_extension(10 * LEASE);
    world.flight.push(extension);
    world.all_arrive();
    world.now += LEASE / 2 - MOMENT;
    assert!(world.enters(&owner));
    world.now += 2 * MOMENT;
    assert!(!world.enters(&owner), "it is good for long, but was confirmed long ago");
    // Each answer makes the hold certain again.
    world.check();
    world.all_arrive();
    assert!(world.enters(&owner));
}

/// Nobody renews such a hold, so nothing confirms it either.
#[test]
fn a_hold_of_fixed_lease_is_certain_for_half_a_lease_too() {
    let mut world = World::new(1);
    (world.faults, world.nests) = (false, Some(true));
    let owner = Owner::new();
    world.begin(
        owner.clone(),
        true,
        Options { lease: 10 * LEASE, fixed: true, limit: None, single_attempt: false },
    );
    world.answer(0);
    assert!(world.enters_for(&owner, Duration::from_secs(1)));
    world.release_by(1, true);
    world.now += LEASE / 2 + MOMENT;
    assert!(!world.enters_for(&owner, Duration::from_secs(1)));
}

/// The acquire under way states a count that includes the level that leaves, so the release of that level is
/// sent after it.
#[test]
fn a_nested_release_beside_a_nested_acquire_waits_for_it() {
    let (mut world, owner) = World::one_nests();
    world.asks(&owner.child(), false);
    world.nests = None;
    let inner = Owner::clone(&world.hold_now().levels[1].owner);
    let request = world.asks(&inner.child(), false);
    assert!(world.hold_now().command.is_some());
    let (grant, at) = (world.guards[1].grant.clone(), world.at());
    assert!(world.entry.unnest(&grant, at).is_none());
    assert!(matches!(world.entry.leave(grant.hold, grant.level, None, at), Break(Meaning::Void)));
    // The acquire is refused, and the count on the masters is no higher than that of the levels: there is nothing to send.
    let asker = world.asker(request);
    let acquire = world.askers[asker].asking.take().expect("it asks");
    assert_eq!(grant.signal.released(), None);
    world.entry.conclude(&acquire, Err(Outcome::NotRun), Spread::default(), at);
    assert_eq!(grant.signal.released(), Some(Ok(())));
}

#[test]
fn nothing_nests_without_a_command_in_a_hold_that_masters_lack() {
    let (mut world, owner) = World::one_nests();
    let now = world.now;
    world.entry.holds[0].lacked_by(MasterSet::one(0), now);
    assert!(!world.enters(&owner));
}

/// Other requests of this process are refused. The hold itself was confirmed just now.
#[test]
fn nothing_nests_without_a_command_while_those_of_the_lock_fail() {
    let (mut world, owner) = World::one_nests();
    let (at, child) = (world.at(), owner.child());
    world.entry.outage.goes_on(Error::new(ErrorKind::Unavailable, "away"), LEASE, at.now);
    assert!(world.entry.nest(&child, false, &world.numbers, || Some(at)).is_none());
}

#[test]
fn a_fenced_level_in_a_hold_without_a_token_is_not_granted_in_silence() {
    let (mut world, owner) = World::one_nests();
    let (at, child) = (world.at(), owner.child());
    assert!(world.entry.nest(&child, true, &world.numbers, || Some(at)).is_none());
}

/// Otherwise the release would be reported as done, while the hold may be gone.
#[test]
fn a_nested_release_after_an_unknown_outcome_waits_for_the_settle() {
    let (mut world, owner) = World::one_nests();
    world.asks(&owner.child(), false);
    let check = world.begins_check();
    world.fails(&check, Net::AnswerLost);
    let (grant, at) = (world.guards[1].grant.clone(), world.at());
    assert!(world.entry.unnest(&grant, at).is_none());
    assert!(matches!(world.entry.leave(grant.hold, grant.level, None, at), Break(Meaning::Void)));
}

/// The hold is over, and the background has not looked yet.
#[test]
fn a_nested_release_past_the_end_of_its_hold_reports_the_loss() {
    let (mut world, owner) = World::one_nests();
    world.asks(&owner.child(), false);
    world.now += LEASE;
    let (grant, at) = (world.guards[1].grant.clone(), world.at());
    assert!(world.entry.unnest(&grant, at).is_none());
    assert!(matches!(world.entry.leave(grant.hold, grant.level, None, at), Break(Meaning::Lost(_))));
}

/// In this order: 1. The hold of a child is lost, and its guard is kept. 2. The parent is granted the lock
/// again. 3. A call below the child would nest in the hold of the parent, and would not learn of the loss.
#[test]
fn nothing_nests_without_a_command_beside_a_lost_hold_whose_guard_stands() {
    let mut world = World::new(1);
    (world.faults, world.nests) = (false, Some(true));
    let parent = Owner::new();
    let child = parent.child();
    let first = world.asks(&child, true);
    world.answers(first);
    let check = world.begins_check();
    world.master.key = None;
    world.flight.push(check);
    world.all_arrive();
    assert!(world.guards[0].signal.loss().is_some());
    let anew = world.asks(&parent, true);
    world.answers(anew);
    assert!(world.enters(&parent), "its queue grants it");
    world.asks(&child.child(), false);
    assert_eq!((world.guards.len(), world.askers.len()), (2, 0), "it fails with the loss");
}

#[test]
fn nothing_nests_without_a_command_where_the_connection_is_known_to_be_lost() {
    let (mut world, owner) = World::one_nests();
    world.nests = Some(false);
    assert!(!world.enters(&owner));
    world.nests = Some(true);
    assert!(!world.enters(&owner), "the command that was refused ended certainty");
    let check = world.begins_check();
    world.flight.push(check);
    world.all_arrive();
    assert!(world.enters(&owner));
}

#[test]
fn a_failed_command_ends_certainty_until_the_next_answer() {
    for net in [Net::Refused, Net::AnswerLost, Net::CommandLost] {
        let (mut world, owner) = World::one_nests();
        let check = world.begins_check();
        world.fails(&check, net);
        assert!(!world.enters(&owner), "{net:?}");
        world.pass(Duration::from_secs(11));
        world.all_arrive();
        world.check();
        world.all_arrive();
        assert!(world.enters(&owner), "{net:?}");
    }
}

/// A nested release needs no command while the renewal is under way.
#[test]
fn a_renewal_under_way_keeps_no_level_waiting_unless_it_is_doubted() {
    let (mut world, owner) = World::one_nests();
    world.pass(LEASE / 3);
    assert_eq!(world.flight.len(), 1, "a renewal");
    assert!(world.enters(&owner));
    world.entry.doubt_all(world.now);
    assert!(!world.enters(&owner), "something may have happened since the renewal was sent");
}

/// The hold around the level is good for longer.
#[test]
fn a_nested_level_of_fixed_lease_ends_with_its_own_lease() {
    let (mut world, owner) = World::one_nests();
    let fixed = Duration::from_secs(5);
    assert!(world.enters_for(&owner, fixed));
    let ends = world.now + fixed;
    world.release_by(0, true);
    assert_eq!(world.hold_now().deadline(), ends);
    world.pass(fixed);
    assert!(world.guards[0].signal.loss().is_some());
}

/// The level asks for a fixed lease that would end after the hold.
#[test]
fn a_nested_level_that_the_hold_does_not_outlast_is_asked_for() {
    let (mut world, owner) = World::one_nests();
    world.now += MOMENT;
    assert!(!world.enters_for(&owner, LEASE));
    assert!(world.askers[0].asking.is_some());
}

/// The first poll returns pending, so that two bare requests that are under way at once are found to be
/// branches.
#[test]
fn a_bare_request_is_granted_in_its_second_poll_where_it_nests_without_a_command() {
    let (mut world, owner) = World::one_nests();
    let [one, other] = [(); 2].map(|()| world.asks(&owner, true));
    assert!(world.is_woken(one) && world.guards.len() == 1);
    world.poll(world.asker(one));
    assert_eq!(world.guards.len(), 2);
    world.poll(world.asker(other));
    assert_eq!((world.guards.len(), world.askers.len()), (2, 1), "they are branches of one owner");
}

#[test]
fn a_bare_request_is_refused_beside_a_bare_level_of_its_own_owner_alone() {
    let (mut world, owner) = World::one_nests();
    world.refuses = true;
    // Besides the refused ones: a `run`, a bare guard in it, and a level below that.
    let run = owner.child();
    for (asks, bare, enters) in [
        (&owner, true, false),
        (&run, false, true),
        (&run, true, true),
        (&run, true, false),
        (&run, false, true),
    ] {
        let before = world.guards.len();
        let id = world.asks(asks, bare);
        if bare && enters {
            world.poll(world.asker(id));
        }
        assert_eq!((world.guards.len() > before, world.askers.is_empty()), (enters, true));
    }
}

/// Nobody would renew what is granted then.
#[test]
fn nothing_nests_without_a_command_once_the_session_is_closed() {
    let (mut world, owner) = World::one_nests();
    world.entry.is_open = false;
    assert!(!world.enters(&owner));
}

/// The masters have not counted the levels that came and went in the hold, so nothing is owed.
#[test]
fn a_hold_is_handed_over_after_its_check_alone_whatever_came_and_went_in_it() {
    let (mut world, owner) = World::one_nests();
    world.asks(&owner.child(), false);
    let inner = world.hold_now().levels[1].owner.clone();
    assert!(world.enters(&inner));
    world.release_by(1, true);
    let check = world.begins_check();
    world.flight.push(check);
    world.all_arrive();
    let (hold, level, at) = (world.hold_now().id, world.guards[0].level, world.at());
    assert_eq!(world.entry.hand_over(hold, level, Waker::noop(), at), Ok(()));
    assert!(world.flight.is_empty() && world.entry.holds.is_empty());
}

/// In this order: 1. The outer level has a fixed lease, and a watched level nests in it. 2. From now on the
/// hold has to be renewed. 3. So the background has to look at it sooner.
#[test]
fn a_renewed_level_in_a_hold_of_fixed_lease_has_it_renewed() {
    let mut world = World::new(1);
    (world.faults, world.nests) = (false, Some(true));
    let owner = Owner::new();
    world.begin(
        owner.clone(),
        true,
        Options { lease: LEASE, fixed: true, limit: None, single_attempt: false },
    );
    world.answer(0);
    world.asks(&owner.child(), false);
    assert_eq!(world.guards.len(), 2);
    world.pass(LEASE / 3 + MOMENT);
    let sent = world.flight.iter().map(|pending| pending.call.action).collect::<Vec<_>>();
    assert!(matches!(sent[..], [Action::Renew { .. }]), "{sent:?}");
}

/// A child that leaves may have kept a sibling waiting, which is woken.
#[test]
fn a_nested_release_lets_a_sibling_in_that_waits() {
    let (mut world, owner) = World::one_nests();
    let (one, other) = (owner.child(), owner.child());
    world.asks(&one, false);
    let waits = world.asks(&other, false);
    assert_eq!((world.guards.len(), world.askers.len()), (2, 1));
    let beside = one.child();
    let before = world.guards.len();
    world.asks(&beside, false);
    assert_eq!(world.guards.len(), before + 1, "a request that nests deeper waits for nobody");
    world.release_by(2, true);
    world.release_by(1, true);
    assert!(world.is_woken(waits));
    world.poll(world.asker(waits));
    assert_eq!(world.guards.len(), 2);
}

/// In this order: 1. Two branches of an owner ask at once, which proves that they are branches. 2. Both come
/// and go. 3. The owner takes the lock and nests in it, as anybody may.
#[test]
fn branches_are_forgotten_with_the_last_level_of_their_owner_that_takes_no_command() {
    let (mut world, owner) = World::one_nests();
    let branching = owner.child();
    let [one, other] = [(); 2].map(|()| world.asks(&branching, true));
    world.poll(world.asker(one));
    world.release_by(1, true);
    world.poll(world.asker(other));
    assert_eq!(world.guards.len(), 2);
    world.release_by(1, true);
    for depth in 2..4 {
        let again = world.asks(&branching, true);
        assert!(world.askers.iter().any(|asker| asker.id == again), "it is taken for a branch");
        world.poll(world.asker(again));
        assert_eq!(world.guards.len(), depth);
    }
    assert!(world.flight.is_empty());
}
