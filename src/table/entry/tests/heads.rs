//! Heads that ask, sleep, or are not polled, and what others may do meanwhile.

use super::*;

impl World {
    /// Returns what a request of this owner that does not wait has to do. The request leaves at once, unless
    /// it has to ask.
    fn tries(&mut self, owner: &Owner) -> Admission {
        let (id, command_id) = (self.number(), self.number());
        self.entry.enter_alone(Waiter::new(id, owner.clone(), true, self.now)).unwrap();
        let lease = self.timing.lease;
        let ask = AcquireParams { single_attempt: true, ..AcquireParams::plain(command_id, lease) };
        let turn = self.entry.admit(id, ask, self.at());
        if let Admission::Ask(pending) = &turn {
            self.entry.conclude(pending, Ok(&Reply::busy(LEASE)), Spread::default(), self.at());
        }
        let _gone = self.entry.leave_queue(id, self.now);
        turn
    }

    fn is_refused(&mut self) -> bool {
        let turn = self.tries(&Owner::new());
        assert!(matches!(turn, Admission::Ask(_) | Admission::Refused(_)), "{turn:?}");
        !matches!(turn, Admission::Ask(_))
    }

    fn sleeps(&self, id: u64) -> bool {
        !self.is_woken(id) && self.askers[self.asker(id)].asking.is_none()
    }
}

/// Another process holds the lock. A head that asks, or is about to, finds out for both; one that sleeps may
/// sleep for long.
#[test]
fn a_request_that_does_not_wait_asks_beside_a_head_that_sleeps() {
    let mut world = World::new(1);
    world.is_taken();
    let head = world.asks(&Owner::new(), true);
    assert!(world.is_refused(), "the head asks");
    world.answers(head);
    assert!(!world.is_refused(), "the head sleeps");
    world.entry.head_asks_once_more(world.now);
    assert!(world.is_refused(), "the head is woken");
}

/// A head was woken, its future is not polled, and the background has not looked since.
#[test]
fn a_request_that_does_not_wait_passes_over_a_head_that_does_not_come() {
    let mut world = World::new(1);
    world.is_taken();
    let head = world.asks(&Owner::new(), true);
    world.answers(head);
    world.entry.head_asks_once_more(world.now);
    world.now += Duration::from_millis(49);
    assert!(world.is_refused(), "it may still be polled");
    world.now += Duration::from_millis(1);
    assert!(!world.is_refused());
}

/// The head is woken by the end of that hold; until then the server has nothing new to report.
#[test]
fn a_head_behind_a_hold_of_its_own_process_asks_nobody() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    let head = world.asks(&Owner::new(), true);
    assert!(world.sleeps(head));
    let command_id = world.number();
    let Continue(release) = world.entry.leave(granted.hold, level, Some(command_id), world.at()) else {
        panic!("it is held")
    };
    world.entry.conclude(&release, Ok(&Reply::Done), Spread::default(), world.at());
    world.wake();
    assert!(world.is_woken(head));
    world.poll(world.asker(head));
    assert!(world.askers[world.asker(head)].asking.is_some());
}

/// Only the head is woken by the answer to that end. Other requests would run out of time during a later end,
/// and report that the server does not answer. A request for several names would keep the others.
#[test]
fn only_the_head_waits_for_the_end_of_a_hold_of_its_process() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    let [head, other] = [(); 2].map(|()| world.asks(&Owner::new(), true));
    let command_id = world.number();
    let step = world.entry.leave(granted.hold, level, Some(command_id), world.at());
    assert!(matches!(step, Continue(_)));
    let lease = world.timing.lease;
    let mut turn = |id| {
        let ask = AcquireParams::plain(world.number(), lease);
        world.entry.admit(id, ask, world.at())
    };
    assert!(matches!(turn(other), Admission::Refused(None)));
    assert!(matches!(turn(head), Admission::Wait(_)));
}

/// First, another process holds the lock. 1. A head is not polled, and the next request asks instead. The
/// masters' votes are split, so that one pauses. 2. The first one is polled, and is the front again. 3. The
/// pause of the second one ends without effect. 4. The first one goes.
#[test]
fn a_new_head_asks_though_its_pause_was_over_when_another_was_before_it() {
    let mut world = World::new(1);
    world.faults = false;
    world.is_taken();
    let [first, second] = [Owner::new(), Owner::new()].map(|owner| world.asks(&owner, true));
    world.answers(first);
    world.entry.head_asks_once_more(world.now);
    while !world.is_woken(second) {
        world.pass(STEP);
    }
    world.poll(world.asker(second));
    let (at, pause) = (world.asker(second), world.now + 5 * STEP);
    let pending = world.askers[at].asking.take().expect("the request may ask");
    world.entry.conclude(&pending, Ok(&Reply::busy(LEASE)), Spread::default(), world.at());
    world.entry.refused(second, Refusal { split: true, ..Refusal::until(pause) });
    world.poll(at);
    world.entry.head_asks_once_more(world.now);
    world.wake();
    assert!(world.sleeps(second), "the votes would be split again");
    world.poll(world.asker(first));
    world.answers(first);
    world.now = pause;
    world.poll(world.asker(second));
    assert!(world.sleeps(second), "the first one is before it");
    let at = world.asker(first);
    world.go(at);
    assert!(world.is_woken(second), "nobody of this process asks for the lock");
}

