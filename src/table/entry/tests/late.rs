//! Answers, requests and ends that are looked at late, after something has changed.

use super::*;

pub(super) const MOMENT: Duration = Duration::from_millis(1);

impl World {
    /// A request of this owner that has begun and was polled once. Returns its number.
    pub(super) fn asks(&mut self, owner: &Owner, bare: bool) -> u64 {
        let here = if !bare && self.nests.is_some() { self.nests_here(owner) } else { None };
        let (id, lease, flag) = (self.number(), self.timing.lease, Arc::<Flag>::default());
        if here == Some(true) {
            return id;
        }
        let guards = self.guards.len();
        let request = Waiter::new(id, owner.clone(), bare, self.now);
        self.entry.enter_alone(request.taking(true)).unwrap();
        self.askers.push(Asker {
            id,
            flag,
            nap: None,
            lease,
            fixed: false,
            limit: None,
            single_attempt: false,
            asking: None,
            known: false,
        });
        self.poll(self.asker(id));
        assert!(here.is_none() || self.guards.len() > guards, "granted by `nest`, but not by its queue");
        id
    }

    pub(super) fn asker(&self, id: u64) -> usize {
        self.askers.iter().position(|asker| asker.id == id).unwrap()
    }

    /// The command of this request is answered without a fault.
    pub(super) fn answers(&mut self, id: u64) {
        self.faults = false;
        self.answer(self.asker(id));
    }

    pub(super) fn is_woken(&self, id: u64) -> bool {
        self.askers[self.asker(id)].flag.0.load(SeqCst)
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.check();
    }

    /// Another process takes the free lock for a long time.
    pub(super) fn is_taken(&mut self) {
        assert!(self.master.key.is_none());
        self.master.key = Some(("another".into(), 1, self.now + 100 * LEASE));
    }
}

/// In this order: 1. Another process holds the lock, and two requests of this one wait. 2. The lock is
/// released. The first request is woken, is not polled, and is passed over. 3. The second one is granted the
/// lock, is not polled either, and its grant is undone. 4. Another process takes the lock. 5. The first one
/// is polled, asks, and sleeps. 6. The second one finds that its grant was in vain. 7. The first one goes.
#[test]
fn who_was_granted_in_vain_is_woken_when_it_is_the_front() {
    let mut world = World::new(1);
    world.faults = false;
    world.is_taken();
    let [first, second] = [Owner::new(), Owner::new()].map(|owner| world.asks(&owner, true));
    world.answers(first);
    (world.master.key, world.master.messages) = (None, 1);
    world.confirm();
    // The first one is woken, but not polled, until it is passed over.
    while !world.is_woken(second) {
        world.pass(STEP);
    }
    world.poll(world.asker(second));
    let pending = world.askers[world.asker(second)].asking.clone().expect("the request may ask");
    assert_eq!(world.master.run(&pending, world.now), Reply::Done);
    world.pass(world.timing.patience + MOMENT);
    while world.master.key.is_some() {
        world.arrives();
        world.pass(STEP);
    }
    world.is_taken();
    world.poll(world.asker(first));
    world.answers(first);
    let at = world.asker(second);
    let pending = world.askers[at].asking.take().unwrap();
    world.grant(at, &pending);
    let at = world.asker(first);
    world.go(at);
    assert!(world.is_woken(second), "it still sleeps, though nobody of this process asks");
}

/// In this order: 1. A child asks to re-enter. 2. Its last scope ends, so the request passes to its parent.
/// 3. Another branch of the parent holds the lock.
#[test]
fn a_re_entry_is_undone_where_the_hold_does_not_admit_it_any_more() {
    let mut world = World::new(1);
    world.faults = false;
    let parent = Owner::new();
    let child = parent.child();
    let [one, two] = [world.asks(&parent, true), world.asks(&parent, true)];
    world.answers(one);
    let asks = world.asks(&child, true);
    assert!(world.askers[world.asker(asks)].asking.is_some(), "it may enter its parent's hold");
    child.enter();
    child.clone().leave();
    world.entry.owner_ended(&child, world.now);
    world.answers(asks);
    let hold = world.entry.live().unwrap();
    assert_eq!((hold.levels.len(), hold.is_unsettled()), (1, true), "two branches of one owner hold it");
    let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
    assert!(
        matches!(commands[..], [Pending { call: Call { action: Action::Settle { count: 1, .. }, .. }, .. }]),
        "{commands:?}"
    );
    assert!(world.askers[world.asker(two)].asking.is_none());
}

