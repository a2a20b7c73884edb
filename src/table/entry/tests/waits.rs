//! Which requests the log reports, and when.

use std::panic::Location;

use super::*;
use crate::holder::Holder;

impl World {
    /// What the log has reported of waits since the last call: how long each request has waited, and for
    /// which hold.
    fn reported(&mut self) -> Vec<(Duration, Option<String>)> {
        self.entry.check(Moment { now: self.now, slept: Duration::ZERO }, MasterSet::NONE, &self.numbers);
        let log = std::mem::take(&mut self.entry.out.made().log).into_iter();
        let waits = log.filter_map(|event| match event {
            LogEvent::Waits(wait) => Some((wait.waited, wait.by.map(|by| by.holder.hold_id().to_owned()))),
            _ => None,
        });
        waits.collect()
    }
}

#[test]
fn a_request_that_waits_is_reported_once_for_each_pause_and_not_before() {
    let mut world = World::new(1);
    world.faults = false;
    let begun = world.now;
    let holder = world.owners[0].clone();
    let hold = world.holds(&holder);
    let field = world.entry.hold(hold).unwrap().field.to_string();
    world.now += STEP;
    let [first, second] = [Owner::new(), Owner::new()].map(|owner| {
        world.now += STEP;
        world.asks(&owner, true)
    });
    assert_eq!(world.entry.queue.report_at(), Some(begun + 2 * STEP + LEASE));
    // The hold is renewed meanwhile.
    world.entry.hold(hold).unwrap().valid_until = begun + 9 * LEASE;
    world.now = begun + 2 * STEP + LEASE - Duration::from_millis(1);
    assert_eq!(world.reported(), []);
    world.now += Duration::from_millis(1);
    assert_eq!(world.reported(), [(LEASE, Some(field.clone()))]);
    assert_eq!(world.reported(), []);
    world.now += STEP;
    assert_eq!(world.reported(), [(LEASE, Some(field.clone()))], "the second one");
    world.now += LEASE;
    let twice = 2 * LEASE;
    assert_eq!(world.reported(), [(twice + STEP, Some(field.clone())), (twice, Some(field))]);
    for id in [first, second] {
        let at = world.asker(id);
        world.go(at);
    }
    assert_eq!(world.entry.queue.report_at(), None);
    world.now += LEASE;
    assert_eq!(world.reported(), []);
}

/// A request that waits again is due again. One that leaves from between others does not change their
/// reports.
#[test]
fn who_is_granted_or_goes_is_reported_no_more() {
    let mut world = World::new(1);
    world.faults = false;
    world.is_taken();
    let requests = [(); 3].map(|()| {
        let owner = Owner::new();
        let id = world.asks(&owner, true);
        if world.asker(id) == 0 {
            world.answers(id);
        }
        id
    });
    // The first one asked, was refused, and is polled: it sleeps.
    world.poll(0);
    assert!(world.entry.queue.report_at().is_some());
    let at = world.asker(requests[1]);
    world.go(at);
    world.master.free();
    world.entry.head_asks_once_more(world.now);
    world.wake();
    world.poll(world.asker(requests[0]));
    world.answers(requests[0]);
    assert_eq!(world.guards.len(), 1);
    world.now += LEASE;
    assert_eq!(world.reported().len(), 1, "the last one");
    let at = world.asker(requests[2]);
    world.go(at);
    assert!(world.entry.queue.report_at().is_none());
}

#[test]
fn who_asks_for_a_free_lock_makes_no_report_due() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    assert!(world.entry.queue.report_at().is_none());
    let _ = world.entry.leave(granted.hold, level, None, world.at());
    // A request that waits for its own process's command is not reported either.
    let asks = world.asks(&Owner::new(), true);
    assert_eq!(world.entry.queue.get(asks).map(|request| request.phase), Some(WaiterState::Waiting));
    assert!(world.entry.queue.report_at().is_none(), "it waits for a command of this process alone");
}

/// In this order: 1. The first attempt has no answer for longer than `warn_after`. 2. The request waits.
#[test]
fn who_waits_late_is_reported_at_once() {
    let mut world = World::new(1);
    world.is_taken();
    let id = world.asks(&Owner::new(), true);
    world.now += 2 * LEASE;
    world.entry.schedule_wait_report(id, Location::caller(), world.now);
    assert_eq!(world.reported(), [(2 * LEASE, None)]);
}

#[test]
fn a_holder_that_the_masters_have_named_is_reported_until_its_lease_is_over() {
    let mut world = World::new(1);
    world.is_taken();
    let id = world.asks(&Owner::new(), true);
    let pending = world.askers[0].asking.as_mut().expect("it asks");
    pending.call.report_holder = true;
    let (pending, left) = (pending.clone(), LEASE * 3 / 2);
    let busy = Reply::Busy(left, Some(Box::new(Holder::new("theirs", 1, left))));
    world.entry.conclude(&pending, Ok(&busy), Spread::default(), world.at());
    world.entry.schedule_wait_report(id, Location::caller(), world.now);
    world.now += LEASE;
    assert_eq!(world.reported(), [(LEASE, Some("theirs".to_owned()))]);
    world.now += LEASE;
    assert_eq!(world.reported(), [(2 * LEASE, None)]);
}

#[test]
fn no_wait_is_reported_where_that_is_turned_off() {
    let mut world = World::new(1);
    world.timing.warn_after = None;
    world.entry.timing = Arc::new(world.timing);
    world.is_taken();
    let id = world.asks(&Owner::new(), true);
    world.entry.schedule_wait_report(id, Location::caller(), world.now);
    world.now += 9 * LEASE;
    assert!(world.entry.queue.report_at().is_none() && world.reported().is_empty());
}

#[test]
fn what_is_used_of_a_lock_is_its_hold_and_who_waits_for_how_long() {
    let mut world = World::new(1);
    world.take();
    assert_eq!(world.entry.usage(world.at()).and_then(|usage| usage.waiting_for), None);
    for _ in 0..2 {
        world.now += STEP;
        world.asks(&Owner::new(), true);
    }
    world.now += STEP;
    let usage = world.entry.usage(world.at()).expect("it is held");
    assert_eq!((usage.hold_count, usage.held_for), (1, Some(3 * STEP)));
    assert_eq!((usage.waiting, usage.waiting_for), (2, Some(2 * STEP)));
}