/// In this order: 1. A full server refuses a re-entry, which pauses. 2. The pause ends while the hold is
/// settled. 3. The settle is answered.
#[test]
fn a_re_entry_whose_pause_was_over_during_a_settle_is_woken_after_it() {
    let mut world = World::new(1);
    let (owner, pause) = (world.owners[0].clone(), world.now + STEP);
    world.take();
    let inner = world.asks(&owner, false);
    let at = world.asker(inner);
    let nested = world.askers[at].asking.take().expect("it may enter");
    world.entry.conclude(&nested, Err(Outcome::NotRun), Spread::default(), world.at());
    world.entry.put_to_sleep(inner, pause);
    world.poll(at);
    world.entry.doubt_all(world.now);
    let sent = world.sends();
    let [settle] = &sent[..] else { panic!("{sent:?}") };
    world.now = pause;
    world.poll(at);
    assert!(world.sleeps(inner));
    world.entry.conclude(settle, Ok(&Reply::Done), Spread::default(), world.at());
    world.wake();
    assert!(world.is_woken(inner));
}

#[test]
fn a_re_entry_asks_for_the_count_that_must_stand() {
    let mut world = World::new(1);
    let owner = Owner::new();
    for depth in 1..4 {
        let id = world.asks(&owner, false);
        let asked = world.askers[world.asker(id)].asking.as_ref().expect("it may enter").call.action;
        assert!(matches!(asked, Action::Acquire { count, .. } if count == depth), "{depth}: {asked:?}");
        world.answers(id);
    }
}

/// Such a wait can hardly end: the holder waits for the request.
#[test]
fn a_wait_for_an_owner_in_whose_scope_the_request_runs_is_reported_once() {
    let mut world = World::new(1);
    let (holder, stranger) = (world.owners[0].clone(), Owner::new());
    world.take();
    let inner = holder.child();
    world.takes_for(&inner, LEASE);
    let mut reports = |owner: &Owner, ambient: &Owner| {
        let id = world.number();
        world.entry.enter_alone(Waiter::new(id, owner.clone(), false, world.now)).unwrap();
        for command_id in [2 * id + 900, 2 * id + 901] {
            let lease = world.timing.lease;
            let ask = AcquireParams::plain(command_id, lease);
            world.entry.admit(id, ask, world.at());
            world.entry.warn_of_self_wait(id, |owner| ambient.is_within(owner));
        }
        let log = std::mem::take(&mut world.entry.out.made().log);
        log.iter().filter(|event| matches!(event, LogEvent::SelfWait { .. })).count()
    };
    assert_eq!(reports(&stranger, &holder), 1);
    assert_eq!(reports(&stranger, &inner.child()), 1);
    assert_eq!(reports(&stranger, &stranger), 0, "in nobody's scope");
    assert_eq!(reports(&holder.child(), &holder), 0, "its sibling can go on");
    assert_eq!(reports(&holder.child(), &inner), 1, "its sibling waits for it");
}

/// The guard of the lost hold is kept. A minority of the masters may still have the hold, or none.
#[test]
fn a_lost_hold_fails_requests_below_it_and_no_others() {
    for remains in [MasterSet::NONE, MasterSet::one(2)] {
        let mut world = World::new(1);
        let holder = world.owners[0].clone();
        world.take();
        world.now += LEASE / 3;
        let sent = world.sends();
        let [renewal] = &sent[..] else { panic!("{sent:?}") };
        let spread = Spread { remains, ..Spread::default() };
        world.entry.conclude(renewal, Ok(&Reply::Gone), spread, world.at());
        let turn = world.tries(&holder.child());
        assert!(matches!(turn, Admission::Lost(Loss::Gone)), "{turn:?}, {remains:?}");
        assert!(!world.is_refused());
    }
}

/// In this order: 1. The lock of a hold of this process is released by force, and the process does not
/// notice. 2. A request that does not wait is granted the lock.
#[test]
fn a_hold_is_lost_where_another_is_granted_its_lock() {
    let mut world = World::new(1);
    world.faults = false;
    let holder = world.asks(&Owner::new(), true);
    world.answers(holder);
    world.master.free();
    world.begin(
        Owner::new(),
        true,
        Options { lease: LEASE, fixed: false, limit: None, single_attempt: true },
    );
    world.answer(0);
    let losses: Vec<_> = world.guards.iter().map(|guard| guard.signal.loss()).collect();
    assert_eq!(losses, [Some(Loss::Gone), None]);
    assert_eq!(world.entry.live().map(|live| live.id), Some(world.guards[1].hold));
}