impl World {
    /// Makes a hold whose outer level ends after a second, by `max_hold`.
    fn is_held_for_a_second(&mut self) -> Owner {
        let owner = Owner::new();
        let id = self.asks(&owner, false);
        let at = self.asker(id);
        self.askers[at].limit = Some(Duration::from_secs(1));
        self.answers(id);
        assert_eq!(self.guards.len(), 1);
        owner
    }
}

/// The background has not looked yet.
#[test]
fn nothing_is_nested_in_a_level_whose_max_hold_is_over() {
    let mut world = World::new(1);
    let owner = world.is_held_for_a_second();
    world.now += Duration::from_secs(1);
    let id = world.number();
    world.entry.enter_alone(Waiter::new(id, owner, true, world.now)).unwrap();
    let ask = AcquireParams::plain(99, world.timing.lease);
    let turn = world.entry.admit(id, ask, world.at());
    assert!(matches!(turn, Admission::Lost(Loss::MaxHold)), "{turn:?}");
    assert_eq!(world.guards[0].signal.loss(), Some(Loss::MaxHold));
}

/// In this order: 1. A re-entry is requested. 2. The `max_hold` of the outer level is over. 3. The re-entry
/// is granted.
#[test]
fn a_re_entry_is_undone_where_the_level_that_it_is_nested_in_is_over() {
    let mut world = World::new(1);
    let owner = world.is_held_for_a_second();
    let id = world.asks(&owner, true);
    assert!(world.askers[world.asker(id)].asking.is_some());
    world.now += Duration::from_secs(1);
    world.answers(id);
    assert!(world.askers.is_empty(), "it ends with what it would have been nested in");
    assert_eq!((world.guards.len(), world.granted), (1, 1));
}

/// In this order: 1. A renewal, or a settle, is sent. 2. The process stops until the hold is over. 3. It
/// continues, and reads the answer.
#[test]
fn an_answer_past_the_end_of_a_hold_does_not_make_it_good_again() {
    for settles in [false, true] {
        let mut world = World::new(1);
        let (pending, _) = world.take();
        let end = world.entry.live().unwrap().deadline();
        world.now = end - MOMENT;
        if settles {
            world.entry.doubt_all(world.now);
        }
        let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
        let [sent] = &commands[..] else { panic!("{commands:?}") };
        world.now = end;
        world.entry.conclude(sent, Ok(&Reply::Done), Spread::default(), world.at());
        let hold = world.entry.hold(pending.hold).unwrap();
        assert_eq!(hold.loss(), Some(Loss::Expired));
        assert!(hold.deadline() <= end);
    }
}

/// The third master has not answered the command that makes the field there: the acquire, or a repair.
#[test]
fn what_ran_on_a_master_after_the_end_of_its_hold_is_ended_there() {
    let third = MasterSet::one(2);
    // Whether its answer is read before the end's verdict, and whether the end found the field there; `None`
    // if the end has no answer there yet.
    for repair in [false, true] {
        for (before, found, ends) in [
            (true, Some(false), 1),
            (true, Some(true), 0),
            (true, None, 1),
            (false, Some(false), 1),
            (false, None, 1),
        ] {
            let mut world = World::new(1);
            let (mut pending, level) = world.take();
            let (at, timing) = (world.at(), world.timing);
            if repair {
                pending.call.action = Action::Repair { count: 1, lease: timing.lease };
            }
            let Continue(end) = world.entry.leave(pending.hold, level, Some(98), at) else {
                panic!("it is held")
            };
            let made = |entry: &mut LockEntry| entry.straggled(&pending, 2, LateAnswer::Done, at.now);
            if before {
                made(&mut world.entry);
            }
            let spread = match found {
                Some(false) => Spread { missing: third, ..Spread::default() },
                Some(true) => Spread::default(),
                None => Spread { unanswered: third, ..Spread::default() },
            };
            world.entry.conclude(&end, Ok(&Reply::Done), spread, at);
            if !before {
                made(&mut world.entry);
            }
            if found.is_none() {
                world.entry.straggled(&end, 2, LateAnswer::Missing, at.now);
            }
            world.now += Duration::from_secs(1);
            let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
            let case = format!("repair {repair}, before {before}, found {found:?}: {commands:?}");
            assert_eq!(commands.len(), ends, "{case}");
            for again in &commands {
                assert_eq!((again.call.action, again.masters), (Action::END, third), "{case}");
                world.entry.conclude(again, Ok(&Reply::Done), Spread::default(), world.at());
            }
            assert!(world.entry.is_empty(), "{case}");
        }
    }
}

