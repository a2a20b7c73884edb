//! Which requests are woken, and which sleep on.

use super::*;

impl World {
    /// Another process holds the lock, and the head, of this owner, sleeps. Then another request of this
    /// process is granted the lock.
    fn is_granted_beside_a_head(&mut self, head: &Owner, holder: &Owner) -> u64 {
        self.faults = false;
        self.is_taken();
        let head = self.asks(head, true);
        self.answers(head);
        self.master.free();
        self.begin(
            holder.clone(),
            true,
            Options { lease: LEASE, fixed: false, limit: None, single_attempt: true },
        );
        self.answer(1);
        assert_eq!(self.guards.len(), 1);
        head
    }

    fn is_asleep(&self, id: u64) -> bool {
        !self.is_woken(id) && self.entry.queue.get(id).is_some_and(Waiter::is_asleep)
    }
}

#[test]
fn a_head_that_sleeps_may_enter_a_hold_of_its_parent_that_was_granted_since() {
    let mut world = World::new(1);
    let parent = Owner::new();
    let head = world.is_granted_beside_a_head(&parent.child(), &parent);
    assert!(world.is_woken(head), "its parent, the holder, may wait for it");
}

#[test]
fn a_head_that_sleeps_is_not_woken_while_a_hold_of_its_process_lives() {
    let mut world = World::new(1);
    let head = world.is_granted_beside_a_head(&Owner::new(), &Owner::new());
    assert!(world.is_asleep(head));
    world.now += LEASE / 3;
    let sent = world.sends();
    let [renewal] = &sent[..] else { panic!("{sent:?}") };
    world.entry.conclude(renewal, Ok(&Reply::Done), Spread::default(), world.at());
    world.wake();
    assert!(world.is_asleep(head), "a renewal is no news");
}

/// The release gets no answer until then.
#[test]
fn a_head_that_sleeps_is_woken_when_the_lease_of_a_released_hold_is_over() {
    let mut world = World::new(1);
    let head = world.is_granted_beside_a_head(&Owner::new(), &Owner::new());
    world.release_by(0, true);
    let release = world.flight.remove(0);
    world.entry.conclude(&release, Err(Outcome::Unknown), Spread::default(), world.at());
    let sent = world.sends();
    let [again] = &sent[..] else { panic!("{sent:?}") };
    world.entry.conclude(again, Err(Outcome::Unknown), Spread::default(), world.at());
    world.poll(world.asker(head));
    world.answers(head);
    world.entry.put_to_sleep(head, world.now + 2 * LEASE);
    assert!(world.is_asleep(head));
    world.now += LEASE;
    world.sends();
    world.wake();
    assert!(world.is_woken(head));
}

#[test]
fn a_re_entry_is_woken_when_the_command_before_it_is_over_and_no_sooner() {
    let mut world = World::new(1);
    let owner = world.owners[0].clone();
    world.take();
    world.now += LEASE / 3;
    let sent = world.sends();
    let [renewal] = &sent[..] else { panic!("{sent:?}") };
    let inner = world.asks(&owner, false);
    let stranger = world.asks(&Owner::new(), true);
    let at = world.asker(stranger);
    world.go(at);
    assert!(!world.is_woken(inner), "the renewal is under way");
    world.entry.conclude(renewal, Ok(&Reply::Done), Spread::default(), world.at());
    world.wake();
    assert!(world.is_woken(inner));
}

/// Such branches are below a holder, so they enter its hold, one after the other.
#[test]
fn branches_below_a_holder_enter_its_hold_one_at_a_time() {
    let mut world = World::new(1);
    world.faults = false;
    let parent = Owner::new();
    let (holder, child) = (world.asks(&parent, true), parent.child());
    world.answers(holder);
    let [first, second] = [world.asks(&child, true), world.asks(&child, true)];
    let asks = |world: &World, id| world.askers[world.asker(id)].asking.is_some();
    assert!(asks(&world, first) && !asks(&world, second));
    world.answers(first);
    world.poll(world.asker(second));
    assert!(!asks(&world, second), "its fellow branch holds");
    world.release_by(1, true);
    world.arrives_by(0, Net::Answers);
    assert!(world.is_woken(second));
    world.poll(world.asker(second));
    assert!(asks(&world, second));
    assert_eq!(world.entry.live().map(Hold::count), Some(1));
    // So do branches below one of them.
    world.answers(second);
    let below = child.child();
    let [third, fourth] = [world.asks(&below, true), world.asks(&below, true)];
    world.answers(third);
    world.release_by(2, true);
    world.arrives_by(0, Net::Answers);
    world.poll(world.asker(fourth));
    assert!(asks(&world, fourth));
}

#[test]
fn branches_of_an_owner_are_proven_while_it_holds_or_asks_and_no_longer() {
    for holds in [true, false] {
        let mut world = World::new(1);
        world.faults = false;
        let owner = Owner::new();
        let [first, second] = [world.asks(&owner, true), world.asks(&owner, true)];
        let at = world.asker(second);
        world.go(at);
        if !holds {
            let at = world.asker(first);
            world.go(at);
        }
        let holder = if holds { first } else { world.asks(&owner, true) };
        if !holds {
            let end = world.sends().remove(0);
            world.entry.conclude(&end, Ok(&Reply::Done), Spread::default(), world.at());
            world.poll(world.asker(holder));
        }
        world.answers(holder);
        assert_eq!(world.guards.len(), 1);
        let next = Waiter::new(900, owner, true, world.now);
        assert_eq!(world.entry.enter_alone(next).is_err(), holds, "it may be nested, or a branch");
    }
}

/// The next request of that owner starts without branches, and requests that are nested in that one re-enter.
#[test]
fn an_owner_that_has_handed_its_hold_over_has_no_proven_branches_any_more() {
    let mut world = World::new(1);
    world.faults = false;
    let owner = Owner::new();
    let [first, second] = [world.asks(&owner, true), world.asks(&owner, true)];
    let at = world.asker(second);
    world.go(at);
    world.answers(first);
    let Grant { hold, level, .. } = *world.guards.remove(0);
    assert_eq!(world.entry.hand_over(hold, level, Waker::noop(), world.at()), Ok(()));
    world.master.free();
    let again = world.asks(&owner, true);
    world.answers(again);
    assert_eq!(world.guards.len(), 1);
    let nested = Waiter::new(900, owner, true, world.now);
    assert!(world.entry.enter_alone(nested).is_ok());
}
