//! What the confirmations of several masters mean to a head that sleeps.

use super::*;
use crate::table::entry::Subscription;
use crate::table::queue::{Waiter, WaiterState};

/// A message that a majority of three masters publishes comes from at least one of any two.
#[test]
fn a_head_asks_again_once_each_majority_has_a_master_that_confirmed() {
    let nobody: Weak<dyn OwnerEnds> = Weak::<Nobody>::new();
    let position = Position { session: nobody, name: "stock".into() };
    let timing = Timing { masters: 3, ..World::new(1).timing };
    let mut entry = LockEntry::new(Arc::new(Keys::new("", "stock")), position, timing);
    let now = Instant::now();
    let (at, later) = (Moment { now, slept: Duration::ZERO }, now + LEASE);
    let owner = Owner::new();
    entry.enter_alone(Waiter::new(1, owner, false, now)).unwrap();
    entry.subscription = Subscription::by(MasterSet::NONE);
    let mut asks_after = |master: usize| {
        entry.put_to_sleep(1, later);
        entry.subscribed(master, at);
        entry.queue.get(1).is_some_and(|request| request.phase == WaiterState::Waiting)
    };
    assert!(asks_after(0));
    assert!(!asks_after(0), "it was subscribed there before");
    assert!(asks_after(1));
    assert!(!asks_after(1), "it was subscribed there before");
    assert!(!asks_after(2), "one that a majority has reports");
}

/// A message that was published before that did not arrive.
#[test]
fn a_head_asks_again_when_a_subscription_is_lost() {
    let mut world = World::new(1);
    world.is_taken();
    let head = world.asks(&Owner::new(), true);
    world.answers(head);
    world.entry.subscription_change(world.now);
    world.entry.unsubscribed(0, world.at());
    world.wake();
    assert!(!world.is_woken(head), "there was no subscription to lose");
    world.entry.subscribed(0, world.at());
    world.wake();
    world.poll(world.asker(head));
    world.answers(head);
    assert!(!world.is_woken(head) && world.entry.is_subscribed());
    world.entry.unsubscribed(0, world.at());
    assert!(!world.entry.is_subscribed());
    world.wake();
    assert!(world.is_woken(head));
}

/// A request behind a hold of its own process counts as waiting; one that asks does not.
#[test]
fn a_subscription_is_wanted_while_a_stranger_waits_and_no_longer() {
    let mut world = World::new(1);
    world.faults = false;
    let first = world.asks(&Owner::new(), true);
    assert!(world.entry.subscription.is_none(), "it asks");
    world.answers(first);
    assert!(world.entry.subscription.is_none(), "it holds");
    world.begin(
        Owner::new(),
        true,
        Options { lease: LEASE, fixed: false, limit: None, single_attempt: true },
    );
    assert!(world.entry.subscription.is_none(), "it asks beside the hold");
    world.go(0);
    let second = world.asks(&Owner::new(), true);
    assert!(world.entry.subscription.is_some());
    let at = world.asker(second);
    world.go(at);
    assert!(world.entry.subscription.is_none());
}

/// A request leaves as soon as it waits. Hints about the lock have a channel of their own.
fn waits_for_a_moment(world: &mut World) {
    let id = world.asks(&Owner::new(), true);
    world.answers(id);
    world.entry.hints_of_lock(true, world.now);
    world.wake();
    let at = world.asker(id);
    world.go(at);
}

#[test]
fn a_subscription_with_hints_of_its_own_ends_a_while_after_the_last_wait() {
    let mut world = World::new(1);
    world.faults = false;
    world.is_taken();
    waits_for_a_moment(&mut world);
    let ends = world.now + Duration::from_secs(1);
    assert_eq!(world.entry.due(), Some(ends), "the background ends it");
    assert!(!world.entry.is_empty(), "reports of the subscription need the entry");
    world.now += Duration::from_millis(600);
    // The time counts from the last wait.
    waits_for_a_moment(&mut world);
    world.now = ends;
    world.wake();
    assert!(world.entry.subscription.is_some());
    // A request that asks does not wait.
    let id = world.asks(&Owner::new(), true);
    assert_eq!(world.entry.due().filter(|due| *due <= world.now), None);
    let at = world.asker(id);
    world.go(at);
    world.now = ends + Duration::from_millis(600);
    world.wake();
    assert!(world.entry.subscription.is_none());
}

#[test]
fn a_subscription_ends_with_the_wait_where_no_hints_reach_it_and_in_a_session_that_is_closed() {
    for (hints, is_open) in [(false, true), (true, false)] {
        let mut world = World::new(1);
        world.faults = false;
        world.is_taken();
        waits_for_a_moment(&mut world);
        assert!(world.entry.subscription.is_some());
        world.entry.hints_of_lock(hints, world.now);
        world.entry.is_open = is_open;
        world.wake();
        assert!(world.entry.subscription.is_none(), "{hints} {is_open}");
    }
}