/// In this order: 1. An acquire waits to be sent. 2. Its hold is given up, and its end runs. 3. The acquire
/// runs. 4. Its future reads the answer, or is dropped, or is answered that others refuse.
#[test]
fn what_an_acquire_makes_after_the_end_of_its_hold_is_ended() {
    for confirmed in [false, true] {
        for how in ["granted", "dropped", "refused"] {
            let mut world = World::new(1);
            world.faults = false;
            let [first, _] = [Owner::new(), Owner::new()].map(|owner| world.asks(&owner, true));
            world.pass(world.timing.patience + MOMENT);
            let end = world.flight.pop().expect("its end is sent");
            assert_eq!(world.master.run(&end, world.now), Reply::Gone);
            let missing = Spread { missing: MasterSet::one(0), ..Spread::default() };
            let moment = world.at();
            if confirmed {
                world.entry.conclude(&end, Ok(&Reply::Gone), missing, moment);
            }
            let at = world.asker(first);
            let pending = world.askers[at].asking.take().unwrap();
            assert_eq!(world.master.run(&pending, world.now), Reply::Done);
            match how {
                "granted" => world.grant(at, &pending),
                "dropped" => {
                    world.entry.conclude(&pending, Err(Outcome::Unknown), Spread::default(), world.at());
                }
                _ => {
                    let remains = Spread { remains: MasterSet::one(0), ..Spread::default() };
                    let refused = Reply::busy(LEASE);
                    world.entry.conclude(&pending, Ok(&refused), remains, world.at());
                }
            }
            if !confirmed {
                world.entry.conclude(&end, Ok(&Reply::Gone), missing, moment);
            }
            assert_eq!(world.granted, 0);
            for _ in 0..100 {
                world.pass(STEP);
                world.arrives();
            }
            assert!(world.master.key.is_none(), "{how}, confirmed {confirmed}: it stays for a lease");
        }
    }
}

impl World {
    /// Returns an acquire that waits to be sent, and the end of its hold, which was given up.
    fn is_given_up(&mut self) -> (Pending, Pending) {
        let [first, _] = [Owner::new(), Owner::new()].map(|owner| self.asks(&owner, true));
        self.now += self.timing.patience;
        let mut sent = self.sends();
        assert!(matches!(&sent[..], [end] if end.is_end()), "{sent:?}");
        let at = self.asker(first);
        (self.askers[at].asking.take().unwrap(), sent.remove(0))
    }
}

/// In this order: 1. The end of a hold that was given up does not reach the third master. 2. The acquire runs, on all of them.
#[test]
fn what_an_acquire_makes_on_all_masters_is_ended_on_all_though_the_third_alone_was_left() {
    let third = MasterSet::one(2);
    let mut world = World::new(1);
    let (acquire, end) = world.is_given_up();
    let spread = Spread { remains: third, missing: MasterSet::first(2), ..Spread::default() };
    world.entry.conclude(&end, Ok(&Reply::Gone), spread, world.at());
    world.entry.conclude(&acquire, Err(Outcome::Unknown), Spread::default(), world.at());
    let sent = world.sends();
    let [again] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((again.call.action, again.masters), (Action::END, MasterSet::first(MasterSet::MOST)));
}

