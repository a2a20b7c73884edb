//! What the confirmations of several masters mean to a head that sleeps.

use super::*;
use crate::table::entry::Subscription;
use crate::table::queue::{Waiter, WaiterState};

/// What a majority of three masters publishes is reported by one of two.
#[test]
fn a_head_asks_again_once_each_majority_has_a_master_that_confirmed() {
    let nobody: Weak<dyn OwnerEnds> = Weak::<Nobody>::new();
    let position = Position { session: nobody, name: "stock".into() };
    let terms = Terms { masters: 3, ..World::new(1).terms };
    let mut entry = LockEntry::new(Arc::new(Keys::new("", "stock")), position, terms);
    let now = Instant::now();
    let (at, later) = (Moment { now, slept: Duration::ZERO }, now + LEASE);
    let owner = Owner::new();
    entry.enter(Waiter::new(1, owner, false, now)).unwrap();
    entry.subscription = Subscription::by(MasterSet::NONE);
    let mut asks_behind = |master: usize| {
        entry.sleeps(1, later);
        entry.subscribed(master, at);
        entry.queue.get(1).is_some_and(|request| request.phase == WaiterState::Waiting)
    };
    assert!(asks_behind(0));
    assert!(!asks_behind(0), "it was subscribed there before");
    assert!(asks_behind(1));
    assert!(!asks_behind(1), "it was subscribed there before");
    assert!(!asks_behind(2), "one that a majority has reports");
}

/// A message that was published before did not arrive.
#[test]
fn a_head_asks_again_when_a_subscription_is_lost() {
    let mut world = World::new(1);
    world.is_taken();
    let head = world.asks(&Owner::new(), true);
    world.answers(head);
    world.entry.subscription_change();
    world.entry.unsubscribed(0, world.at());
    world.wake();
    assert!(!world.is_woken(head), "there was none");
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

/// Whoever is behind a hold of this process waits for its end, and whoever asks does not wait yet.
#[test]
fn a_subscription_is_wanted_while_a_stranger_waits_and_no_longer() {
    let mut world = World::new(1);
    world.faults = false;
    let first = world.asks(&Owner::new(), true);
    assert!(world.entry.subscription.is_off(), "it asks");
    world.answers(first);
    assert!(world.entry.subscription.is_off(), "it holds");
    world.begin(Owner::new(), true, Options { lease: LEASE, fixed: false, limit: None, once: true });
    assert!(world.entry.subscription.is_off(), "it asks beside the hold");
    world.go(0);
    let second = world.asks(&Owner::new(), true);
    assert!(!world.entry.subscription.is_off());
    let at = world.asker(second);
    world.go(at);
    assert!(world.entry.subscription.is_off());
}