/// In this order: 1. An acquire runs, and its hold is given up. 2. The end runs. 3. Both answers are read,
/// the one to the acquire first.
#[test]
fn nothing_is_ended_again_where_the_end_has_found_what_the_acquire_made() {
    let mut world = World::new(1);
    let (acquire, end) = world.is_given_up();
    world.entry.conclude(&acquire, Err(Outcome::Unknown), Spread::default(), world.at());
    world.entry.conclude(&end, Ok(&Reply::Done), Spread::default(), world.at());
    world.now += 4 * world.timing.retry;
    let sent = world.sends();
    assert!(sent.is_empty(), "{sent:?}");
}

/// In this order: 1. The acquire is late on the third master, so a renewal finds nothing there. 2. The
/// acquire runs there, and a repair is sent. 3. The end of the hold finds what the acquire has made. 4. The
/// repair runs.
#[test]
fn what_a_repair_makes_after_the_end_is_ended_though_the_end_found_a_field() {
    let third = MasterSet::one(2);
    let mut world = World::new(1);
    let (acquire, level) = world.take();
    let lacking = Spread { lacking: third, ..Spread::default() };
    world.now += LEASE / 3;
    let due = |world: &mut World| world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
    let renewal = due(&mut world).remove(0);
    world.entry.straggled(&acquire, 2, LateAnswer::Done, world.now);
    world.entry.conclude(&renewal, Ok(&Reply::Done), lacking, world.at());
    let repair = due(&mut world).remove(0);
    assert_eq!(repair.masters, third);
    world.entry.conclude(&repair, Ok(&Reply::Done), Spread::default(), world.at());
    let Continue(end) = world.entry.leave(acquire.hold, level, Some(98), world.at()) else {
        panic!("it is held")
    };
    world.entry.straggled(&repair, 2, LateAnswer::Done, world.now);
    let stranger = world.asks(&Owner::new(), true);
    let at = world.asker(stranger);
    assert!(world.askers[at].asking.is_none(), "it would meet the hold of its own process");
    world.go(at);
    world.entry.conclude(&end, Ok(&Reply::Done), Spread::default(), world.at());
    world.now += Duration::from_secs(1);
    let again = due(&mut world);
    let [again] = &again[..] else { panic!("{again:?}") };
    assert_eq!((again.call.action, again.masters), (Action::END, third));
    world.entry.conclude(again, Ok(&Reply::Done), Spread::default(), world.at());
    assert!(world.entry.is_empty(), "and no more");
}

/// In this order: 1. The acquire is late on the third master, and a renewal finds nothing there. 2. The
/// acquire runs there. 3. The renewal finds nothing on the others: their keys have expired.
#[test]
fn what_an_acquire_makes_after_the_renewal_that_finds_its_hold_gone_is_ended() {
    let third = MasterSet::one(2);
    let mut world = World::new(1);
    let (acquire, level) = world.take();
    world.now += LEASE / 3;
    let renewal = world.entry.check(world.at(), MasterSet::NONE, &world.numbers).remove(0);
    world.entry.straggled(&acquire, 2, LateAnswer::Done, world.now);
    let missing = Spread { missing: MasterSet::first(3), ..Spread::default() };
    let meaning = world.entry.conclude(&renewal, Ok(&Reply::Gone), missing, world.at());
    assert_eq!(meaning, Meaning::Lost(Loss::Gone));
    let _ = world.entry.leave(acquire.hold, level, None, world.at());
    world.now += Duration::from_secs(1);
    let again = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
    let [again] = &again[..] else { panic!("{again:?}") };
    assert_eq!((again.call.action, again.masters), (Action::END, third));
}

/// In this order: 1. A repair gets no answer in time, and waits in a connection that is replaced. 2. The end
/// of the hold finds nothing. 3. The repair runs.
#[test]
fn what_had_no_answer_on_a_master_is_ended_there_twice() {
    let third = MasterSet::one(2);
    for straggles in [false, true] {
        let mut world = World::new(1);
        let (mut repair, level) = world.take();
        let at = world.at();
        repair.call.action = Action::Repair { count: 2, lease: world.timing.lease };
        world.entry.straggled(&repair, 2, LateAnswer::Unknown, at.now);
        let Continue(end) = world.entry.leave(repair.hold, level, Some(98), at) else { panic!("it is held") };
        let spread = match straggles {
            true => Spread { unanswered: third, ..Spread::default() },
            false => Spread { missing: third, ..Spread::default() },
        };
        world.entry.conclude(&end, Ok(&Reply::Done), spread, at);
        if straggles {
            world.entry.straggled(&end, 2, LateAnswer::Missing, at.now);
        }
        assert!(world.entry.check(at, MasterSet::NONE, &world.numbers).is_empty(), "not at once");
        world.now += 2 * world.timing.retry;
        let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
        let [again] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!((again.call.action, again.masters), (Action::END, third));
        let missing = Spread { missing: third, ..Spread::default() };
        world.entry.conclude(again, Ok(&Reply::Done), missing, world.at());
        assert!(world.entry.is_empty(), "and no more");
    }
}

/// In this order: 1. An acquire is given up on the third master, where it waits in a connection that is
/// replaced. 2. Both other masters grant it, or one does, or none. 3. Its end finds nothing on the third.
/// 4. The acquire runs there.
#[test]
fn what_was_given_up_on_a_master_before_the_verdict_is_ended_there_twice() {
    let third = MasterSet::one(2);
    let missing = Spread { missing: third, ..Spread::default() };
    for verdict in [Ok(Reply::Done), Ok(Reply::busy(LEASE)), Err(Outcome::Unknown)] {
        let mut world = World::new(1);
        let spread = Spread { remains: third, given_up: third, ..Spread::default() };
        let end = match &verdict {
            Ok(Reply::Done) => {
                let spread = Spread { given_up: third, ..Spread::default() };
                let (acquire, level) = world.take_with(spread, |_| ());
                match world.entry.leave(acquire.hold, level, Some(98), world.at()) {
                    Continue(end) => end,
                    _ => panic!("it is held"),
                }
            }
            other => {
                let id = world.asks(&Owner::new(), true);
                let at = world.asker(id);
                let acquire = world.askers[at].asking.take().unwrap();
                world.entry.conclude(
                    &acquire,
                    other.as_ref().map_err(|outcome| *outcome),
                    spread,
                    world.at(),
                );
                let mut due = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
                assert_eq!(due.len(), 1, "{verdict:?}");
                due.remove(0)
            }
        };
        assert_eq!(end.call.action, Action::END, "{verdict:?}");
        world.entry.conclude(&end, Ok(&Reply::Done), missing, world.at());
        assert!(world.entry.check(world.at(), MasterSet::NONE, &world.numbers).is_empty(), "not at once");
        world.now += 2 * world.timing.retry;
        let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
        let [again] = &commands[..] else { panic!("{verdict:?}: {commands:?}") };
        assert_eq!((again.call.action, again.masters), (Action::END, third));
    }
}

/// In this order: 1. An acquire is given up on the third master, where it waits in a connection that is replaced. 2. A repair makes the
/// field there. 3. The end of the hold finds that. 4. The acquire runs there.
#[test]
fn what_was_given_up_on_a_master_and_repaired_there_is_ended_there_twice() {
    let third = MasterSet::one(2);
    for straggles in [false, true] {
        let mut world = World::new(1);
        let spread = Spread { given_up: third, lacking: third, ..Spread::default() };
        let (acquire, level) = world.take_with(spread, |_| ());
        let repairs = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
        let [repair] = &repairs[..] else { panic!("{repairs:?}") };
        assert_eq!(repair.masters, third);
        world.entry.conclude(repair, Ok(&Reply::Done), Spread::default(), world.at());
        let Continue(end) = world.entry.leave(acquire.hold, level, Some(98), world.at()) else {
            panic!("it is held")
        };
        let unanswered = if straggles { third } else { MasterSet::NONE };
        world.entry.conclude(&end, Ok(&Reply::Done), Spread { unanswered, ..Spread::default() }, world.at());
        if straggles {
            world.entry.straggled(&end, 2, LateAnswer::Done, world.now);
        }
        world.now += 2 * world.timing.retry;
        let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
        let [again] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!((again.call.action, again.masters), (Action::END, third));
        world.entry.conclude(again, Ok(&Reply::Done), Spread::default(), world.at());
        assert!(world.entry.is_empty(), "and no more");
    }
}

impl World {
    /// Checks that the end is sent to the third master alone, and only after the pause of a retry.
    fn ends_at_third(&mut self) -> Pending {
        assert!(self.sends().is_empty(), "not at once");
        self.now += 4 * self.timing.retry;
        let mut sent = self.sends();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!((sent[0].call.action, sent[0].masters), (Action::END, MasterSet::one(2)));
        sent.remove(0)
    }

    /// The third master answers that end: the field is not there.
    fn misses_at_third(&mut self, end: &Pending) {
        let missing = Spread { missing: MasterSet::one(2), ..Spread::default() };
        self.entry.conclude(end, Ok(&Reply::Done), missing, self.at());
    }
}

/// In this order: 1. An acquire is given up on the third master, where it waits in a connection that is replaced. 2. The first end does
/// not run there. 3. The second one does, and finds nothing. 4. The acquire runs.
#[test]
fn an_end_that_failed_on_a_master_is_not_one_of_the_two() {
    let third = MasterSet::one(2);
    for straggles in [None, Some(LateAnswer::Unsent), Some(LateAnswer::Unknown)] {
        let mut world = World::new(1);
        let given_up = Spread { given_up: third, ..Spread::default() };
        let (acquire, level) = world.take_with(given_up, |_| ());
        let Continue(end) = world.entry.leave(acquire.hold, level, Some(98), world.at()) else {
            panic!("it is held")
        };
        let spread = match straggles {
            Some(_) => Spread { unanswered: third, ..Spread::default() },
            None => Spread { remains: third, ..Spread::default() },
        };
        world.entry.conclude(&end, Ok(&Reply::Done), spread, world.at());
        if let Some(answer) = straggles {
            world.entry.straggled(&end, 2, answer, world.now);
        }
        let failed = Spread { remains: third, ..Spread::default() };
        let second = world.sends().pop().expect("the first one failed");
        world.entry.conclude(&second, Ok(&Reply::Done), failed, world.at());
        for _ in 0..2 {
            let end = world.ends_at_third();
            world.misses_at_third(&end);
        }
        assert!(world.entry.is_empty(), "{straggles:?}: and no more");
    }
}

/// In this order: 1. An acquire waits to be sent, and its hold is given up. 2. The end fails on the third master. 3. The acquire's future
/// finds that the third gave no answer, or is dropped. 4. The end is sent to all again, and finds nothing. 5. The acquire runs.
#[test]
fn an_end_that_failed_on_a_master_before_the_acquire_was_looked_at_is_not_one_of_the_two() {
    let third = MasterSet::one(2);
    let given_up = Spread { given_up: third, ..Spread::default() };
    for how in ["granted", "dropped", "refused"] {
        let mut world = World::new(1);
        let (acquire, end) = world.is_given_up();
        let first = world.askers[0].id;
        let spread = Spread { remains: third, missing: MasterSet::first(2), ..Spread::default() };
        world.entry.conclude(&end, Ok(&Reply::Gone), spread, world.at());
        match how {
            "granted" => {
                let new = NewLevel::watched(world.number(), world.timing.lease);
                let first = Grantee::Waiter(first);
                let granted = world.entry.granted(&first, &acquire, &new, given_up, world.at());
                assert!(granted.is_err());
            }
            "dropped" => {
                let spread = Spread { given_up: acquire.masters, ..Spread::default() };
                world.entry.conclude(&acquire, Err(Outcome::Unknown), spread, world.at());
            }
            _ => {
                let spread = Spread { remains: third, ..given_up };
                world.entry.conclude(&acquire, Ok(&Reply::busy(LEASE)), spread, world.at());
            }
        }
        let again = world.sends().pop().expect("it is ended again");
        assert_eq!((again.call.action, again.masters), (Action::END, MasterSet::first(MasterSet::MOST)));
        let missing = Spread { missing: MasterSet::first(3), ..Spread::default() };
        world.entry.conclude(&again, Ok(&Reply::Done), missing, world.at());
        let last = world.ends_at_third();
        world.misses_at_third(&last);
        assert!(world.entry.orphans.is_empty(), "{how}: and no more");
    }
}

/// In this order: 1. The second master grants, the first one refuses, and the acquire waits for the third in a connection that is
/// replaced. 2. The end is sent to the second, for it alone may have the field. 3. The acquire is given up on the third.
/// 4. The end on the second is answered.
#[test]
fn an_end_on_another_master_is_not_one_of_the_two() {
    let [second, third] = [1, 2].map(MasterSet::one);
    let mut world = World::new(1);
    let id = world.asks(&Owner::new(), true);
    let at = world.asker(id);
    let acquire = world.askers[at].asking.take().unwrap();
    let spread = Spread { remains: second, unanswered: third, ..Spread::default() };
    world.entry.conclude(&acquire, Ok(&Reply::busy(LEASE)), spread, world.at());
    let until = world.now + LEASE;
    world.entry.refused(id, Refusal::until(until));
    let end = world.sends().pop().expect("the second has it");
    assert_eq!((end.call.action, end.masters), (Action::END, second));
    world.entry.straggled(&acquire, 2, LateAnswer::Unknown, world.now);
    world.entry.conclude(&end, Ok(&Reply::Done), Spread::default(), world.at());
    world.now += world.timing.retry;
    let again = world.sends().pop().expect("the third may have it");
    assert_eq!(again.masters, second.union(third));
    world.misses_at_third(&again);
    let last = world.ends_at_third();
    world.misses_at_third(&last);
    assert!(world.entry.holds.is_empty() && world.entry.orphans.is_empty(), "and no more");
}

/// In this order: 1. An acquire is given up on the third master, where it waits in a connection that is replaced. 2. A renewal finds
/// nothing there, nor on the others. 3. The end finds nothing. 4. The acquire runs.
#[test]
fn a_renewal_that_finds_nothing_is_not_one_of_the_two() {
    let third = MasterSet::one(2);
    let mut world = World::new(1);
    let (acquire, level) = world.take_with(Spread { given_up: third, ..Spread::default() }, |_| ());
    world.now += LEASE / 3;
    let renewal = world.sends().pop().expect("it is due");
    let missing = Spread { missing: MasterSet::first(3), ..Spread::default() };
    let meaning = world.entry.conclude(&renewal, Ok(&Reply::Gone), missing, world.at());
    assert_eq!(meaning, Meaning::Lost(Loss::Gone));
    let _ = world.entry.leave(acquire.hold, level, None, world.at());
    let first = world.sends().pop().expect("the acquire had no answer there");
    assert_eq!((first.call.action, first.masters), (Action::END, third));
    world.misses_at_third(&first);
    let second = world.ends_at_third();
    world.misses_at_third(&second);
    assert!(world.entry.is_empty(), "and no more");
}

/// In this order: 1. The acquire waits for the third master; it was given up on the second. 2. The end of the
/// hold finds nothing on either. 3. The acquire runs on the third, and its answer arrives before that of the
/// end. 4. The end is sent to the second again. 5. The third's answer to the first end is read.
#[test]
fn an_end_that_is_sent_to_another_master_again_hides_nothing_of_one_that_is_late() {
    let [second, third] = [1, 2].map(MasterSet::one);
    for answered in [false, true] {
        let mut world = World::new(1);
        let (acquire, level) = world.take_with(Spread { given_up: second, ..Spread::default() }, |_| ());
        let Continue(end) = world.entry.leave(acquire.hold, level, Some(98), world.at()) else {
            panic!("it is held")
        };
        world.entry.straggled(&acquire, 2, LateAnswer::Done, world.now);
        let spread = Spread { missing: second, unanswered: third, ..Spread::default() };
        world.entry.conclude(&end, Ok(&Reply::Done), spread, world.at());
        world.now += world.timing.retry;
        let again = world.sends().pop().expect("it was given up there");
        assert_eq!(again.masters, second);
        let missing = Spread { missing: second, ..Spread::default() };
        if answered {
            world.entry.conclude(&again, Ok(&Reply::Done), missing, world.at());
        }
        world.entry.straggled(&end, 2, LateAnswer::Missing, world.now);
        if !answered {
            world.entry.conclude(&again, Ok(&Reply::Done), missing, world.at());
        }
        world.now += 4 * world.timing.retry;
        let sent = world.sends();
        let last = sent.last().unwrap_or_else(|| panic!("answered {answered}: the third has it"));
        assert!(last.is_end() && last.masters.contains(2), "{sent:?}");
    }
}

/// In this order: 1. A request is refused by two masters, and its hold is over. 2. Its acquire waits for the third in a connection that is
/// replaced. 3. The end finds nothing there. 4. The acquire runs.
#[test]
fn what_had_no_answer_on_a_master_when_its_hold_was_over_is_ended_there_twice() {
    let third = MasterSet::one(2);
    // Whether the entry still has the hold, or nothing of it.
    for unanswered in [third, MasterSet::NONE] {
        let mut world = World::new(1);
        let id = world.asks(&Owner::new(), true);
        let at = world.asker(id);
        let acquire = world.askers[at].asking.take().unwrap();
        let spread = Spread { unanswered, ..Spread::default() };
        world.entry.conclude(&acquire, Ok(&Reply::busy(LEASE)), spread, world.at());
        world.entry.straggled(&acquire, 2, LateAnswer::Unknown, world.now);
        let missing = Spread { missing: third, ..Spread::default() };
        for round in [1, 2] {
            let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
            let [end] = &commands[..] else { panic!("{round}: {commands:?}") };
            assert_eq!((end.call.action, end.masters), (Action::END, third), "{round}");
            world.entry.conclude(end, Ok(&Reply::Done), missing, world.at());
            assert!(world.entry.check(world.at(), MasterSet::NONE, &world.numbers).is_empty(), "{round}");
            world.now += 2 * world.timing.retry;
        }
        assert!(world.entry.check(world.at(), MasterSet::NONE, &world.numbers).is_empty(), "and no more");
    }
}

/// In this order: 1. A request is refused, though one master granted it. 2. What it left there is ended.
/// 3. The request sleeps on. Otherwise it would ask at once, leave the next field there, and so on without a
/// pause.
#[test]
fn the_end_of_what_a_refused_request_has_left_wakes_nobody() {
    let mut world = World::new(1);
    let id = world.asks(&Owner::new(), true);
    let at = world.asker(id);
    let pending = world.askers[at].asking.take().unwrap();
    let (third, until) = (MasterSet::one(2), world.now + LEASE);
    let spread = Spread { remains: third, ..Spread::default() };
    world.entry.conclude(&pending, Ok(&Reply::busy(LEASE)), spread, world.at());
    world.entry.refused(id, Refusal::until(until));
    let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
    let [end] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((end.call.action, end.masters), (Action::END, third));
    world.entry.conclude(end, Ok(&Reply::Done), Spread::default(), world.at());
    assert!(world.entry.queue.get(id).is_some_and(Waiter::is_asleep));
}

/// In this order: 1. An acquire waits to be sent. 2. The machine sleeps for longer than its lease. Its hold
/// is given up, and the end runs. 3. The acquire runs: its lease counts from that moment, not from when it
/// was to be sent.
#[test]
fn what_runs_later_than_its_lease_is_ended_all_the_same() {
    let mut world = World::new(1);
    let bygone = world.bygone();
    world.now += 2 * LEASE;
    world.entry.straggled(&bygone, 2, LateAnswer::Done, world.now);
    let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
    let [end] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((end.call.action, end.masters), (Action::END, MasterSet::one(2)));
}
